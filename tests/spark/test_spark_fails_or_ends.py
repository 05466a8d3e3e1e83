"""What a user is told when Spark fails or ends under a query, and what is not worth an end."""

from __future__ import annotations

import logging
import os
import shutil
import signal
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from beadline import exactly_once
from beadline.errors import PrepareFailed
from beadline.event_time import count, windowed
from beadline.observe import Event
from beadline.sinks import SqliteSink
from beadline.spark.checks import COLUMNAR_INPUT
from beadline.spark.conf import value_of
from beadline.state.backend import ROCKSDB_STORE
from tests.spark.jobs import read, rows_sink, run, session_conf, sqlite_job, table, write_input

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


def test_the_query_survives_a_worker_that_starts_too_slowly(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a busy machine the ten seconds that Spark gives it may be too few."""
    slow = tmp_path / "python"
    slow.write_text(
        "#!/bin/sh\n"
        f'case "$*" in *driver_worker*) mkdir {tmp_path}/once 2>/dev/null && sleep 11;; esac\n'
        f'exec {sys.executable} "$@"\n'
    )
    slow.chmod(0o755)
    monkeypatch.setattr(spark.sparkContext, "pythonExec", str(slow))
    events: list[Event] = []
    write_input(tmp_path / "in", 1, rows=12)
    with session_conf(spark, ROCKSDB_STORE):
        fours = windowed(read(spark, tmp_path / "in"), every_rows=4, by="k").agg(rows=count())
        stream = exactly_once(fours, "job").to(rows_sink(tmp_path))
        run(stream, tmp_path, listener=events.append)
    assert (tmp_path / "once").exists()
    assert [event.kind for event in events].count("spark restarted") == 1
    with closing(sqlite3.connect(tmp_path / "out.db")) as database:
        assert database.execute("SELECT k, rows FROM t ORDER BY k").fetchall() == [
            ("k0", 4),
            ("k1", 4),
            ("k2", 4),
        ]


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
