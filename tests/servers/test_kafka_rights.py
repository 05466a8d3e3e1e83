"""What a user of Kafka may do: with the rights that the docs name, and with one less."""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from beadline import Stream, exactly_once
from beadline.errors import PrepareFailed
from beadline.sinks import KafkaSink
from beadline.sinks.kafka.client import OPEN_STATES, connect
from beadline.sinks.kafka.producers import pool
from beadline.sinks.kafka.settings import KafkaSettings
from beadline.testing.servers import KafkaCluster
from tests.servers.kafka_refused import refused
from tests.spark import jobs

SOON_S = 30
LOGIN = {
    "security.protocol": "SASL_PLAINTEXT",
    "sasl.mechanism": "PLAIN",
    "sasl.username": "bob",
    "sasl.password": "bobs-secret",
}


def rights(query: str) -> list[tuple[str, str, str]]:
    """As docs/kafka.md has them, but for the topic itself."""
    control, ids = f"beadline-{query}", f"beadline-txn~{query}~"
    return [
        ("TOPIC", control, "WRITE"),
        ("TOPIC", control, "READ"),
        ("TOPIC", control, "CREATE"),
        ("TRANSACTIONAL_ID", ids, "DESCRIBE"),
        ("TRANSACTIONAL_ID", ids, "WRITE"),
        ("BROKER", "kafka-cluster", "DESCRIBE"),  # of the cluster, in the client's spelling
    ]


@pytest.fixture(scope="module")
def guarded(guarded_kafka: KafkaCluster) -> Iterator[KafkaCluster]:
    for topic in ("t", "seen", "secret"):
        guarded_kafka.create_topic(topic)
    grant(guarded_kafka, ("TOPIC", "t", "WRITE"), ("TOPIC", "seen", "DESCRIBE"))
    yield guarded_kafka
    pool().close()


def grant(cluster: KafkaCluster, *rights: tuple[str, str, str]) -> None:
    """Let bob do so."""
    admin: Any = importlib.import_module("confluent_kafka.admin")  # its types leave names out
    bindings = [
        admin.AclBinding(
            admin.ResourceType[kind],
            name,
            admin.ResourcePatternType["PREFIXED" if name.endswith("~") else "LITERAL"],
            "User:bob",
            "*",
            admin.AclOperation[operation],
            admin.AclPermissionType.ALLOW,
        )
        for kind, name, operation in rights
    ]
    client = admin.AdminClient({"bootstrap.servers": cluster.bootstrap_servers})
    for made in client.create_acls(bindings).values():
        made.result(SOON_S)


def stream(
    spark: SparkSession, cluster: KafkaCluster, folder: Path, topic: str, query: str
) -> Stream:
    rows = jobs.read(spark, folder / "in").selectExpr("cast(id as string) as value")
    return exactly_once(rows, query).to(sink_to(cluster, topic))


def sink_to(cluster: KafkaCluster, topic: str | None) -> KafkaSink:
    return KafkaSink(topic, bootstrap_servers=cluster.sasl_servers, options=LOGIN)


def written(cluster: KafkaCluster, topic: str) -> list[int]:
    return sorted(int(record.value or b"") for record in cluster.read(topic))


def test_the_rights_that_are_documented_are_enough(
    spark: SparkSession, guarded: KafkaCluster, tmp_path: Path
) -> None:
    """For a first start, for one that finishes what another left, and for one that goes on."""
    grant(guarded, *rights("allowed"))
    jobs.write_input(tmp_path / "in", files=1)
    jobs.run_and_die(stream(spark, guarded, tmp_path, "t", "allowed"), tmp_path, "decide.after")
    for files in (2, 3):
        ids = jobs.write_input(tmp_path / "in", files=files)
        jobs.run(stream(spark, guarded, tmp_path, "t", "allowed"), tmp_path)
        assert written(guarded, "t") == ids


def test_a_topic_that_may_be_seen_and_not_written(
    spark: SparkSession, guarded: KafkaCluster, tmp_path: Path
) -> None:
    """Only the broker knows, and says so to the first record; given the right, all is well."""
    ids = jobs.write_input(tmp_path / "in", 2)
    grant(guarded, *rights("guarded"))
    says = r"'guarded', epoch 0, sink 'kafka-seen'.*[Aa]uthorization failed.*Nothing of the epoch"
    with pytest.raises(PrepareFailed, match=says) as caught:
        jobs.run(stream(spark, guarded, tmp_path, "seen", "guarded"), tmp_path)
    assert "secret" not in str(caught.value)
    assert sum(guarded.end_offsets("seen").values()) == 0
    left_open = connect(KafkaSettings(guarded.bootstrap_servers)).list(OPEN_STATES)
    assert [name for name in left_open if "~guarded~" in name] == []
    grant(guarded, ("TOPIC", "seen", "WRITE"))
    jobs.run(stream(spark, guarded, tmp_path, "seen", "guarded"), tmp_path)
    assert written(guarded, "seen") == ids


def test_a_topic_that_may_not_be_seen(guarded: KafkaCluster) -> None:
    """A row's own topic: the row is refused with the true reason. The sink's: nothing works."""
    grant(guarded, *rights("orders"))
    rows = [{"value": "v", "topic": "t"}, {"value": "v", "topic": "secret"}]
    (reason,) = refused(sink_to(guarded, None), rows)
    assert "topic 'secret'" in reason
    assert "uthoriz" in reason
    with pytest.raises(OSError, match=r"topic 'secret': .*uthoriz"):
        refused(sink_to(guarded, "secret"), [{"value": "v"}])
