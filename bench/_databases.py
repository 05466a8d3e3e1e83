"""What the database benchmarks share: rows, drivers for Spark's own writer, and timed epochs."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from beadline import exactly_once
from beadline.environment.maven import Bundle, jars
from beadline.sink import AnySink
from bench._common import quiet_session

PARTS = 2
# Ten columns of the kinds that orders have.
COLUMNS = {
    "id": "bigint",
    "customer": "bigint",
    "product": "integer",
    "quantity": "integer",
    "price": "double precision",
    "paid": "boolean",
    "country": "varchar(8)",
    "note": "varchar(80)",
    "placed_at": "timestamptz",
    "shipped_on": "date",
}
DRIVERS = Bundle(
    name="jdbc-drivers",
    artifacts=("org.postgresql:postgresql:42.7.4", "com.mysql:mysql-connector-j:8.4.0"),
    transitive=False,
)

EVERY = "250 milliseconds"
TIMEOUT_S = 300.0

Write = Callable[[DataFrame, int], None]
Start = Callable[[DataFrame, str, str], Any]
Columns = tuple[str, ...]


def database_session() -> SparkSession:
    """A quiet session with the drivers of Spark's own JDBC writer."""
    found = sorted(str(path) for path in jars(DRIVERS).glob("*.jar"))
    conf = {"spark.jars": ",".join(found), "spark.sql.session.timeZone": "UTC"}
    return quiet_session((), **conf)


def write_rows(spark: SparkSession, folder: Path, rows: int) -> None:
    """Write an epoch's rows as one file for each part."""
    id_ = F.col("id")
    frame = spark.range(0, rows, 1, PARTS).select(
        "id",
        (id_ * 7 % 100_003).alias("customer"),
        (id_ % 5_000).cast("int").alias("product"),
        (id_ % 9 + 1).cast("int").alias("quantity"),
        (id_ * 0.25).alias("price"),
        (id_ % 3 == 0).alias("paid"),
        F.concat(F.lit("C"), id_ % 200).alias("country"),
        F.sha2(id_.cast("string"), 256).alias("note"),
        F.timestamp_millis(F.lit(1_700_000_000_000) + id_).alias("placed_at"),
        F.date_add(F.lit("2026-01-01").cast("date"), (id_ % 365).cast("int")).alias("shipped_on"),
    )
    frame.write.parquet(str(folder))
    for path in folder.glob("*.parquet"):
        os.utime(path, (1_700_000_000, 1_700_000_000))


def ours(sink: AnySink) -> Start:
    """Beadline, exactly once."""

    def start(frame: DataFrame, name: str, checkpoint: str) -> Any:
        return exactly_once(frame, name).to(sink).start(checkpoint, every=EVERY)

    return start


def theirs(write: Write) -> Start:
    """A plain ``foreachBatch``, at least once."""

    def start(frame: DataFrame, name: str, checkpoint: str) -> Any:
        writer = frame.writeStream.foreachBatch(write).option("checkpointLocation", checkpoint)
        return writer.queryName(name).trigger(processingTime=EVERY).start()

    return start


class Side:
    """A running query that is given an epoch's rows when its turn comes."""

    def __init__(self, name: str, start: Start, rows: Path, folder: Path, columns: Columns) -> None:
        self.name = name
        self._rows = rows
        self._folder = folder / name
        self._inbox = self._folder / "in"
        self._inbox.mkdir(parents=True)
        self._epochs = 0
        spark = SparkSession.active()
        schema = spark.read.parquet(str(rows)).schema
        frame = spark.readStream.schema(schema).parquet(f"{self._inbox}/*")
        frame = frame.selectExpr(*columns) if columns else frame
        self._query = start(frame, name, str(self._folder / "checkpoint"))

    def epoch(self) -> float:
        """Let all rows come in at once; return the seconds of their epoch, by Spark's own watch."""
        ready = self._folder / "ready"
        ready.mkdir()
        for path in self._rows.glob("*.parquet"):
            os.link(path, ready / path.name)
        ready.rename(self._inbox / str(self._epochs))
        self._epochs += 1
        deadline_s = time.monotonic() + TIMEOUT_S
        while len(done := self._done()) < self._epochs:
            failure = self._query.exception()
            if failure is not None:
                raise failure
            if time.monotonic() > deadline_s:
                raise TimeoutError(f"{self.name}: no epoch in {TIMEOUT_S} s")
            time.sleep(0.05)
        assert len(done) == self._epochs, f"{len(done)} epochs"
        return float(done[-1]["durationMs"]["triggerExecution"]) / 1000

    def stop(self) -> None:
        """End the query."""
        self._query.stop()

    def _done(self) -> list[Any]:
        # Idle triggers make progress too, without rows.
        return [one for one in self._query.recentProgress if one["numInputRows"] > 0]
