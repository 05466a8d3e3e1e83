"""Failures that are not deaths: bad rows, stop(), pruned frames, queries side by side."""

from __future__ import annotations

import sqlite3
import threading
from contextlib import closing
from pathlib import Path

import pytest
from pyspark.sql import DataFrame, SparkSession

from beadline import at_least_once, exactly_once
from beadline.errors import BeadlineError
from beadline.sinks import SqliteSink
from tests.spark.jobs import read, rows_sink, run, run_and_die, sqlite_job, table, write_input


def test_at_least_once_loses_nothing(spark: SparkSession, tmp_path: Path) -> None:
    ids = write_input(tmp_path / "in", 3)
    stream = at_least_once(read(spark, tmp_path / "in"), "job").to(rows_sink(tmp_path))
    run_and_die(stream, tmp_path, "epoch.return", times=2)
    run(stream, tmp_path)
    assert sorted(set(table(tmp_path))) == ids


def test_two_queries_share_the_workers(spark: SparkSession, tmp_path: Path) -> None:
    queries = []
    for name in ("a", "b"):
        write_input(tmp_path / name / "in", 3)
        stream = sqlite_job(spark, tmp_path / name, name)
        queries.append(stream.start(str(tmp_path / name / "checkpoint"), available_now=True))
    for query in queries:
        assert query.awaitTermination(120)
    assert table(tmp_path / "a") == table(tmp_path / "b") == list(range(30))


def test_a_failing_row_decides_nothing(spark: SparkSession, tmp_path: Path) -> None:
    ids = write_input(tmp_path / "in", 3)
    broken = True

    def rows(frame: DataFrame) -> DataFrame:
        if not broken:
            return frame
        # Fails while it runs, for one row of the second epoch.
        return frame.selectExpr("if(id = 15, raise_error('bad row'), id) AS id", "k", "v")

    stream = exactly_once(read(spark, tmp_path / "in"), "job").to(rows_sink(tmp_path), rows=rows)
    with pytest.raises(BeadlineError, match=r"epoch 1, sink 'out-t'.*bad row"):
        run(stream, tmp_path)
    assert table(tmp_path) == ids[:10]
    broken = False
    run(stream, tmp_path)
    assert table(tmp_path) == ids


def test_stop_does_not_hide_an_earlier_failure(spark: SparkSession, tmp_path: Path) -> None:
    write_input(tmp_path / "in", 1)
    frame = read(spark, tmp_path / "in").selectExpr("raise_error('bad row') AS x", "id")
    stream = exactly_once(frame, "job").to(
        rows_sink(tmp_path), rows=lambda df: df.selectExpr("id", "string(x) AS x")
    )
    others = set(threading.enumerate())  # of other tests in this process
    query = stream.start(str(tmp_path / "checkpoint"))
    with pytest.raises(BeadlineError, match="bad row"):
        query.awaitTermination(60)
    query.stop()
    assert isinstance(query.exception(), BeadlineError)
    for thread in set(threading.enumerate()) - others:
        if thread.name.startswith("beadline"):
            thread.join(5)
            assert not thread.is_alive(), f"{thread.name} outlives its query"


def test_rows_that_prune_do_not_leave_state_behind(spark: SparkSession, tmp_path: Path) -> None:
    write_input(tmp_path / "in", 3)
    counts = read(spark, tmp_path / "in").groupBy("k").count()
    sink = SqliteSink(tmp_path / "out.db", "t", "upsert", "k")
    stream = exactly_once(counts, "job").to(sink, rows=lambda df: df.limit(1))
    run(stream, tmp_path, output_mode="update")
    last = exactly_once(counts, "job").to(sink)
    write_input(tmp_path / "in", 1, first=3)
    run(last, tmp_path, output_mode="update")
    assert table(tmp_path, "k, count") == [("k0", 14), ("k1", 13), ("k2", 13)]


def test_a_null_that_the_table_refuses_decides_nothing(spark: SparkSession, tmp_path: Path) -> None:
    ids = write_input(tmp_path / "in", 1)
    with closing(sqlite3.connect(tmp_path / "out.db")) as database, database:
        database.execute("CREATE TABLE t (id INTEGER NOT NULL, k TEXT NOT NULL, v INTEGER)")
    nulls = exactly_once(read(spark, tmp_path / "in"), "job").to(
        rows_sink(tmp_path), rows=lambda df: df.selectExpr("id", "nullif(k, 'k1') AS k", "v")
    )
    with pytest.raises(BeadlineError, match="null in column 'k'"):
        run(nulls, tmp_path)
    run(sqlite_job(spark, tmp_path), tmp_path)
    assert table(tmp_path) == ids
