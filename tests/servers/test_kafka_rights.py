"""Topics that are not there yet, or not for everybody: what is waited for, refused and allowed."""

from __future__ import annotations

import threading
import time
import uuid
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from confluent_kafka.admin import AdminClient
from confluent_kafka.admin._acl import AclBinding, AclOperation, AclPermissionType
from confluent_kafka.admin._resource import ResourcePatternType, ResourceType
from pyspark.sql import SparkSession

from beadline import exactly_once
from beadline.ids import PartId, QueryId
from beadline.sink import Part, Prepared
from beadline.sinks import KafkaSink
from beadline.sinks.kafka.producers import pool
from beadline.testing.servers import KafkaCluster, kafka
from tests.spark import jobs

LOGIN = {
    "security.protocol": "SASL_PLAINTEXT",
    "sasl.mechanism": "PLAIN",
    "sasl.username": "bob",
    "sasl.password": "bobs-secret",
}
QUERY = "orders"
PART = PartId(QUERY, "a" * 32, "topic", 1, 0, 0, 0)


@pytest.fixture(autouse=True)
def producers() -> Iterator[None]:
    yield
    pool().close()


@pytest.fixture(scope="module")
def guarded() -> Iterator[KafkaCluster]:
    """A broker where bob has the rights that docs/kafka.md names, for one query and one topic."""
    with kafka(users={"admin": "top-secret", "bob": "bobs-secret"}) as cluster:
        cluster.create_topic("t", partitions=2)
        cluster.create_topic("secret")
        topic, operation = ResourceType.TOPIC, AclOperation
        allow(cluster, topic, "t", operation.WRITE)
        allow(
            cluster, topic, f"beadline-{QUERY}", operation.WRITE, operation.READ, operation.CREATE
        )
        ids = f"beadline-txn~{QUERY}~"
        allow(cluster, ResourceType.TRANSACTIONAL_ID, ids, operation.DESCRIBE, operation.WRITE, ANY)
        allow(cluster, ResourceType.BROKER, "kafka-cluster", operation.DESCRIBE)
        yield cluster
        pool().close()


ANY = ResourcePatternType.PREFIXED


def allow(cluster: KafkaCluster, kind: Any, name: str, *rights: Any) -> None:
    """Let bob do this; with ``ANY``, to all names that begin so."""
    pattern = ANY if ANY in rights else ResourcePatternType.LITERAL
    bindings = [
        AclBinding(kind, name, pattern, "User:bob", "*", right, AclPermissionType.ALLOW)
        for right in rights
        if right is not ANY
    ]
    admin = AdminClient({"bootstrap.servers": cluster.bootstrap_servers})
    for future in admin.create_acls(bindings).values():
        future.result(30)


def test_the_rights_that_are_documented_are_enough(
    spark: SparkSession, guarded: KafkaCluster, tmp_path: Path
) -> None:
    """For a first start, for one that finishes what another left, and for one that goes on."""
    sink = KafkaSink("t", bootstrap_servers=guarded.sasl_servers, options=LOGIN)

    def stream() -> Any:
        rows = jobs.read(spark, tmp_path / "in").selectExpr("CAST(id AS STRING) AS value")
        return exactly_once(rows, QUERY).to(sink)

    jobs.write_input(tmp_path / "in", files=1)
    jobs.run_and_die(stream(), tmp_path, "decide.after")
    for files in (2, 3):
        ids = jobs.write_input(tmp_path / "in", files=files)
        jobs.run(stream(), tmp_path)
        assert sorted(int(record.value or b"") for record in guarded.read("t")) == ids


def note(reasons: list[str], _: pa.RecordBatch, reason: str) -> None:
    reasons.append(reason)


def refused(sink: KafkaSink, rows: list[dict[str, str]]) -> list[str]:
    """Prepare one part and abort it; return why rows were refused."""
    reasons: list[str] = []
    part = Part(PART, refuse=partial(note, reasons))
    sink.open(QueryId(QUERY, PART.incarnation, "file:/checkpoint"))
    made = sink.prepare(iter([pa.RecordBatch.from_pylist(rows)]), part)
    assert made is not None
    sink.abort([Prepared(PART, 0, made)])
    return reasons


def test_a_topic_that_this_user_may_not_write(guarded: KafkaCluster) -> None:
    """A row's own topic: the row is refused with the true reason. The sink's: nothing works."""
    sink = KafkaSink(None, bootstrap_servers=guarded.sasl_servers, options=LOGIN)
    rows = [{"value": "v", "topic": "t"}, {"value": "v", "topic": "secret"}]
    (reason,) = refused(sink, rows)
    assert "topic 'secret'" in reason
    assert "uthoriz" in reason
    fixed = KafkaSink("secret", bootstrap_servers=guarded.sasl_servers, options=LOGIN)
    with pytest.raises(OSError, match=r"topic 'secret': .*uthoriz"):
        refused(fixed, [{"value": "v"}])


def test_a_topic_that_is_just_being_made(kafka_cluster: KafkaCluster) -> None:
    """A dead letter is one for good: so a topic that is not known yet is waited for."""
    name = f"late-{uuid.uuid4().hex[:8]}"
    later = threading.Timer(1, kafka_cluster.create_topic, [name])
    later.start()
    sink = KafkaSink(None, bootstrap_servers=kafka_cluster.bootstrap_servers)
    assert refused(sink, [{"value": "v", "topic": name}]) == []
    later.join()


def test_topics_that_do_not_exist_are_waited_for_once(kafka_cluster: KafkaCluster) -> None:
    """Four of them not four times as long; and in the next epoch only for a moment."""
    options = {"topic.metadata.propagation.max.ms": 2000}
    sink = KafkaSink(None, bootstrap_servers=kafka_cluster.bootstrap_servers, options=options)
    names = [f"none-{number}-{uuid.uuid4().hex[:6]}" for number in range(4)]
    batch = pa.RecordBatch.from_pydict({"value": ["v"] * 4, "topic": names})
    for at_least_s, below_s in ((2, 8), (0.5, 2)):
        reasons: list[str] = []
        part = Part(PART, refuse=partial(note, reasons))
        began_s = time.monotonic()
        sink.publish(iter([batch]), part)
        assert reasons == [f"topic {name!r} does not exist" for name in names]
        assert at_least_s <= time.monotonic() - began_s < below_s


def test_the_sinks_own_topic_that_is_gone_is_an_error(kafka_cluster: KafkaCluster) -> None:
    options = {"topic.metadata.propagation.max.ms": 300}
    sink = KafkaSink("gone", bootstrap_servers=kafka_cluster.bootstrap_servers, options=options)
    with pytest.raises(OSError, match="topic 'gone' does not exist; it could be used when"):
        refused(sink, [{"value": "v"}])
