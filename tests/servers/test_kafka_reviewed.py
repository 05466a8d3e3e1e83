"""What a review found: each of these lost rows, or aborted what was decided."""

from __future__ import annotations

import time
import uuid
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pytest
from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient
from pyspark.sql import SparkSession

from beadline import at_least_once, exactly_once
from beadline.ids import EpochId, PartId, QueryId
from beadline.observe import Event
from beadline.sink import CommitResult, Outcome, Part, Prepared
from beadline.sinks import KafkaSink
from beadline.sinks.kafka import KafkaPart, native
from beadline.sinks.kafka.producers import pool
from beadline.sinks.kafka.transactions import Transaction, connect
from beadline.testing.servers import KafkaCluster
from tests.servers.kafka_job import Job
from tests.spark.jobs import read, run, run_and_die


@pytest.fixture
def job(spark: SparkSession, kafka_cluster: KafkaCluster, tmp_path: Path) -> Job:
    made = Job(spark, kafka_cluster, tmp_path, f"job-{uuid.uuid4().hex[:8]}")
    kafka_cluster.create_topic(f"{made.name}-out", partitions=2)
    return made


@pytest.mark.parametrize("natively", [True, False])
def test_a_record_that_fails_after_it_was_queued_fails_the_part(
    job: Job, natively: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """librdkafka does not fail a transaction over every record that it could not deliver."""
    if not natively:
        monkeypatch.setattr(native, "available", lambda: False)
    query = QueryId(job.name, "a" * 32, "file:/x")
    job.sink.open(query, "out")
    part = Part(PartId(job.name, "a" * 32, "out", 1, 0, 0, 0))
    writer = pool().begin(job.sink, part)

    def send_and_prepare() -> None:
        """Refused at once if librdkafka happens to know the topic's partitions, else later."""
        writer.producer.client.produce(f"{job.name}-out", b"lost", partition=99)
        writer.prepared()

    with pytest.raises((OSError, KafkaException)):
        send_and_prepare()
    pool().discard(part)
    job.sink.close(query, "out")()
    pool().close()


def test_a_stop_while_the_outcome_is_unknown_aborts_nothing_decided(
    job: Job, monkeypatch: pytest.MonkeyPatch
) -> None:
    ids = job.feed(2)
    events: list[Event] = []

    def silent(sink: KafkaSink, epoch: EpochId, parts: list[Prepared[KafkaPart]]) -> CommitResult:
        return CommitResult.all(parts, Outcome.UNKNOWN)

    with monkeypatch.context() as patch:
        patch.setattr(KafkaSink, "commit", silent)
        query = job.stream().start(str(job.folder / "checkpoint"), listener=events.append)
        deadline_s = time.monotonic() + 60
        while not any(event.kind == "decided" for event in events):
            assert time.monotonic() < deadline_s
            time.sleep(0.1)
        query.stop()
    assert job.open(), "what was decided was aborted by the stop"
    run(job.stream(), job.folder, listener=events.append)
    assert job.visible() == ids
    assert not any(event.kind == "lost" for event in events)


def test_at_least_once_goes_on_after_a_replay(job: Job) -> None:
    """The worker's function for preparing must not be taken for that for publishing."""
    ids = job.feed(3)
    run_and_die(job.stream(), job.folder, "decide.after")
    client = connect(job.cluster.bootstrap_servers, {})
    client.end([one.transaction for one in client.describe(job.open()).values()], commit=False)
    stream = job.stream()
    (output,) = stream.outputs
    run(at_least_once(stream.frame, job.name).to(output.sink, name="out"), job.folder)
    assert job.visible() == ids


def prepared_by(job: Job, generation: int) -> Prepared[KafkaPart]:
    """The same part of the same epoch, by one start after the other."""
    rows = pa.RecordBatch.from_pydict({"value": ["v"]})
    id_ = PartId(job.name, "a" * 32, "out", generation, 0, 0, 0)
    prepared = job.sink.prepare(iter([rows]), Part(id_))
    assert prepared is not None
    return Prepared(id_, 1, prepared)


def test_a_fence_that_comes_late_spares_whoever_took_the_name_over(job: Job) -> None:
    query = QueryId(job.name, "a" * 32, "file:/x")
    job.sink.open(query, "out")
    parts = [prepared_by(job, generation) for generation in (1, 2)]
    job.sink.abort(parts[:1])  # the zombie's view of what is open
    client = connect(job.cluster.bootstrap_servers, {})
    (found,) = client.describe([parts[1].committable.transactional_id]).values()
    mine = parts[1].committable
    assert found.transaction == Transaction(
        mine.transactional_id, mine.producer_id, mine.producer_epoch
    )
    assert found.state == "Ongoing"
    job.sink.abort(parts[1:])
    pool().close()


@pytest.mark.parametrize("index", [0, 1, 2])
def test_the_control_topic_has_every_replica_though_a_broker_is_down(
    kafka_trio: KafkaCluster, index: int
) -> None:
    """One that is down at the first start must not be missing for good.

    One of the three is the controller: then creating has to wait until another is elected.
    """
    name = f"job-{uuid.uuid4().hex[:8]}"
    kafka_trio.create_topic(f"{name}-out")
    sink = KafkaSink(f"{name}-out", kafka_trio.bootstrap_servers)
    victim = kafka_trio.brokers[index]
    victim.kill()
    try:
        sink.open(QueryId(name, "a" * 32, "file:/x"), "out")
        admin = AdminClient({"bootstrap.servers": kafka_trio.bootstrap_servers})
        found = admin.list_topics(timeout=10).topics[sink.control_topic_of(name)]
    finally:
        victim.restart()
        kafka_trio.wait_ready()
    assert len(found.partitions[0].replicas) == 3


def test_another_control_topic_spares_what_is_decided(job: Job) -> None:
    """Its markers are not where the new start looks for them; the transactions are the same."""
    ids = job.feed(4)
    run_and_die(job.stream(), job.folder, "decide.after", times=2)
    assert job.visible() == ids[:10]
    moved = replace(job.sink, control_topic=f"{job.name}-elsewhere")
    frame = read(job.spark, job.folder / "in").repartition(2, "id")
    rows = frame.selectExpr("k AS key", "CAST(id AS STRING) AS value")
    told: list[Event] = []
    run(exactly_once(rows, job.name).to(moved, name="out"), job.folder, listener=told.append)
    assert [event.details for event in told if event.kind == "recovered"] == [{"lost": []}]
    assert [event for event in told if event.kind == "swept"] == []
    assert job.visible() == ids


def test_a_close_that_comes_late_spares_a_newer_start(job: Job) -> None:
    query = QueryId(job.name, "a" * 32, "file:/x")
    job.sink.open(query, "out")
    ending = []
    for generation in (1, 2):
        prepared_by(job, generation)
        ending.append(job.sink.close(query, "out"))
    ending[0]()  # what the older start saw
    assert len(job.open()) == 1
    ending[1]()
    assert job.open() == []
    pool().close()
