"""``FileSink`` on a real HDFS: the same files, the same renames, through Hadoop's own client."""

from __future__ import annotations

import uuid
from collections import Counter
from dataclasses import replace
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest

from beadline.errors import BadSink, TargetRestored
from beadline.files import open_files
from beadline.points import hooked
from beadline.sink import Outcome, Seen
from beadline.sinks import FileSink
from tests.spark.test_file_sink import QUERY, Crash, epoch, frame_of, outcome, part, prepared

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from beadline.testing.servers import HdfsCluster

SCHEMA = pa.schema([("id", pa.int64()), ("day", pa.int64()), ("word", pa.string())])


def die(point: str) -> None:
    if point not in ("files.begun", "files.moving"):
        raise Crash


@pytest.fixture
def sink(hdfs_cluster: HdfsCluster) -> FileSink:
    return FileSink(f"{hdfs_cluster.uri}/{uuid.uuid4().hex}/out", partition_by="day")


def test_crash_commit_late_and_lost(spark: SparkSession, sink: FileSink) -> None:
    files = open_files(sink.target)
    assert sink.check(SCHEMA, QUERY).target == sink.path
    assert not files.exists(sink.target), "check creates nothing"
    first = prepared(sink, frame_of(spark, 0, 9), part(0))
    assert sink.prepare(frame_of(spark, 0, 0), part(1)) is None
    assert [one.id for one in sink.in_doubt(QUERY, "out")] == [first.id]
    with pytest.raises(Crash), hooked(die):
        sink.commit(epoch(0), [first])
    (consumed,) = files.walk(sink.target)
    files.delete(f"{sink.target}/{consumed.path}")
    assert outcome(sink.commit(epoch(0), [first])) is Outcome.COMMITTED
    second = prepared(sink, frame_of(spark, 9, 18), part(1))
    assert outcome(sink.commit(epoch(1), [second])) is Outcome.COMMITTED
    left = files.walk(sink.target)
    assert len(left) == 11
    assert consumed not in left
    for number, ready in enumerate((first, second)):
        again = sink.commit(epoch(number), [ready])
        assert outcome(again) is Outcome.ALREADY_COMMITTED
    assert files.walk(sink.target) == left
    assert sink.last_seen(QUERY, "out") == Seen(QUERY.incarnation, 1, "nonce-1")
    assert list(sink.in_doubt(QUERY, "out")) == []
    third = prepared(sink, frame_of(spark, 18, 27), part(2))
    files.delete(third.committable.folder)
    assert outcome(sink.commit(epoch(2), [third])) is Outcome.LOST
    assert files.names(sink.pending) == []
    rows = spark.read.parquet(sink.target).where("id >= 9").collect()
    assert Counter(row.id for row in rows) == Counter(range(9, 18))


@pytest.mark.parametrize("point", ["files.renaming", "files.renamed"])
def test_a_target_that_is_deleted_during_a_commit(
    spark: SparkSession, sink: FileSink, point: str
) -> None:
    files = open_files(sink.target)
    first = prepared(sink, frame_of(spark, 0, 9), part(0))
    assert outcome(sink.commit(epoch(0), [first])) is Outcome.COMMITTED
    second = prepared(sink, frame_of(spark, 9, 18), part(1))

    def delete(passed: str) -> None:
        if passed == point:
            files.delete(sink.target)

    with hooked(delete), pytest.raises(TargetRestored, match="while"):
        sink.commit(replace(epoch(1), previous=0), [second])
    assert not files.exists(sink.target), "it must not come back with a gap"
    with pytest.raises(TargetRestored, match="acknowledged epoch 0"):
        sink.commit(replace(epoch(1), previous=0), [second])
    with pytest.raises(TargetRestored, match="out@1"):
        sink.commit(epoch(1), [second])


def test_a_file_in_the_way_is_refused(sink: FileSink) -> None:
    files = open_files(sink.target)
    files.make_folder(sink.target.rpartition("/")[0])
    files.write(sink.target, b"a file")
    for path in (sink.target, f"{sink.target}/below"):
        with pytest.raises(BadSink):
            FileSink(path).check(SCHEMA, QUERY)
