"""A target that lost what it had acknowledged is noticed: at start, and by every commit (rule 25).

A folder that was deleted, a disk that is not mounted, a database restored from an older copy: going
on would leave a gap that no later start could see.
"""

from __future__ import annotations

import re
import shutil
import sqlite3
from collections import Counter
from collections.abc import Callable
from contextlib import closing
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from beadline import Stream, exactly_once
from beadline.errors import CheckpointProblem, CommitFailed, TargetRestored
from beadline.points import hooked
from beadline.sink import Outcome
from beadline.sinks import FileSink
from tests.spark import jobs
from tests.spark.test_file_sink import QUERY, epoch, files_in, frame_of, ids, outcome, part
from tests.spark.test_file_sink import prepared as prepared_part

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def files_job(spark: SparkSession, folder: Path) -> Stream:
    sink = FileSink(str(folder / "disk" / "out"))
    return exactly_once(jobs.read(spark, folder / "in"), "job").to(sink)


def test_a_commit_to_a_folder_that_is_gone(spark: SparkSession, tmp_path: Path) -> None:
    out = tmp_path / "out"
    sink = FileSink(str(out))
    sink.commit(epoch(0), [prepared_part(sink, frame_of(spark, 0, 10), part(0))])
    away = out.rename(tmp_path / "away")
    assert sink.last_seen(QUERY, "out") is None
    second = prepared_part(sink, frame_of(spark, 10, 20), part(1))
    expecting = replace(epoch(1), previous=0)
    for _ in range(2):
        with pytest.raises(TargetRestored, match="acknowledged epoch 0"):
            sink.commit(expecting, [second])
        assert not out.exists(), "it must not come back with a gap"
    away.rename(out)
    assert outcome(sink.commit(expecting, [second])) is Outcome.COMMITTED
    assert ids(spark, out) == Counter(range(20))
    # Given up by name, the query continues: nothing is expected, and old marks count for nothing.
    shutil.rmtree(out)
    third = prepared_part(sink, frame_of(spark, 20, 30), part(2))
    assert outcome(sink.commit(epoch(2), [third])) is Outcome.COMMITTED
    assert ids(spark, out) == Counter(range(20, 30))


def test_an_epoch_whose_folder_went_before_spark_knew(spark: SparkSession, tmp_path: Path) -> None:
    """Committed, then deleted, then committed again by recovery: lost, and not called committed."""
    sink = FileSink(str(tmp_path / "out"))
    ready = prepared_part(sink, frame_of(spark, 0, 10), part(0))
    sink.commit(epoch(0), [ready])
    shutil.rmtree(tmp_path / "out")
    assert outcome(sink.commit(epoch(0), [ready])) is Outcome.LOST


@pytest.mark.parametrize("what", ["deleted", "made again", "not mounted"])
def test_a_folder_that_is_gone_between_two_starts(
    spark: SparkSession, tmp_path: Path, what: str
) -> None:
    jobs.write_input(tmp_path / "in", 2)
    jobs.run(files_job(spark, tmp_path), tmp_path)
    jobs.write_input(tmp_path / "in", 1, first=2)
    disk = tmp_path / "disk"
    if what != "not mounted":
        shutil.rmtree(disk / "out")
        if what == "made again":
            (disk / "out").mkdir()
    else:
        disk.rename(tmp_path / "away")
        disk.mkdir()
    for _ in range(2):
        with pytest.raises(CheckpointProblem, match="epochs 0 to 1 are missing"):
            jobs.run(files_job(spark, tmp_path), tmp_path)
        assert not files_in(disk / "out")
    if what == "not mounted":
        disk.rmdir()
        (tmp_path / "away").rename(disk)
        jobs.run(files_job(spark, tmp_path), tmp_path)
        assert ids(spark, disk / "out") == Counter(range(30))
        return
    jobs.run(files_job(spark, tmp_path), tmp_path, drop=["files-out"])
    assert ids(spark, disk / "out") == Counter(range(20, 30))
    jobs.run(files_job(spark, tmp_path), tmp_path)


def at_second(point: str, act: Callable[[], object]) -> Callable[[str], None]:
    """Return a hook that acts when a point is reached for the second time."""
    seen: Counter[str] = Counter()

    def hook(name: str) -> None:
        seen[name] += 1
        if name == point and seen[name] == 2:
            act()

    return hook


def test_a_folder_that_is_deleted_while_the_query_runs(spark: SparkSession, tmp_path: Path) -> None:
    jobs.write_input(tmp_path / "in", 3)
    out = tmp_path / "disk" / "out"
    with (
        hooked(at_second("epoch.begin", lambda: shutil.rmtree(out))),
        pytest.raises(TargetRestored, match="epoch 1: the target has acknowledged epoch 0"),
    ):
        jobs.run(files_job(spark, tmp_path), tmp_path)
    assert not out.exists()
    with pytest.raises(CheckpointProblem, match="epoch 0 are missing"):  # behind a decision
        jobs.run(files_job(spark, tmp_path), tmp_path)
    jobs.run(files_job(spark, tmp_path), tmp_path, drop=["files-out"])
    assert ids(spark, out) == Counter(range(10, 30)), "what was decided is not given up with it"


def test_a_database_restored_while_the_query_runs(spark: SparkSession, tmp_path: Path) -> None:
    """As when a replica takes over that lags behind; and at the next start, behind a decision."""
    jobs.write_input(tmp_path / "in", 1)
    jobs.run(jobs.sqlite_job(spark, tmp_path), tmp_path)
    backup = tmp_path / "backup.db"
    shutil.copy(tmp_path / "out.db", backup)
    jobs.write_input(tmp_path / "in", 2, first=1)

    def restore() -> None:
        shutil.copy(tmp_path / "out.db", tmp_path / "newest.db")
        shutil.copy(backup, tmp_path / "out.db")

    with (
        hooked(at_second("epoch.begin", restore)),
        pytest.raises(TargetRestored, match="acknowledged epoch 1 before and now holds epoch 0"),
    ):
        jobs.run(jobs.sqlite_job(spark, tmp_path), tmp_path)
    assert jobs.table(tmp_path) == list(range(10)), "nothing was written behind the gap"
    with pytest.raises(CheckpointProblem, match="epoch 1 are missing"):
        jobs.run(jobs.sqlite_job(spark, tmp_path), tmp_path)
    shutil.copy(tmp_path / "newest.db", tmp_path / "out.db")
    jobs.run(jobs.sqlite_job(spark, tmp_path), tmp_path)
    assert jobs.table(tmp_path) == list(range(30))


def test_a_decided_epoch_that_the_table_refuses_ends_as_the_error_says(
    spark: SparkSession, tmp_path: Path
) -> None:
    """A trigger that was made after the decision: what the error advises is done, and works."""
    jobs.write_input(tmp_path / "in", 1)
    jobs.run(jobs.sqlite_job(spark, tmp_path), tmp_path)
    jobs.write_input(tmp_path / "in", 2, first=1)
    jobs.run_and_die(jobs.sqlite_job(spark, tmp_path), tmp_path, "decide.after")
    with closing(sqlite3.connect(tmp_path / "out.db")) as database:
        refuse = "BEGIN SELECT RAISE(ABORT, 'closed') WHERE NEW.id < 20; END"
        database.execute(f"CREATE TRIGGER closed BEFORE INSERT ON t {refuse}")
    for _ in range(2):
        with pytest.raises(CommitFailed, match="refuses a row: a trigger refuses it") as caught:
            jobs.run(jobs.sqlite_job(spark, tmp_path), tmp_path)
        assert "closed" not in str(caught.value), "its words may hold values of rows"
    (word,) = re.findall(r'drop=\["(.*?)"\]', str(caught.value))
    assert word == "out-t@1"
    jobs.run(jobs.sqlite_job(spark, tmp_path), tmp_path, drop=[word])
    assert jobs.table(tmp_path) == [*range(10), *range(20, 30)]
    jobs.run(jobs.sqlite_job(spark, tmp_path), tmp_path, drop=[word])


def test_a_decided_epoch_whose_column_was_renamed_is_told_with_the_ways_out(
    spark: SparkSession, tmp_path: Path
) -> None:
    jobs.write_input(tmp_path / "in", 2)

    def rename(before: str, after: str) -> None:
        with closing(sqlite3.connect(tmp_path / "out.db")) as database:
            database.execute(f"ALTER TABLE t RENAME COLUMN {before} TO {after}")

    with (
        hooked(at_second("decide.after", partial(rename, "id", "number"))),
        pytest.raises(CommitFailed, match="no column named id") as caught,
    ):
        jobs.run(jobs.sqlite_job(spark, tmp_path), tmp_path)
    assert re.findall(r'drop=\["(.*?)"\]', str(caught.value)) == ["out-t@1"]
    rename("number", "id")
    jobs.run(jobs.sqlite_job(spark, tmp_path), tmp_path)
    assert jobs.table(tmp_path) == list(range(20))


def test_a_table_that_is_dropped_while_its_ledger_stays(
    spark: SparkSession, tmp_path: Path
) -> None:
    jobs.write_input(tmp_path / "in", 3)

    def drop() -> None:
        with closing(sqlite3.connect(tmp_path / "out.db")) as database:
            database.execute("DROP TABLE t")

    with (
        hooked(at_second("epoch.begin", drop)),
        pytest.raises(TargetRestored, match="now holds nothing of this query"),
    ):
        jobs.run(jobs.sqlite_job(spark, tmp_path), tmp_path)
    with pytest.raises(CheckpointProblem, match="epoch 0 are missing"):
        jobs.run(jobs.sqlite_job(spark, tmp_path), tmp_path)
    assert jobs.table(tmp_path) == []
