"""`run_epochs`: users' jobs on in-memory epochs, with deaths of the driver as data."""

from __future__ import annotations

import re
import sqlite3
import threading
from collections import Counter
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql import functions as F

from beadline import Stream, at_least_once, exactly_once
from beadline.errors import PrepareFailed, UsageError
from beadline.points import POINTS
from beadline.protocol.threads import Threads
from beadline.sinks import MemorySink, SqliteSink
from beadline.testing import CRASH, run_epochs
from beadline.testing.epochs import IN_WORKERS, Script

ROOT = Path(__file__).parents[2]
A = [{"k": "a", "v": 1}, {"k": "b", "v": 2}]
B = [{"k": "a", "v": 10}]
C = [{"k": "b", "v": 20}, {"k": "c", "v": 30}]


@pytest.fixture
def table(request: pytest.FixtureRequest) -> str:
    """The name of a memory table of this test's own."""
    name = re.sub(r"\W", "-", request.node.name)[:50]
    MemorySink.clear(name)
    return name


def into(table: str) -> Callable[[DataFrame], Stream]:
    return lambda frame: exactly_once(frame, "job").to(MemorySink(table), name="memory")


def sqlite_rows(path: Path, query: str) -> list[Any]:
    with closing(sqlite3.connect(path)) as database:
        return database.execute(query).fetchall()


def test_without_a_crash(spark: SparkSession, tmp_path: Path, table: str) -> None:
    result = run_epochs(spark, into(table), [A, B, C], tmp_path)
    assert MemorySink.rows(table) == [*A, *B, *C]
    assert (result.epochs, result.restarts, result.crashes) == (3, 0, ())
    assert {event.generation for event in result.events} == {1}


def test_crashes_in_memory(spark: SparkSession, tmp_path: Path, table: str) -> None:
    script: Script = [A, CRASH, B, CRASH("decide.before"), C]
    result = run_epochs(spark, into(table), script, tmp_path)
    assert MemorySink.rows(table) == [*A, *B, *C]
    assert (result.epochs, result.restarts) == (3, 2)
    assert result.crashes == ("decide.after", "decide.before")
    recovered = [event.epoch for event in result.events if event.kind == "recovered"]
    assert recovered == [1]


def test_add_is_added_once(spark: SparkSession, tmp_path: Path) -> None:
    path = tmp_path / "out.db"

    def build(frame: DataFrame) -> Stream:
        sums = frame.select("k", "v")
        return exactly_once(sums, "job").to(SqliteSink(path, "t", mode="add", key="k"))

    script: Script = [
        CRASH("ledger.before"), A, CRASH("ledger.after"), B, CRASH("epoch.return"), C,
    ]  # fmt: skip
    result = run_epochs(spark, build, script, tmp_path, parts=2)
    assert dict(sqlite_rows(path, "SELECT k, v FROM t")) == {"a": 11, "b": 22, "c": 30}
    assert (result.epochs, result.restarts) == (3, 3)


def test_deaths_one_after_the_other(spark: SparkSession, tmp_path: Path, table: str) -> None:
    script: Script = [
        CRASH("claim.before"), CRASH("claim.after"), A,
        CRASH, CRASH("recover.before"), CRASH("commit.after"), CRASH("epoch.again"), B,
    ]  # fmt: skip
    result = run_epochs(spark, into(table), script, tmp_path)
    assert MemorySink.rows(table) == [*A, *B]
    assert result.restarts == 6


@pytest.mark.parametrize("mode", ["update", "complete"])
def test_stateful(spark: SparkSession, tmp_path: Path, table: str, mode: str) -> None:
    path = tmp_path / "out.db"

    def build(frame: DataFrame) -> Stream:
        counts = frame.groupBy("k").agg(F.count(F.lit(1)).alias("n"), F.sum("v").alias("total"))
        upsert = SqliteSink(path, "t", mode="upsert", key="k")
        return exactly_once(counts, "job").to(upsert).to(MemorySink(table), name="memory")

    script: Script = [A, CRASH, B, CRASH("prepare.between"), C, CRASH("commit.between"), B]
    result = run_epochs(spark, build, script, tmp_path, output_mode=mode)
    expected = {("a", 3, 21), ("b", 2, 22), ("c", 1, 30)}
    assert set(sqlite_rows(path, "SELECT k, n, total FROM t")) == expected
    shown = Counter(row["k"] for row in MemorySink.rows(table))
    if mode == "update":
        assert shown == {"a": 3, "b": 2, "c": 1}
    else:
        assert shown == {"a": 4, "b": 4, "c": 2}
    assert (result.epochs, result.restarts) == (4, 3)


def test_rows_with_a_schema_and_an_empty_epoch(
    spark: SparkSession, tmp_path: Path, table: str
) -> None:
    rows = [Row(k="x", v=None)]
    schema = "k string, v decimal(10,2)"
    result = run_epochs(spark, into(table), [[], CRASH, rows], tmp_path, schema=schema)
    assert MemorySink.rows(table) == [{"k": "x", "v": None}]
    assert result.epochs == 2


def test_a_second_call_goes_on(spark: SparkSession, tmp_path: Path, table: str) -> None:
    run_epochs(spark, into(table), [A], tmp_path)
    result = run_epochs(spark, into(table), [CRASH, B], tmp_path)
    assert MemorySink.rows(table) == [*A, *B]
    assert {event.epoch for event in result.events if event.kind == "committed"} == {1}


def test_nothing_of_a_dead_driver_is_left(spark: SparkSession, tmp_path: Path, table: str) -> None:
    # Another query's helper that lives on is not ours to wait for, also before our first start.
    other = Threads()
    other.run_all([lambda: None])
    before = set(threading.enumerate())
    run_epochs(spark, into(table), [CRASH("claim.after"), A, CRASH("commit.between"), B], tmp_path)
    left = [thread.name for thread in set(threading.enumerate()) - before]
    assert [name for name in left if name.startswith("beadline_")] == []
    assert not spark.streams.active
    other.close()


def test_a_point_that_is_not_reached_is_an_error(
    spark: SparkSession, tmp_path: Path, table: str
) -> None:
    with pytest.raises(UsageError, match=r"'files.renamed'.* never reached.*decide.after"):
        run_epochs(spark, into(table), [CRASH("files.renamed"), A], tmp_path)
    assert not spark.streams.active


def test_at_least_once_passes_other_points(spark: SparkSession, tmp_path: Path, table: str) -> None:
    def build(frame: DataFrame) -> Stream:
        return at_least_once(frame, "job").to(MemorySink(table), name="memory")

    with pytest.raises(UsageError, match=r"never reached"):
        run_epochs(spark, build, [CRASH, A], tmp_path)


def test_an_error_of_the_job_comes_through(spark: SparkSession, tmp_path: Path, table: str) -> None:
    def build(frame: DataFrame) -> Stream:
        broken = frame.select(F.raise_error(F.lit("no such customer")).cast("string").alias("x"))
        return exactly_once(broken, "job").to(MemorySink(table), name="memory")

    with pytest.raises(PrepareFailed, match="no such customer"):
        run_epochs(spark, build, [A], tmp_path)
    assert MemorySink.rows(table) == []


@pytest.mark.parametrize("point", sorted(IN_WORKERS))
def test_points_of_workers_are_refused(point: str) -> None:
    with pytest.raises(UsageError, match="Python workers") as refused:
        CRASH(point)
    for usable in set(POINTS) - IN_WORKERS:
        assert usable in str(refused.value)


def test_scripts_that_cannot_be_right(spark: SparkSession, tmp_path: Path, table: str) -> None:
    with pytest.raises(UsageError, match="no such crash point"):
        CRASH("lunch.before")
    with pytest.raises(UsageError, match="ends with one"):
        run_epochs(spark, into(table), [A, CRASH], tmp_path)
    with pytest.raises(UsageError, match="lists of rows, not of dict"):
        run_epochs(spark, into(table), A, tmp_path)  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="give schema="):
        run_epochs(spark, into(table), [[]], tmp_path)
    with pytest.raises(UsageError, match="returned NoneType"):
        run_epochs(spark, lambda frame: None, [A], tmp_path)  # type: ignore[arg-type, return-value]


def test_the_example_of_the_docs(spark: SparkSession, tmp_path: Path) -> None:
    text = (ROOT / "docs" / "testing-your-job.md").read_text("utf-8")
    (code,) = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
    names: dict[str, Any] = {"__name__": "docs_example"}
    exec(code, names)
    names["test_totals_survive_two_crashes"](spark, tmp_path)


def test_the_docs_name_every_point_that_can_be_used() -> None:
    text = (ROOT / "docs" / "testing-your-job.md").read_text("utf-8")
    named = set(re.findall(r"`([a-z]+\.[a-z]+)`", text))
    assert set(POINTS) <= named
