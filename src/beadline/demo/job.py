"""The process that gets killed: ``python -m beadline.demo.job FOLDER``.

It runs the workload's job over all input that is there, and ends.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from beadline.demo.workload import CLEAN, NAME, SCHEMA, TOTALS, Workload
from beadline.verify.driver import emit, light_settings, run_as_program, stand_by, tell

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from beadline.stream import Stream

BuildDemo = Callable[["SparkSession", Workload], "Stream"]


def clean_rows(spark: SparkSession, workload: Workload) -> DataFrame:
    """The stream of good rows, one input file per epoch."""
    reader = spark.readStream.schema(SCHEMA).option("maxFilesPerTrigger", 1)
    raw = reader.json(str(workload.input))
    return raw.where("id is not null and key is not null and amount > 0")


def totals(rows: DataFrame) -> DataFrame:
    """One epoch's rows, added up by key."""
    from pyspark.sql import functions as F

    return rows.groupBy("key").agg(F.count("id").alias("rows"), F.sum("amount").alias("amount"))


def stream(spark: SparkSession, workload: Workload) -> Stream:
    """The job: good rows to files, totals per key to SQLite, decided together."""
    from beadline import exactly_once
    from beadline.sinks import FileSink, SqliteSink

    files = FileSink(str(workload.clean))
    database = SqliteSink(workload.database, TOTALS, mode="add", key=("key",))
    return (
        exactly_once(clean_rows(spark, workload), name=NAME)
        .to(files, name=CLEAN)
        .to(database, rows=totals, name=TOTALS)
    )


def run(workload: Workload, naive: str | None = None, build: BuildDemo = stream) -> None:
    """Process the input that is there."""
    from beadline.environment.session import session

    spark = session("beadline-demo", (), **light_settings(workload.scratch))
    stand_by()
    if naive is None:
        query = build(spark, workload).start(
            str(workload.checkpoint), available_now=True, listener=tell
        )
        query.awaitTermination()
    else:
        from beadline.demo.naive import run_naive

        run_naive(clean_rows(spark, workload), totals, workload, naive, emit)
    spark.stop()


def main(arguments: Sequence[str] | None = None, build: BuildDemo = stream) -> None:
    """Run a job; exit with the code of Beadline's error, if there is one."""
    parser = argparse.ArgumentParser(prog="python -m beadline.demo.job")
    parser.add_argument("folder", type=Path)
    parser.add_argument("--naive", metavar="STEP#N", help="plain foreachBatch; may be empty")
    given = parser.parse_args(arguments)
    run_as_program(lambda: run(Workload(given.folder), given.naive, build))


if __name__ == "__main__":
    main()
