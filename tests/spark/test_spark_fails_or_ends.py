"""What a user is told when Spark fails or ends under a query, and what is not worth an end."""

from __future__ import annotations

import logging
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from beadline import exactly_once
from beadline.errors import PrepareFailed
from beadline.observe import Event
from beadline.sinks import SqliteSink
from beadline.spark.checks import COLUMNAR_INPUT
from beadline.spark.conf import value_of
from tests.spark.jobs import read, rows_sink, run, sqlite_job, table, write_input

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize("how", ["stop", "jvm"])
def test_spark_ends_under_a_query(tmp_path: Path, how: str) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "tests.spark.spark_ends", str(tmp_path), how],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    master, rows, raised, left = done.stdout.splitlines()
    assert master == "master local[*,4]"
    assert rows == "rows 20 died True", "a killed Python worker costs an attempt, not the query"
    cause = {"stop": "Spark was stopped under the running", "jvm": "Spark's JVM has ended"}[how]
    assert raised.startswith(f"raised SparkGone query 'job': {cause}"), raised
    assert "Every epoch that is decided is complete or finished by the next start" in raised
    assert left == "left SparkGone"


@dataclass(frozen=True)
class KilledSink(SqliteSink):
    """Each attempt is killed, as by the operating system for lack of memory."""

    def prepare(self, rows: Iterator[Any], part: Any) -> Any:
        """Die."""
        os.kill(os.getpid(), signal.SIGKILL)


def test_a_killed_python_worker_is_named_as_the_cause(spark: SparkSession, tmp_path: Path) -> None:
    write_input(tmp_path / "in", 1)
    sink = KilledSink(tmp_path / "out.db", "t")
    with pytest.raises(PrepareFailed, match=r"epoch 0, sink 'out-t'.*a Python worker process died"):
        run(exactly_once(read(spark, tmp_path / "in"), "job").to(sink), tmp_path)
    run(sqlite_job(spark, tmp_path), tmp_path)
    assert len(table(tmp_path)) == 10


def test_the_query_survives_another_driver_that_writes_to_sparks_own_log(
    spark: SparkSession, tmp_path: Path
) -> None:
    """An older one may plan one epoch more; the newest claim continues from there."""
    events: list[Event] = []
    ids = write_input(tmp_path / "in", 1)
    stream = sqlite_job(spark, tmp_path)
    query = stream.start(str(tmp_path / "checkpoint"), listener=events.append)
    try:
        query.processAllAvailable()
        offsets = tmp_path / "checkpoint" / "offsets"
        shutil.copy(offsets / "0", offsets / "1")
        ids += write_input(tmp_path / "in", 1, first=1)
        query.processAllAvailable()
    finally:
        query.stop()
    assert [e.kind for e in events].count("spark restarted") == 1
    assert table(tmp_path) == ids


def test_a_python_function_directly_on_columnar_files_does_not_hang(
    spark: SparkSession, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """A bug of PySpark 4.2.0; the session of ``session()`` and one of the user's own."""
    assert value_of(spark, COLUMNAR_INPUT) in ("false", None)
    spark = spark.newSession()
    spark.conf.unset(COLUMNAR_INPUT)
    spark.range(1000).coalesce(1).write.parquet(str(tmp_path / "in"))
    frame = spark.readStream.schema("id long").parquet(str(tmp_path / "in"))
    frame = frame.withColumn("id", F.udf(lambda i: i + 1, "long")("id"))
    run(exactly_once(frame, "job").to(rows_sink(tmp_path)), tmp_path)
    assert table(tmp_path) == list(range(1, 1001))
    spark.conf.set(COLUMNAR_INPUT, "true")
    with caplog.at_level(logging.WARNING, "beadline"):
        run(exactly_once(frame, "job").to(rows_sink(tmp_path)), tmp_path)  # nothing is left to read
    assert "hangs forever" in caplog.text
