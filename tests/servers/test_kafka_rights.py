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
from beadline.sinks.kafka.transactions import OPEN_STATES, connect
from beadline.testing.servers import KafkaCluster, kafka
from tests.spark.jobs import read, run, write_input

SOON_S = 30
QUERY = "guarded"
CONTROL = f"beadline-{QUERY}"
LOGIN = {
    "security.protocol": "SASL_PLAINTEXT",
    "sasl.mechanism": "PLAIN",
    "sasl.username": "bob",
    "sasl.password": "bobs-secret",
}
# As docs/kafka.md has them, but for the topic itself.
RIGHTS = [
    ("TOPIC", CONTROL, "WRITE"),
    ("TOPIC", CONTROL, "READ"),
    ("TOPIC", CONTROL, "CREATE"),
    ("TRANSACTIONAL_ID", f"beadline-txn~{QUERY}~", "DESCRIBE"),
    ("TRANSACTIONAL_ID", f"beadline-txn~{QUERY}~", "WRITE"),
    ("BROKER", "kafka-cluster", "DESCRIBE"),  # of the cluster, in the client's spelling
]


@pytest.fixture
def cluster() -> Iterator[KafkaCluster]:
    with kafka(users={"admin": "top-secret", "bob": "bobs-secret"}) as started:
        started.create_topic("t")
        yield started


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


def stream(spark: SparkSession, cluster: KafkaCluster, folder: Path) -> Stream:
    rows = read(spark, folder / "in").selectExpr("cast(id as string) as value")
    sink = KafkaSink("t", bootstrap_servers=cluster.sasl_servers, options=LOGIN)
    return exactly_once(rows, QUERY).to(sink)


def test_a_topic_that_may_be_seen_and_not_written(
    spark: SparkSession, cluster: KafkaCluster, tmp_path: Path
) -> None:
    """Only the broker knows, and says so to the first record; given the right, all is well."""
    ids = write_input(tmp_path / "in", 2)
    grant(cluster, ("TOPIC", "t", "DESCRIBE"), *RIGHTS)
    refused = (
        r"'guarded', epoch 0, sink 'kafka-t'.*[Aa]uthorization failed.*Nothing of the epoch is"
    )
    with pytest.raises(PrepareFailed, match=refused) as caught:
        run(stream(spark, cluster, tmp_path), tmp_path)
    assert "secret" not in str(caught.value)
    assert sum(cluster.end_offsets("t").values()) == 0
    assert connect(cluster.bootstrap_servers, {}).list(OPEN_STATES) == []
    grant(cluster, ("TOPIC", "t", "WRITE"))
    run(stream(spark, cluster, tmp_path), tmp_path)
    assert sorted(int(record.value or b"") for record in cluster.read("t")) == ids
