"""What the database benchmarks share: rows, drivers for Spark's own writer, and one timed epoch."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from beadline import exactly_once
from beadline.run.maven import Bundle, jars
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

Write = Callable[[DataFrame, int], None]


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


def read(spark: SparkSession, folder: Path, columns: tuple[str, ...] = ()) -> DataFrame:
    """The rows as a stream of one epoch."""
    schema = spark.read.parquet(str(folder)).schema
    frame = spark.readStream.schema(schema).parquet(str(folder))
    return frame.select(*columns) if columns else frame


def ours(frame: DataFrame, sink: AnySink, checkpoint: Path) -> float:
    """Seconds of the epoch with Beadline."""
    # A query of its own each time: the target remembers the last one.
    name = checkpoint.name.replace("--", "-warm-")
    query = exactly_once(frame, name).to(sink).start(str(checkpoint), available_now=True)
    query.awaitTermination()
    return _seconds(query)


def theirs(frame: DataFrame, write: Write, checkpoint: Path) -> float:
    """Seconds of the same epoch with a plain ``foreachBatch``."""
    writer = frame.writeStream.foreachBatch(write).option("checkpointLocation", str(checkpoint))
    query = writer.trigger(availableNow=True).start()
    query.awaitTermination()
    return _seconds(query)


def _seconds(query: Any) -> float:
    """The time of the one epoch, from its trigger to its end: starting a query is not counted."""
    done = [one for one in query.recentProgress if one["numInputRows"] > 0]
    assert len(done) == 1, f"{len(done)} epochs"
    return float(done[0]["durationMs"]["triggerExecution"]) / 1000
