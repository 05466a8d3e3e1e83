"""The protocol on a real Kafka and a real Spark, in one process whose Python workers live on.

What needs a real kill is in ``tests/kill``. Here a driver's death is an exception, and the Python
workers with their live producers are those of the next start: the harder case for rules 17 and 18.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import ClassVar

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from beadline import at_least_once, sources
from beadline.errors import PrepareFailed
from beadline.ids import EpochId, PartId, QueryId
from beadline.observe import Event
from beadline.points import hooked
from beadline.sink import CommitResult, Outcome, Part, Prepared
from beadline.sinks import KafkaSink
from beadline.sinks.kafka import KafkaPart
from beadline.sinks.kafka.client import connect
from beadline.sinks.kafka.producers import pool
from beadline.spark import batch_size
from beadline.testing.servers import KafkaCluster
from beadline.testing.servers.ports import LOOPBACK, free_ports
from tests.servers.kafka_job import PARTS, Job
from tests.slowness import patient
from tests.spark.jobs import read, run, run_and_die, run_and_stop, write_input

SOON_S = patient(30.0)


@pytest.fixture
def job(spark: SparkSession, kafka_cluster: KafkaCluster, tmp_path: Path) -> Job:
    made = Job(spark, kafka_cluster, tmp_path, f"job-{uuid.uuid4().hex[:8]}")
    kafka_cluster.create_topic(f"{made.name}-out", partitions=2)
    return made


Commit = tuple[KafkaSink, EpochId, Sequence[Prepared[KafkaPart]]]


class Noting(KafkaSink):
    """Keeps every commit that is asked of it, to be made again by a zombie."""

    made: ClassVar[list[Commit]] = []

    def commit(self, epoch: EpochId, parts: Sequence[Prepared[KafkaPart]]) -> CommitResult:
        self.made.append((self, epoch, parts))
        return super().commit(epoch, parts)


@pytest.fixture
def commits() -> Iterator[list[Commit]]:
    yield Noting.made
    Noting.made.clear()


def again(commit: Commit) -> set[Outcome]:
    """Commit what was committed before, as a driver that lost the answer, or slept, does."""
    sink, epoch, parts = commit
    return set(KafkaSink.commit(sink, epoch, parts).outcomes.values())


def test_a_second_commit_while_the_next_epoch_is_open(job: Job, commits: list[Commit]) -> None:
    """Rule 17: the same writers hold e+1 by then, and it must not show by a commit of e."""
    job = replace(job, make=Noting)
    ids = job.feed(5)
    seen: list[tuple[set[Outcome], list[int], int]] = []

    def hook(point: str) -> None:
        if point == "prepare.after" and commits:
            answers = again(commits[-1])
            seen.append((answers, job.visible(), len(job.open())))

    with hooked(hook):
        run(job.stream(), job.folder)
    fine = {Outcome.COMMITTED, Outcome.ALREADY_COMMITTED}
    assert [visible for _, visible, _ in seen] == [ids[: 10 * epoch] for epoch in range(1, 5)]
    assert all(answers <= fine and still_open == PARTS for answers, _, still_open in seen)
    assert job.visible() == ids


def test_a_late_commit_of_an_older_start(job: Job, commits: list[Commit]) -> None:
    """Rule 10: it decided, slept, and commits long after its heir has, beside an open epoch."""
    job = replace(job, make=Noting)
    ids = job.feed(6)
    run_and_die(job.stream(), job.folder, "kafka.commit", times=2)
    assert len(commits) == 2
    assert job.visible() == ids[:10]
    shown: list[list[int]] = []

    def hook(point: str) -> None:
        if point == "prepare.after":
            again(commits[1])
            shown.append(job.visible())

    with hooked(hook):
        run(job.stream(), job.folder)
    assert shown == [ids[: 10 * epoch] for epoch in range(2, 6)]
    assert job.visible() == ids


@pytest.mark.parametrize("point", ["prepare.after", "decide.before"])
def test_a_crash_with_the_next_epoch_prepared(job: Job, point: str) -> None:
    ids = job.feed(4)
    run_and_die(job.stream(), job.folder, point, times=2)
    assert len(job.open()) == PARTS
    assert job.visible() == ids[:10]
    told: list[Event] = []
    run(job.stream(), job.folder, listener=told.append)
    assert [event.details for event in told if event.kind == "swept"] == [{"orphans": PARTS}]
    assert job.visible() == ids
    assert job.open() == []


@pytest.mark.parametrize("rows_known_small_after", [batch_size._KNOWN_ROWS, 1])
def test_a_prepare_that_fails_half_way_leaves_nothing_open(
    job: Job, monkeypatch: pytest.MonkeyPatch, rows_known_small_after: int
) -> None:
    """One part of the epoch is prepared, or still on its way to it, and the other fails for ever.

    Rows that are known to be small come to the workers in another way, and sooner.
    """
    monkeypatch.setattr(batch_size, "_KNOWN_ROWS", rows_known_small_after)
    ids = job.feed(3)
    frame = read(job.spark, job.folder / "in").repartition(PARTS, "id")
    broken = frame.selectExpr("IF(id = 15, raise_error('no fifteen'), k) AS k", "id")
    with pytest.raises(PrepareFailed, match="no fifteen"):
        run(job.to_sink(broken), job.folder)
    assert job.visible() == ids[:10]
    assert job.open() == []
    run(job.stream(), job.folder)
    assert job.visible() == ids


def part(job: Job, epoch: int, attempt: int, decided: tuple[PartId, ...] = ()) -> Part:
    return Part(PartId(job.name, "a" * 32, "out", 1, epoch, 0, attempt), decided, slot=0)


def prepared(job: Job, given: Part, value: str) -> Prepared[KafkaPart]:
    batch = pa.RecordBatch.from_pydict({"key": ["k"], "value": [value]})
    committable = job.sink.prepare(iter([batch]), given)
    assert committable is not None
    return Prepared(given.id, 1, committable)


@pytest.mark.parametrize("won", [True, False])
def test_a_worker_with_a_losing_attempt(job: Job, won: bool) -> None:
    """Rule 18: that epoch 0 was decided is not enough; was it this attempt?"""
    job.sink.open(QueryId(job.name, "a" * 32, "file:/c"), "out")
    mine = prepared(job, part(job, 0, attempt=0), "0")
    if won:
        job.sink.commit(_epoch(job, 0), [mine])
    decided = mine.id if won else replace(mine.id, attempt=1)
    # The next epoch of the same parity: the writer of the same name.
    later = prepared(job, part(job, 2, attempt=2, decided=(decided,)), "2")
    assert later.committable.transactional_id == mine.committable.transactional_id
    same_writer = later.committable.producer_epoch == mine.committable.producer_epoch
    assert same_writer == won
    assert job.visible() == ([0] if won else [])
    job.sink.commit(_epoch(job, 2), [later])
    assert job.visible() == ([0, 2] if won else [2])
    pool().close()


def _epoch(job: Job, number: int) -> EpochId:
    return EpochId(QueryId(job.name, "a" * 32, "file:/c"), number, uuid.uuid4().hex, number + 1)


def test_restarts_with_workers_that_live_on(job: Job) -> None:
    """No doubles, and no more names, however often; the brokers remember every name for days."""
    ids: list[int] = []
    names: list[int] = []
    for start in range(4):
        ids += job.feed(2, first=2 * start)
        if start % 2:
            run_and_die(job.stream(), job.folder, "decide.after", times=2)
        run(job.stream(), job.folder)
        assert job.visible() == ids
        assert job.open() == []
        names.append(len(job.ids()))
    assert names[-1] == names[1] <= 2 * PARTS * 2


def test_two_queries_share_the_workers(job: Job, kafka_cluster: KafkaCluster) -> None:
    other = replace(job, folder=job.folder / "other", name=f"{job.name}-2")
    kafka_cluster.create_topic(f"{other.name}-out", partitions=2)
    wanted = {each.name: each.feed(5) for each in (job, other)}
    started = [
        each.stream().start(str(each.folder / "checkpoint"), available_now=True)
        for each in (job, other)
    ]
    assert all(query.awaitTermination(120) for query in started)
    for each in (job, other):
        assert each.visible() == wanted[each.name]
        assert each.open() == []


def test_many_more_parts_than_cores(job: Job) -> None:
    """Rule 19: 64 parts on 2 cores, so each worker holds many transactions open at a time."""
    write_input(job.folder / "in", 3, rows=640)
    most: list[int] = []

    def hook(point: str) -> None:
        if point == "decide.before":
            most.append(len(job.open()))

    with hooked(hook):
        run(job.stream(parts=64), job.folder)
    assert job.visible() == list(range(3 * 640))
    assert min(most) > 32  # not every part has rows
    assert job.open() == []
    assert len(job.ids()) <= 2 * 2 * 64


def test_orphans_are_gone_soon_though_the_source_is_down(job: Job) -> None:
    """Rule 15: readers are held up by them, and the first epoch may not come for hours."""
    job.feed(2)
    run_and_die(job.stream(), job.folder, "decide.before", times=2)
    assert len(job.open()) == PARTS
    (port,) = free_ports(1)
    down = sources.kafka(job.spark, bootstrap_servers=f"{LOOPBACK}:{port}", topic="nowhere")
    frame = down.selectExpr("CAST(key AS STRING) AS k", "CAST(value AS STRING) AS id")
    began_s = time.monotonic()
    query = job.to_sink(frame).start(str(job.folder / "checkpoint"))
    try:
        while job.open():
            assert time.monotonic() - began_s < SOON_S
            time.sleep(0.02)
        seconds = time.monotonic() - began_s
    finally:
        query.stop()
    assert seconds < patient(2.0)
    assert job.visible() == list(range(10))


@pytest.mark.parametrize(
    "point", ["prepare.before", "prepare.after", "kafka.commit", "epoch.return"]
)
def test_a_clean_stop_leaves_nothing_open(job: Job, point: str) -> None:
    ids = job.feed(4)
    run_and_stop(job.stream(), job.folder, point, 2)
    assert job.open() == []
    shown = len(job.visible())
    assert job.visible() == ids[:shown]
    assert shown % 10 == 0
    run(job.stream(), job.folder)
    assert job.visible() == ids


def test_at_least_once_goes_on_after_a_replay(job: Job) -> None:
    """The worker's function for preparing must not be taken for that for publishing."""
    ids = job.feed(3)
    run_and_die(job.stream(), job.folder, "decide.after")
    client = connect(job.sink.settings)
    client.end([one.transaction for one in client.describe(job.open()).values()], commit=False)
    stream = job.stream()
    (output,) = stream.outputs
    run(at_least_once(stream.frame, job.name).to(output.sink, name="out"), job.folder)
    assert job.visible() == ids
