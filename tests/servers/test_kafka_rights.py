"""What a user of Kafka may do: with the rights that the docs name, and with one less."""

from __future__ import annotations

import importlib
import os
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from beadline import Stream, exactly_once
from beadline.errors import CommitBlocked, PrepareFailed
from beadline.ids import EpochId, PartId, QueryId
from beadline.shared.retry import polls
from beadline.sink import Outcome, Part, Prepared
from beadline.sinks import KafkaSink
from beadline.sinks.kafka.client import (
    OPEN_STATES,
    Transaction,
    TransactionClient,
    _clients,
    connect,
)
from beadline.sinks.kafka.part import KafkaPart
from beadline.sinks.kafka.producers import pool
from beadline.sinks.kafka.settings import KafkaSettings
from beadline.testing.servers import KafkaCluster
from tests.servers.kafka_refused import refused
from tests.slowness import patient
from tests.spark import jobs

SOON_S = patient(30)
ADMIN: Any = importlib.import_module("confluent_kafka.admin")  # its types leave names out
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
    admin = admin_of(cluster)
    for made in admin.create_acls([binding(*right) for right in rights]).values():
        made.result(SOON_S)


def revoke(cluster: KafkaCluster, *rights: tuple[str, str, str]) -> None:
    """Let bob do so no more."""
    admin = admin_of(cluster)
    gone = [binding(*right, filter_="Filter") for right in rights]
    for ended in admin.delete_acls(gone).values():
        ended.result(SOON_S)


def wait_until_refused(cluster: KafkaCluster, id_: str) -> None:
    """Return when the broker refuses bob, who ends a transaction that does not exist.

    It answers a change of rights before it goes by it.
    """
    nothing = Transaction(id_, 1, 0)
    again = polls(SOON_S, 0.05)
    while (
        "AUTHORIZATION"
        not in connect(sink_to(cluster, "t").settings).end([nothing], False)[nothing]
    ):
        assert again(), f"still allowed after {SOON_S} s"


def admin_of(cluster: KafkaCluster) -> Any:
    return ADMIN.AdminClient({"bootstrap.servers": cluster.bootstrap_servers})


def binding(kind: str, name: str, operation: str, filter_: str = "") -> Any:
    return getattr(ADMIN, f"AclBinding{filter_}")(
        ADMIN.ResourceType[kind],
        name,
        ADMIN.ResourcePatternType["PREFIXED" if name.endswith("~") else "LITERAL"],
        "User:bob",
        "*",
        ADMIN.AclOperation[operation],
        ADMIN.AclPermissionType.ALLOW,
    )


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
    """For a first start, for one that finishes what another left, and for one that continues."""
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


def decided(cluster: KafkaCluster, query: str) -> tuple[EpochId, Prepared[KafkaPart]]:
    """Leave a part open on the broker, as a decision would find it."""
    id_ = PartId(query, "a" * 32, "kafka-t", 1, 0, 0, 0)
    known = QueryId(query, id_.incarnation, "file:/checkpoint")
    sink = sink_to(cluster, "t")
    sink.open(known, id_.sink)
    made = sink.prepare(iter([pa.RecordBatch.from_pydict({"value": ["v"]})]), Part(id_))
    assert made is not None
    return EpochId(known, 0, "nonce", 0), Prepared(id_, 1, made)


@pytest.mark.parametrize("mechanism", ["PLAIN", "SCRAM-SHA-256"])
@pytest.mark.parametrize("connected", [False, True])
def test_a_password_that_is_wrong_by_the_time_of_the_commit(
    guarded: KafkaCluster, mechanism: str, connected: bool
) -> None:
    """Told at once, and not waited for like an outage; the right one still commits."""
    query = f"changed-{mechanism.lower()}-{connected}".lower()
    grant(guarded, *rights(query))
    epoch, part = decided(guarded, query)
    login = {**LOGIN, "sasl.mechanism": mechanism}
    wrong = KafkaSink(
        "t",
        bootstrap_servers=guarded.sasl_servers,
        options={**login, "sasl.password": "dont-tell-me"},
    )
    if connected:  # with the former password, by a connection that is lost then
        made = TransactionClient(replace(wrong, options=login).settings.admin(SOON_S))
        _clients[(os.getpid(), wrong.settings.key)] = made
        manager = made.admin._manager
        manager.config["sasl_plain_password"] = "dont-tell-me"
        for connection in list(manager._conns.values()):
            manager._net.call_soon(connection.close)
    says = rf"'{query}', epoch 0, sink 'kafka-t'.*refuses this user.*([Cc]redentials|password)"
    with pytest.raises(CommitBlocked, match=says) as caught:
        wrong.commit(epoch, [part])
    assert "decided and its rows are kept; the next start commits them" in str(caught.value)
    assert "Correct the user, password or ACL" in str(caught.value)
    assert "dont-tell-me" not in str(caught.value)
    (outcome,) = sink_to(guarded, "t").commit(epoch, [part]).outcomes.values()
    assert outcome is Outcome.COMMITTED


@pytest.mark.parametrize("operation", ["WRITE", "DESCRIBE"])
def test_a_right_that_is_taken_away_before_the_commit(
    guarded: KafkaCluster, operation: str
) -> None:
    """Without the one the broker refuses to end transactions; without both, to say where."""
    query = f"denied-{operation.lower()}"
    ids = f"beadline-txn~{query}~"
    lost = [("TRANSACTIONAL_ID", ids, each) for each in ("WRITE", "DESCRIBE")]
    lost = lost[:1] if operation == "WRITE" else lost
    grant(guarded, *rights(query))
    epoch, part = decided(guarded, query)
    revoke(guarded, *lost)
    wait_until_refused(guarded, f"{ids}nobody")
    with pytest.raises(CommitBlocked, match=r"TRANSACTIONAL_ID_AUTHORIZATION_FAILED.*ACL"):
        sink_to(guarded, "t").commit(epoch, [part])
    grant(guarded, *lost)
    (outcome,) = sink_to(guarded, "t").commit(epoch, [part]).outcomes.values()
    assert outcome is Outcome.COMMITTED
