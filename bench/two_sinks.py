"""What it costs to prove that two sinks hold the same rows: ``make bench-two-sinks``.

Two sinks of one query are given the rows of one local checkpoint. Each computation of a part draws
a random tag, and the sinks' tags are compared (``spark/sharing.py``). The other side is the same
query with that taken out: a lazy local checkpoint and no tags, which is as cheap as sharing can be,
and wrong when an executor dies. Whole queries take turns; what is compared is the time of an epoch
(Spark's ``triggerExecution``).

Shapes: both sinks read every row; the first has ``rows=`` of its own. Sources: a rate source, whose
checkpoint has the quick logs, and files, where Spark's default stays. Few rows and many.
"""

from __future__ import annotations

import os
import statistics
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import DataFrame, Observation, SparkSession

from beadline import exactly_once
from beadline.sinks import SqliteSink
from beadline.spark import engine
from beadline.spark.engine import SparkBatch
from beadline.spark.sharing import Columns, Shared, Tags
from bench._common import quiet_session, report, spread

EPOCHS = int(os.environ.get("BENCH_EPOCHS", "30"))
TURNS = int(os.environ.get("BENCH_PAIRS", "6"))
WARM_UP = 5
SHAPES = ("both_whole", "first_rows")
SIZES = {"rate": 50, "files": 50, "files_many": 100_000}


class Untagged(Shared):
    """Rows that are shared without any proof."""

    def __init__(self, frame: DataFrame, columns: Columns, eager: bool) -> None:
        """Nothing is computed yet."""
        self.frame = DataFrame(frame._jdf.localCheckpoint(eager), frame.sparkSession)

    def without_tags(self, metrics: Observation | None) -> DataFrame:
        """There are none."""
        return self.frame

    def all_read(self, tags: Tags) -> Tags:
        """Every sink is believed."""
        return {}

    def some_read(self, seen: Tags) -> Tags | None:
        """Every sink is believed."""
        return {}


@contextmanager
def untagged() -> Iterator[None]:
    """Take the proof out."""
    kept: dict[str, Any] = {name: getattr(SparkBatch, name) for name in ("_tagged", "_tags")}
    vars(engine)["Shared"] = Untagged
    for name, value in (("_tagged", False), ("_tags", {})):
        setattr(SparkBatch, name, lambda *_, value=value: value)
    try:
        yield
    finally:
        vars(engine)["Shared"] = Shared
        for name, method in kept.items():
            setattr(SparkBatch, name, method)


def write_input(folder: Path, rows: int) -> None:
    """A file an epoch, in two row groups, so that there are two parts."""
    folder.mkdir(parents=True)
    for epoch in range(EPOCHS):
        ids = np.arange(rows) + epoch * rows
        path = folder / f"{epoch:04d}.parquet"
        pq.write_table(pa.table({"value": ids}), path, row_group_size=max(1, rows // 2))
        os.utime(path, (1_700_000_000 + epoch,) * 2)


def source(spark: SparkSession, kind: str, folder: Path) -> DataFrame:
    """The rows of one query."""
    if kind == "rate":
        rate = spark.readStream.format("rate-micro-batch").option("rowsPerBatch", SIZES[kind])
        return rate.option("numPartitions", 2).load().select("value")
    files = spark.readStream.schema("value long").option("maxFilesPerTrigger", 1)
    return files.parquet(str(folder))


def run(frame: DataFrame, out: Path, shape: str) -> list[float]:
    """Run a query; return the milliseconds of its epochs."""

    def few(rows: DataFrame) -> DataFrame:
        return rows.where("value % 1000 < 50")

    out.mkdir()
    first, second = (SqliteSink(str(out / f"{name}.db"), table="t") for name in "ab")
    if shape == "first_rows":
        stream = exactly_once(frame, "bench").to(first, rows=few, name="a")
    else:
        stream = exactly_once(frame, "bench").to(first, name="a")
    stream = stream.to(second, name="b")
    query = stream.start(str(out / "checkpoint"))
    took: dict[int, float] = {}
    while len(took) < EPOCHS - 1 and query.isActive:
        for progress in query.recentProgress:
            if progress["numInputRows"]:
                took[progress["batchId"]] = progress["durationMs"]["triggerExecution"]
        query.awaitTermination(0.2)
    if (failure := query.exception()) is not None:
        raise failure
    query.stop()
    return [ms for epoch, ms in took.items() if WARM_UP <= epoch < EPOCHS]


def compare(spark: SparkSession, kind: str, shape: str, folder: Path) -> dict[str, float]:
    """Let the two sides take turns; return the ratio of an epoch with tags to one without."""
    ratios: list[float] = []
    for turn in range(-1, TURNS):
        medians: dict[bool, float] = {}
        for tagged in (True, False) if turn % 2 else (False, True):
            out = folder / f"{kind}-{shape}-{turn}-{tagged}"
            frame = source(spark, kind, folder / kind)
            if tagged:
                medians[tagged] = statistics.median(run(frame, out, shape))
            else:
                with untagged():
                    medians[tagged] = statistics.median(run(frame, out, shape))
        if turn >= 0:
            ratios.append(medians[True] / medians[False])
            print(f"{kind}, {shape}, turn {turn}: {medians}", flush=True)
    return spread(ratios)


def main() -> None:
    """Compare all shapes, and print the line."""
    spark = quiet_session()
    figures: dict[str, Any] = {}
    with tempfile.TemporaryDirectory(prefix="beadline-bench-", ignore_cleanup_errors=True) as name:
        folder = Path(name)
        for kind, rows in SIZES.items():
            if kind != "rate":
                write_input(folder / kind, rows)
            for shape in SHAPES:
                figures[f"{kind}_{shape}"] = compare(spark, kind, shape, folder)
    spark.stop()
    worst = max(figures, key=lambda name: figures[name]["p50"])
    report(
        benchmark="two_sinks",
        tagged_vs_untagged_max=figures[worst]["p50"],
        tagged_vs_untagged=figures,
        epochs=EPOCHS,
        turns=TURNS,
    )


if __name__ == "__main__":
    main()
