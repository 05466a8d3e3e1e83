"""The process that gets killed: ``python -m beadline.chaos.driver FOLDER``.

It runs the workload's job over all input that is there, and ends. Each event of the query is one
line of JSON on stdout, flushed at once, so that whoever watches knows how far it had come when it
died. Where it dies is said in its environment (``beadline.points``).
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from beadline.chaos import targets
from beadline.chaos.workload import CLEAN, NAME, SCHEMA, TOTALS, Workload
from beadline.errors import BeadlineError
from beadline.observe import Event

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from beadline.stream import Stream

# Tasks are retried, as on a cluster: a killed Python worker must cost an attempt, not the query.
MASTER = "local[2,4]"
# A JVM that lives a few seconds is best off with the quick compiler and nothing left in /tmp.
_JAVA = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC -XX:-UsePerfData -Djava.io.tmpdir={temporary}"


def settings(scratch: Path) -> dict[str, str | int]:
    """A light Spark; small splits, so that one input file becomes several parts and files."""
    temporary = tempfile.gettempdir()  # TMPDIR: the supervisor's, who tidies up after the killed
    return {
        "spark.master": MASTER,
        "spark.ui.enabled": "false",
        "spark.driver.memory": "512m",
        "spark.driver.extraJavaOptions": _JAVA.format(temporary=temporary),
        "spark.sql.shuffle.partitions": 2,
        "spark.sql.files.maxPartitionBytes": 8192,
        "spark.sql.files.openCostInBytes": 0,
        "spark.local.dir": temporary,
        "spark.sql.warehouse.dir": str(scratch / "warehouse"),
    }


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
    """The job: good rows to files, totals per key to SQLite, decided together; or as told."""
    from beadline import exactly_once
    from beadline.sinks import FileSink, SqliteSink

    told = targets.load(workload)
    if told:
        return targets.stream(clean_rows(spark, workload), totals, told)
    files = FileSink(str(workload.clean))
    database = SqliteSink(workload.database, TOTALS, mode="add", key=("key",))
    return (
        exactly_once(clean_rows(spark, workload), name=NAME)
        .to(files, name=CLEAN)
        .to(database, rows=totals, name=TOTALS)
    )


def emit(line: dict[str, Any]) -> None:
    """One line of JSON."""
    sys.stdout.write(json.dumps(line, default=str) + "\n")
    sys.stdout.flush()


def tell(event: Event) -> None:
    """Listen to the query."""
    emit(asdict(event))


def run(workload: Workload, naive: str | None) -> None:
    """Work off the input that is there."""
    from beadline.environment.session import session

    spark = session("beadline-chaos", (), **settings(workload.scratch))
    if naive is None:
        query = stream(spark, workload).start(
            str(workload.checkpoint), available_now=True, listener=tell
        )
        query.awaitTermination()
    else:
        from beadline.chaos.naive import run_naive

        run_naive(clean_rows(spark, workload), totals, workload, naive, emit)
    spark.stop()


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the job; exit with the code of Beadline's error, if there is one."""
    parser = argparse.ArgumentParser(prog="python -m beadline.chaos.driver")
    parser.add_argument("folder", type=Path)
    parser.add_argument("--naive", metavar="STEP#N", help="plain foreachBatch; may be empty")
    given = parser.parse_args(arguments)
    try:
        run(Workload(given.folder), given.naive)
    except BeadlineError as error:
        emit({"kind": "failed", "error": type(error).__name__, "message": str(error)})
        sys.exit(error.exit_code)


if __name__ == "__main__":
    main()
