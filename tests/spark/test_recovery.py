"""Recovery on Spark: every way in which an epoch can come back, and what must not be believed."""

from __future__ import annotations

import os
import shutil
import sqlite3
from contextlib import closing
from pathlib import Path

import pyspark
import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import SparkSession

from beadline import Stream, at_least_once, exactly_once
from beadline.errors import CheckpointProblem, WrongCheckpoint
from beadline.observe import Event
from beadline.points import POINTS
from beadline.sinks import SqliteSink
from tests.spark.jobs import (
    read,
    rows_sink,
    run,
    run_and_die,
    run_and_stop,
    sqlite_job,
    table,
    write_input,
)

# Reached on the driver in every epoch; the others need a worker, a recovery or another sink.
EVERY_EPOCH = [
    "append.written",
    "append.linked",
    "epoch.begin",
    "prepare.before",
    "prepare.after",
    "decide.before",
    "decide.after",
    "ledger.before",
    "ledger.after",
    "commit.between",
    "commit.after",
    "epoch.return",
]
AT_START = ["claim.before", "claim.after", "start.after"]


def counted(spark: SparkSession, folder: Path) -> Stream:
    """A stateful job: running counts per key, every change added as a row."""
    counts = read(spark, folder / "in").groupBy("k").count()
    return exactly_once(counts, "job").to(SqliteSink(folder / "out.db", "t", "upsert", "k"))


@pytest.mark.parametrize("point", EVERY_EPOCH)
def test_a_death_in_any_epoch(spark: SparkSession, tmp_path: Path, point: str) -> None:
    ids = write_input(tmp_path / "in", 3)
    run_and_die(sqlite_job(spark, tmp_path), tmp_path, point, times=2)
    run(sqlite_job(spark, tmp_path), tmp_path)
    assert table(tmp_path) == ids
    assert list((tmp_path / ".out.db.beadline").rglob("*~*")) == []


@pytest.mark.parametrize("point", [*AT_START, "recover.before", "recover.after", "epoch.again"])
def test_a_death_in_the_recovery_from_a_death(
    spark: SparkSession, tmp_path: Path, point: str
) -> None:
    ids = write_input(tmp_path / "in", 3)
    run_and_die(sqlite_job(spark, tmp_path), tmp_path, "decide.after", times=2)
    run_and_die(sqlite_job(spark, tmp_path), tmp_path, point)
    run(sqlite_job(spark, tmp_path), tmp_path)
    assert table(tmp_path) == ids


@pytest.mark.parametrize("point", ["decide.before", "decide.after", "commit.after", "epoch.again"])
def test_a_stateful_epoch_that_is_redelivered_moves_its_state_on(
    spark: SparkSession, tmp_path: Path, point: str
) -> None:
    write_input(tmp_path / "in", 4)
    run_and_die(
        counted(spark, tmp_path),
        tmp_path,
        point if point != "epoch.again" else "decide.after",
        times=2,
        output_mode="update",
    )
    if point == "epoch.again":
        run_and_die(counted(spark, tmp_path), tmp_path, point, output_mode="update")
    run(counted(spark, tmp_path), tmp_path, output_mode="update")
    assert table(tmp_path, "k, count") == [("k0", 14), ("k1", 13), ("k2", 13)]


def test_a_death_while_spark_notes_its_first_epoch(spark: SparkSession, tmp_path: Path) -> None:
    """Spark would refuse to begin beside what is left of the file under its hidden name."""
    ids = write_input(tmp_path / "in", 2)
    run_and_die(sqlite_job(spark, tmp_path), tmp_path, "start.after")
    offsets = tmp_path / "checkpoint" / "offsets"
    offsets.mkdir()
    for name in (".0.4f1c.tmp", "..0.4f1c.tmp.crc", ".0.crc"):
        (offsets / name).write_text("v1")
    run(sqlite_job(spark, tmp_path), tmp_path)
    assert table(tmp_path) == ids
    assert {name for name in os.listdir(offsets) if name.isdigit()} == {"0", "1"}


@pytest.mark.skipif(pyspark.__version__.startswith("4.0"), reason="it begins all the same")
def test_unknown_files_among_the_offsets_are_not_deleted(
    spark: SparkSession, tmp_path: Path
) -> None:
    write_input(tmp_path / "in", 2)
    offsets = tmp_path / "checkpoint" / "offsets"
    offsets.mkdir(parents=True)
    (offsets / "notes.txt").write_text("mine")
    (offsets / ".0.4f1c.tmp").write_text("v1")
    with pytest.raises(StreamingQueryException, match="should be empty"):
        run(sqlite_job(spark, tmp_path), tmp_path)
    assert sorted(os.listdir(offsets)) == [".0.4f1c.tmp", "notes.txt"]


@pytest.mark.parametrize("epoch", [0, 1])
def test_a_death_between_the_files_of_an_epoch_and_its_offsets(
    spark: SparkSession, tmp_path: Path, epoch: int
) -> None:
    """Spark's file source has noted the files; they come with those after them."""
    ids = write_input(tmp_path / "in", 4)
    run_and_die(sqlite_job(spark, tmp_path), tmp_path, "epoch.begin", times=epoch + 1)
    (tmp_path / "checkpoint" / "offsets" / str(epoch)).unlink()
    told: list[Event] = []
    run(sqlite_job(spark, tmp_path), tmp_path, listener=told.append)
    assert table(tmp_path) == ids
    rows = [event.details["rows"] for event in told if event.kind == "committed"]
    assert rows[0] == {"out-t": 20}  # two files


def test_complete_mode(spark: SparkSession, tmp_path: Path) -> None:
    write_input(tmp_path / "in", 3)
    run_and_die(counted(spark, tmp_path), tmp_path, "decide.after", 2, output_mode="complete")
    run(counted(spark, tmp_path), tmp_path, output_mode="complete")
    assert table(tmp_path, "k, count") == [("k0", 10), ("k1", 10), ("k2", 10)]


@pytest.mark.parametrize("point", EVERY_EPOCH)
def test_stop_at_every_crash_point(spark: SparkSession, tmp_path: Path, point: str) -> None:
    ids = write_input(tmp_path / "in", 4)
    run_and_stop(sqlite_job(spark, tmp_path), tmp_path, point, 2)
    run(sqlite_job(spark, tmp_path), tmp_path)
    assert table(tmp_path) == ids


def test_every_driver_side_point_is_tried_here_or_by_the_kill_tests() -> None:
    elsewhere = {"prepare.part", "prepare.acked", "prepare.between", "staging.written"}
    elsewhere |= {
        "files.written",
        "files.begun",
        "files.moving",
        "files.renaming",
        "files.renamed",
        "recover.before",
        "recover.after",
    }
    assert set(POINTS) == {*EVERY_EPOCH, *AT_START, "epoch.again", *elsewhere}


def test_a_deleted_checkpoint_is_noticed(spark: SparkSession, tmp_path: Path) -> None:
    ids = write_input(tmp_path / "in", 2)
    run(sqlite_job(spark, tmp_path), tmp_path)
    shutil.rmtree(tmp_path / "checkpoint")
    with pytest.raises(WrongCheckpoint, match="another query named 'job'") as refused:
        run(sqlite_job(spark, tmp_path), tmp_path)
    assert table(tmp_path) == ids
    # What the error says, done: the query starts over.
    advice = "DELETE FROM _beadline_ledger WHERE query = 'job'"
    assert advice in str(refused.value)
    with closing(sqlite3.connect(tmp_path / "out.db")) as database, database:
        database.execute("DELETE FROM t")
        database.execute(advice)
    run(sqlite_job(spark, tmp_path), tmp_path)
    assert table(tmp_path) == ids


def test_a_deleted_log_is_noticed(spark: SparkSession, tmp_path: Path) -> None:
    ids = write_input(tmp_path / "in", 2)
    run(sqlite_job(spark, tmp_path), tmp_path)
    shutil.rmtree(tmp_path / "checkpoint" / "beadline")
    with pytest.raises(WrongCheckpoint, match="no decision log"):
        run(sqlite_job(spark, tmp_path), tmp_path)
    assert table(tmp_path) == ids


def test_a_copied_checkpoint_is_noticed(spark: SparkSession, tmp_path: Path) -> None:
    write_input(tmp_path / "in", 2)
    run(sqlite_job(spark, tmp_path), tmp_path)
    shutil.copytree(tmp_path / "checkpoint", tmp_path / "copy")
    with pytest.raises(WrongCheckpoint, match="copied or moved"):
        sqlite_job(spark, tmp_path).start(str(tmp_path / "copy"))


def test_a_rewound_checkpoint_is_noticed(spark: SparkSession, tmp_path: Path) -> None:
    write_input(tmp_path / "in", 2)
    run(sqlite_job(spark, tmp_path), tmp_path)
    shutil.copytree(tmp_path / "checkpoint", tmp_path / "backup")
    ids = [*range(20), *write_input(tmp_path / "in", 2, first=2)]
    run(sqlite_job(spark, tmp_path), tmp_path)
    shutil.rmtree(tmp_path / "checkpoint")
    shutil.copytree(tmp_path / "backup", tmp_path / "checkpoint")
    with pytest.raises(WrongCheckpoint, match="rewound"):
        run(sqlite_job(spark, tmp_path), tmp_path)
    assert table(tmp_path) == ids


@pytest.mark.parametrize("folder", ["commits", "offsets"])
def test_a_partly_rewound_checkpoint_is_noticed(
    spark: SparkSession, tmp_path: Path, folder: str
) -> None:
    ids = write_input(tmp_path / "in", 3)
    run(sqlite_job(spark, tmp_path), tmp_path)
    for name in ("1", "2", ".1.crc", ".2.crc"):
        (tmp_path / "checkpoint" / folder / name).unlink(missing_ok=True)
    with pytest.raises(WrongCheckpoint, match="rewound"):
        run(sqlite_job(spark, tmp_path), tmp_path)
    assert table(tmp_path) == ids


def test_a_sink_removed_with_a_decided_epoch(spark: SparkSession, tmp_path: Path) -> None:
    ids = write_input(tmp_path / "in", 3)
    frame = read(spark, tmp_path / "in")
    one, other = rows_sink(tmp_path), rows_sink(tmp_path, "u")
    both = exactly_once(frame, "job").to(one, name="one").to(other, name="other")
    run_and_die(both, tmp_path, "decide.after", times=2)
    alone = exactly_once(frame, "job").to(one, name="one")
    with pytest.raises(CheckpointProblem, match=r'drop=\["other"\]'):
        run(alone, tmp_path)
    moved = alone.to(rows_sink(tmp_path, "elsewhere"), name="other")
    with pytest.raises(CheckpointProblem, match="now points to"):
        run(moved, tmp_path)
    events: list[Event] = []
    run(alone, tmp_path, drop=["other", "one"], listener=events.append)  # one is there: finished
    assert [e.details for e in events if e.kind == "dropped"] == [
        {"sink": "other", "epochs": "epoch 1"}
    ]
    assert table(tmp_path) == ids
    assert table(tmp_path, name="u") == ids[:10]


def test_a_sink_removed_or_added_between_epochs(spark: SparkSession, tmp_path: Path) -> None:
    ids = write_input(tmp_path / "in", 2)
    frame = read(spark, tmp_path / "in")
    one, other = rows_sink(tmp_path), rows_sink(tmp_path, "u")
    run(exactly_once(frame, "job").to(one), tmp_path)
    ids += write_input(tmp_path / "in", 1, first=2)
    run(exactly_once(frame, "job").to(one).to(other), tmp_path)
    ids += write_input(tmp_path / "in", 1, first=3)
    run(exactly_once(frame, "job").to(one), tmp_path)
    assert table(tmp_path) == ids
    assert table(tmp_path, name="u") == ids[20:30]
    back = exactly_once(frame, "job").to(one).to(other)
    with pytest.raises(
        CheckpointProblem, match=r"'out-u' .*removed from the query .*rows of epoch 3 are missing"
    ):
        run(back, tmp_path)
    ids += write_input(tmp_path / "in", 1, first=4)
    run(back, tmp_path, drop=["out-u"])
    assert table(tmp_path) == ids
    assert table(tmp_path, name="u") == ids[20:30] + ids[40:]


def test_a_sink_added_to_a_decided_epoch_begins_at_the_next(
    spark: SparkSession, tmp_path: Path
) -> None:
    ids = write_input(tmp_path / "in", 3)
    run_and_die(sqlite_job(spark, tmp_path), tmp_path, "decide.after", times=2)
    run(sqlite_job(spark, tmp_path).to(rows_sink(tmp_path, "u")), tmp_path)
    assert table(tmp_path) == ids
    assert table(tmp_path, name="u") == ids[20:]


def test_the_mode_changed_and_changed_back(spark: SparkSession, tmp_path: Path) -> None:
    ids = write_input(tmp_path / "in", 3)
    sink = rows_sink(tmp_path)
    run_and_die(sqlite_job(spark, tmp_path), tmp_path, "decide.after", times=2)
    run(at_least_once(read(spark, tmp_path / "in"), "job").to(sink), tmp_path)
    assert table(tmp_path) == ids  # what was decided is finished, and not published again
    ids += write_input(tmp_path / "in", 2, first=3)
    run(at_least_once(read(spark, tmp_path / "in"), "job").to(sink), tmp_path)
    ids += write_input(tmp_path / "in", 2, first=5)
    run(sqlite_job(spark, tmp_path), tmp_path)
    assert table(tmp_path) == ids
