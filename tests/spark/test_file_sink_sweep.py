"""``FileSink``'s leftovers and identities: what is swept, what is a stranger's, who may write."""

from __future__ import annotations

import shutil
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from beadline.errors import WrongCheckpoint
from beadline.ids import PartId
from beadline.points import hooked
from beadline.sink import Outcome, Part, Seen
from beadline.sinks import FileSink
from tests.spark.test_file_sink import (
    OTHER,
    QUERY,
    Crash,
    epoch,
    files_in,
    frame_of,
    ids,
    outcome,
    part,
    prepared,
)

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@pytest.fixture
def out(tmp_path: Path) -> Path:
    return tmp_path / "out"


def die(_: str) -> None:
    raise Crash


def test_what_a_dead_writer_left_is_swept(spark: SparkSession, out: Path) -> None:
    """In progress, pending and half moved are ours; another incarnation's and odd names are not."""
    sink = FileSink(str(out))
    hidden = out.parent / ".out.beadline"
    kept = prepared(sink, frame_of(spark, 0, 5), part(0))
    sink.commit(epoch(0), [kept])
    begun = part(1)
    attempt = hidden / str(begun.id) / "_temporary" / "0" / "_temporary" / "attempt_1_m_0"
    attempt.mkdir(parents=True)
    (attempt / "part-00000-half.parquet").write_bytes(b"PAR1")
    pending = prepared(sink, frame_of(spark, 5, 10), part(1, generation=2))
    half = prepared(sink, frame_of(spark, 10, 15), part(1, generation=3))
    with pytest.raises(Crash), hooked(die):
        sink.commit(epoch(1), [half])
    strangers = [hidden / str(part(1, query=OTHER).id), hidden / "beadline~x", hidden / "notes"]
    for stranger in strangers:
        stranger.mkdir()
    doubted = list(sink.in_doubt(QUERY, "out"))
    assert {one.id for one in doubted} == {begun.id, pending.id, half.id}
    found = {one.id: one.committable for one in doubted}[pending.id]
    assert found.is_same(pending.committable)
    assert found.files == pending.committable.files
    visible = files_in(out)
    for _ in range(2):
        sink.abort(doubted)
        assert list(sink.in_doubt(QUERY, "out")) == []
    assert files_in(out) == visible
    assert sorted(path.name for path in hidden.iterdir()) == sorted(
        stranger.name for stranger in strangers
    )


def test_a_failed_job_leaves_no_task_output_to_double(spark: SparkSession, out: Path) -> None:
    """Hadoop's committer of version 2 would: a task's files are in the output once it commits.

    The first task has committed when the second fails, at the end of its many rows.
    """
    sink = FileSink(str(out))
    frame = spark.range(0, 4_000_000, 1, 2).where("id < 10 OR id >= 2000000")
    fails = frame.selectExpr("IF(id = 3999999, raise_error('late'), id) AS id")
    conf = spark.sparkContext._jsc.hadoopConfiguration()
    key = "mapreduce.fileoutputcommitter.algorithm.version"
    before = conf.get(key)
    conf.set(key, "2")
    try:
        with pytest.raises(Exception, match="late"):
            sink.prepare(fails, part(0))
    finally:
        conf.set(key, before)
    assert all(one.committable.files == () for one in sink.in_doubt(QUERY, "out"))
    sink.abort(list(sink.in_doubt(QUERY, "out")))
    assert files_in(out.parent) == []


def test_another_query_of_the_same_name_is_refused(spark: SparkSession, out: Path) -> None:
    sink = FileSink(str(out))
    sink.commit(epoch(0), [prepared(sink, frame_of(spark, 0, 5), part(0))])
    assert sink.last_seen(OTHER, "out") == Seen(QUERY.incarnation, 0, "nonce-0")
    foreign = prepared(sink, frame_of(spark, 5, 9), part(0, query=OTHER))
    with pytest.raises(WrongCheckpoint, match="another query of this name"):
        sink.commit(epoch(0, OTHER), [foreign])
    assert ids(spark, out) == Counter(range(5))


def test_starting_over_with_a_deleted_target(spark: SparkSession, out: Path) -> None:
    """The hidden folder may stay; a crash in the first commit does not bring old marks back."""
    sink = FileSink(str(out))
    sink.commit(epoch(7), [prepared(sink, frame_of(spark, 0, 5), part(7))])
    shutil.rmtree(out)
    assert sink.last_seen(OTHER, "out") is None
    ready = prepared(sink, frame_of(spark, 5, 9), part(0, query=OTHER))
    with pytest.raises(Crash), hooked(die):
        sink.commit(epoch(0, OTHER), [ready])
    assert sink.last_seen(OTHER, "out") is None
    assert outcome(sink.commit(epoch(0, OTHER), [ready])) is Outcome.COMMITTED
    assert sink.last_seen(OTHER, "out") == Seen(OTHER.incarnation, 0, "nonce-0")
    assert ids(spark, out) == Counter(range(5, 9))


def test_two_sinks_of_one_query_on_one_target(spark: SparkSession, out: Path) -> None:
    """One sink's mark does not say that the other's epoch is finished."""
    sink = FileSink(str(out))
    twin = Part(PartId(QUERY.name, QUERY.incarnation, "twin", 1, 0, 0, 1))
    one = prepared(sink, frame_of(spark, 0, 5), part(0))
    other = prepared(sink, frame_of(spark, 5, 10), twin)
    assert outcome(sink.commit(epoch(0), [one])) is Outcome.COMMITTED
    assert outcome(sink.commit(epoch(0), [other])) is Outcome.COMMITTED
    assert ids(spark, out) == Counter(range(10))


def test_a_staging_folder_of_ones_own(spark: SparkSession, out: Path, tmp_path: Path) -> None:
    """Shared by two targets, and exchanged for the default between crash and recovery."""
    staging = tmp_path / "staging"
    sink = FileSink(str(out), staging=str(staging))
    beside = FileSink(str(tmp_path / "deeper" / "out"), staging=str(staging))
    ready = prepared(sink, frame_of(spark, 0, 5), part(0))
    assert not (tmp_path / ".out.beadline").exists()
    # The other target's sink may have been removed from the query (rule 27).
    assert [one.id for one in beside.in_doubt(QUERY, "out")] == [ready.id]
    assert [one.id for one in sink.in_doubt(QUERY, "out")] == [ready.id]
    sink.commit(epoch(0), [ready])
    assert beside.last_seen(QUERY, "out") is None
    files_in(out)[0].unlink()
    left = files_in(out)
    moved = FileSink(str(out))
    assert outcome(moved.commit(epoch(0), [ready])) is Outcome.ALREADY_COMMITTED
    assert files_in(out) == left


def test_odd_names_in_paths_and_partitions(spark: SparkSession, tmp_path: Path) -> None:
    out = tmp_path / "of a % kind+#1"
    sink = FileSink(str(out), partition_by=("_word",))
    words = ["a/b", "c d", "e=f", "50%", ".hidden", "_under"]
    frame = spark.createDataFrame(list(enumerate(words)), "id long, _word string")
    sink.commit(epoch(0), [prepared(sink, frame, part(0))])
    rows = spark.read.parquet(str(out)).collect()
    assert {row._word: row.id for row in rows} == {word: n for n, word in enumerate(words)}
