"""What must not be aborted: what is decided, and what a newer start has opened."""

from __future__ import annotations

import time
import uuid
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from beadline import exactly_once
from beadline.ids import EpochId, PartId, QueryId
from beadline.observe import Event
from beadline.sink import CommitResult, Outcome, Part, Prepared
from beadline.sinks import KafkaSink
from beadline.sinks.kafka import KafkaPart
from beadline.sinks.kafka.client import connect
from beadline.sinks.kafka.producers import pool
from beadline.sinks.kafka.settings import KafkaSettings
from beadline.testing.servers import KafkaCluster
from tests.servers.kafka_job import Job
from tests.spark.jobs import read, run, run_and_die


@pytest.fixture
def job(spark: SparkSession, kafka_cluster: KafkaCluster, tmp_path: Path) -> Job:
    made = Job(spark, kafka_cluster, tmp_path, f"job-{uuid.uuid4().hex[:8]}")
    kafka_cluster.create_topic(f"{made.name}-out", partitions=2)
    return made


class Silent(KafkaSink):
    """A sink whose brokers do not answer once the epoch is decided."""

    def commit(self, epoch: EpochId, parts: Sequence[Prepared[KafkaPart]]) -> CommitResult:
        return CommitResult.all(parts, Outcome.UNKNOWN)


def test_a_stop_while_the_outcome_is_unknown_aborts_nothing_decided(job: Job) -> None:
    ids = job.feed(2)
    events: list[Event] = []
    silent = replace(job, make=Silent)
    query = silent.stream().start(str(job.folder / "checkpoint"), listener=events.append)
    deadline_s = time.monotonic() + 60
    while not any(event.kind == "decided" for event in events):
        assert time.monotonic() < deadline_s
        time.sleep(0.1)
    query.stop()
    assert job.open(), "what was decided was aborted by the stop"
    run(job.stream(), job.folder, listener=events.append)
    assert job.visible() == ids
    assert not any(event.kind == "lost" for event in events)


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
    client = connect(KafkaSettings(job.cluster.bootstrap_servers))
    (found,) = client.describe([parts[1].committable.transactional_id]).values()
    assert found.transaction == parts[1].committable.transaction
    assert found.state == "Ongoing"
    job.sink.abort(parts[1:])
    pool().close()


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
