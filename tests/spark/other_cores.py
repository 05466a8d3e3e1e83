"""The driver of ``test_other_cores``: an epoch decided on some cores, and replayed on others.

Run as a program, because the number of cores is settled when Spark starts. ``decide`` dies after
the decision of the first epoch, of which a part is then lost; ``replay`` continues from there.
"""

from __future__ import annotations

import sys
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession

from beadline import exactly_once
from beadline.environment.session import session
from beadline.errors import BeadlineError
from tests.spark.expiring import ExpiringSink
from tests.spark.jobs import SCHEMA, run, run_and_die


def files(spark: SparkSession, folder: Path) -> DataFrame:
    """Several small files in one epoch: packed into as many parts as there are cores."""
    return spark.readStream.schema(SCHEMA).json(str(folder / "in"))


def rate(spark: SparkSession, folder: Path) -> DataFrame:
    """A source that has as many parts as there are cores, whatever is set."""
    reader = spark.readStream.format("rate-micro-batch").option("rowsPerBatch", 20)
    return reader.option("startTimestamp", 0).load().select("value")


def main(folder: Path, phase: str, cores: str) -> None:
    """Play one phase with both sources."""
    conf = {"spark.master": f"local[{cores}]", "spark.log.level": "OFF"}
    spark = session("other-cores", **conf)
    for source in (files, rate):
        below = folder / source.__name__
        below.mkdir(exist_ok=True)
        sink = ExpiringSink(str(below / "broker"))
        stream = exactly_once(source(spark, folder), source.__name__, allow="at-most-once").to(sink)
        if phase == "decide":
            run_and_die(stream, below, "decide.after")
            print(source.__name__, "parts", len(sink.open_names()))
            sink.expire(1)
            continue
        try:
            run(stream, below)
            print(source.__name__, "visible", len(sink.visible()))
        except BeadlineError as error:
            print(source.__name__, type(error).__name__, error)
    spark.stop()


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2], sys.argv[3])
