"""A decided part that the outside system threw away: replayed, or the query stops."""

from __future__ import annotations

import uuid
from pathlib import Path

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from beadline import Stream, exactly_once
from beadline.errors import NotDeterministic, PartLost
from beadline.observe import Event
from tests.spark.expiring import ExpiringSink
from tests.spark.jobs import read, rows_sink, run, run_and_die, table, write_input


def job(spark: SparkSession, folder: Path, sink: ExpiringSink) -> Stream:
    """Rows in two parts, into SQLite and into the sink that forgets."""
    frame = read(spark, folder / "in").repartition(2, "id")
    return exactly_once(frame, "job").to(rows_sink(folder)).to(sink)


def stateful(spark: SparkSession, folder: Path, sink: ExpiringSink) -> Stream:
    """First sight of each id, which is state: duplicates are dropped over all epochs."""
    frame = read(spark, folder / "in").dropDuplicates(["id"])
    return exactly_once(frame, "job").to(rows_sink(folder)).to(sink)


@pytest.fixture
def sink(tmp_path: Path) -> ExpiringSink:
    """A broker of the test's own."""
    return ExpiringSink(str(tmp_path / "broker"))


@pytest.mark.parametrize("build", [job, stateful])
@pytest.mark.parametrize("lost", [1, 2])
def test_lost_parts_are_replayed_into_their_sink_alone(
    spark: SparkSession, tmp_path: Path, sink: ExpiringSink, build: object, lost: int
) -> None:
    assert callable(build)
    ids = write_input(tmp_path / "in", 3, rows=40)
    run_and_die(build(spark, tmp_path, sink), tmp_path, "decide.after", times=2)
    assert len(sink.open_names()) == 2
    sink.expire(lost)
    events: list[Event] = []
    run(build(spark, tmp_path, sink), tmp_path, listener=events.append)
    assert sorted(row["id"] for row in sink.visible()) == ids
    assert table(tmp_path) == ids
    assert sink.open_names() == []
    kinds = [event.kind for event in events]
    assert kinds.count("lost") == 1
    assert kinds.count("replayed") == 1


@pytest.mark.parametrize("point", ["prepare.after", "decide.before", "decide.after"])
def test_a_death_in_the_replay(
    spark: SparkSession, tmp_path: Path, sink: ExpiringSink, point: str
) -> None:
    ids = write_input(tmp_path / "in", 3)
    run_and_die(job(spark, tmp_path, sink), tmp_path, "decide.after", times=2)
    sink.expire(1)
    run_and_die(job(spark, tmp_path, sink), tmp_path, point)
    run(job(spark, tmp_path, sink), tmp_path)
    assert sorted(row["id"] for row in sink.visible()) == ids
    assert table(tmp_path) == ids
    assert sink.open_names() == []


def test_a_plan_that_is_not_deterministic_stops(
    spark: SparkSession, tmp_path: Path, sink: ExpiringSink
) -> None:
    write_input(tmp_path / "in", 3)

    def changing(frame: DataFrame) -> DataFrame:
        return frame.withColumn("k", F.lit(uuid.uuid4().hex))

    frame = read(spark, tmp_path / "in").repartition(2, "id")
    stream = exactly_once(frame, "job").to(rows_sink(tmp_path)).to(sink, rows=changing)
    run_and_die(stream, tmp_path, "decide.after", times=2)
    sink.expire(1)
    with pytest.raises(NotDeterministic, match="not deterministic"):
        run(stream, tmp_path)
    assert len(sink.visible()) < 20, "the lost part was published all the same"
    assert sink.open_names() == [], "what the replay prepared was left open"


def test_parts_lost_again_and_again_stop_the_query(
    spark: SparkSession, tmp_path: Path, sink: ExpiringSink
) -> None:
    ids = write_input(tmp_path / "in", 3)

    def forget(event: Event) -> None:
        if event.kind == "decided" and event.epoch == 1:
            sink.expire(2)
        if event.kind == "replayed":
            sink.expire(2)

    with pytest.raises(PartLost, match="transaction timeout"):
        run(job(spark, tmp_path, sink), tmp_path, listener=forget)
    run(job(spark, tmp_path, sink), tmp_path)
    assert sorted(row["id"] for row in sink.visible()) == ids
    assert table(tmp_path) == ids
