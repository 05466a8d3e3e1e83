"""The Kafka of `beadline.testing.servers` is a real one: it keeps what Beadline builds on.

Transactions are visible when they are committed and not before, a kill loses none of them, the two
transaction protocols are really two, and the fault injector stands where clients go through it.
"""

from __future__ import annotations

import time
import uuid
from contextlib import closing
from typing import Any

import pytest
from confluent_kafka import KafkaError, KafkaException, Producer
from confluent_kafka.admin import AdminClient
from kafka import KafkaAdminClient
from kafka.errors import UnsupportedVersionError
from kafka.protocol.producer import EndTxnRequest

from beadline.testing.servers import KafkaCluster
from tests.slowness import patient

SOON_S = patient(30)
# Tests cut connections on purpose: the client need not tell.
QUIET = {"log_level": 2}


@pytest.fixture
def topic() -> str:
    return f"test-{uuid.uuid4().hex}"


def producer(servers: str, **settings: str | int) -> Producer:
    """A new transactional producer, under an id of its own unless it is given one."""
    named = {name.replace("_", "."): value for name, value in settings.items()}
    conf = {"bootstrap.servers": servers, "transactional.id": uuid.uuid4().hex, **QUIET, **named}
    made = Producer(conf)
    made.init_transactions(SOON_S)
    return made


def send(made: Producer, topic: str, *values: str) -> None:
    """Open a transaction, and have these values in the broker's log."""
    made.begin_transaction()
    for value in values:
        made.produce(topic, value.encode())
    assert made.flush(SOON_S) == 0


def visible(cluster: KafkaCluster, topic: str, isolation: str = "read_committed") -> list[str]:
    values = (record.value for record in cluster.read(topic, isolation))
    return sorted(value.decode() for value in values if value is not None)


def end_as_the_new_protocol(cluster: KafkaCluster, transactional_id: str) -> tuple[int, int]:
    """Commit by an EndTxn of version 5; return the error code and the epoch in the answer."""
    with closing(KafkaAdminClient(bootstrap_servers=cluster.bootstrap_servers)) as admin:
        found = admin.describe_transactions([transactional_id])[transactional_id]
        request = EndTxnRequest(
            transactional_id=transactional_id,
            producer_id=found.producer_id,
            producer_epoch=found.producer_epoch,
            committed=True,
            min_version=5,
        )

        async def ask() -> Any:  # kafka-python's own producer still ends them the old way
            return await admin._manager.send(request, node_id=found.coordinator_id)

        answer = admin._manager.run(ask)
        return answer.error_code, answer.producer_epoch


def test_a_record_comes_back_as_written(kafka_cluster: KafkaCluster, topic: str) -> None:
    kafka_cluster.create_topic(topic, partitions=2, config={"cleanup.policy": "compact"})
    made = producer(kafka_cluster.bootstrap_servers)
    made.begin_transaction()
    headers: list[tuple[str, str | bytes | None]] = [
        ("first", b"1"),
        ("second", None),
        ("first", b"2"),
    ]
    made.produce(topic, b"value", b"key", 1, timestamp=1_700_000_000_123, headers=headers)
    made.produce(topic, None, b"key", 0)
    made.commit_transaction(SOON_S)

    tombstone, record = kafka_cluster.read(topic)
    assert (record.topic, record.partition, record.offset) == (topic, 1, 0)
    assert (record.key, record.value) == (b"key", b"value")
    assert record.headers == tuple(headers)
    assert record.timestamp_ms == 1_700_000_000_123
    assert (tombstone.partition, tombstone.value, tombstone.headers) == (0, None, ())
    # One record each, and the marker of the commit.
    assert kafka_cluster.end_offsets(topic) == {0: 2, 1: 2}


@pytest.mark.parametrize("fixture", ["kafka_cluster", "old_kafka_cluster", "kafka_trio"])
def test_only_committed_transactions_are_visible(
    fixture: str, topic: str, request: pytest.FixtureRequest
) -> None:
    cluster: KafkaCluster = request.getfixturevalue(fixture)
    cluster.create_topic(topic, partitions=3)
    assert cluster.read(topic) == []
    first, second = (producer(cluster.bootstrap_servers) for _ in range(2))
    send(first, topic, "a", "b")
    assert visible(cluster, topic) == []
    assert visible(cluster, topic, "read_uncommitted") == ["a", "b"]
    first.commit_transaction(SOON_S)
    assert visible(cluster, topic) == ["a", "b"]
    send(second, topic, "c", "d")
    second.abort_transaction(SOON_S)
    assert visible(cluster, topic) == ["a", "b"]
    assert visible(cluster, topic, "read_uncommitted") == ["a", "b", "c", "d"]


def test_what_was_committed_is_read_at_once(kafka_cluster: KafkaCluster, topic: str) -> None:
    """Though the coordinator answers before the markers are written."""
    kafka_cluster.create_topic(topic, partitions=8)
    made = producer(kafka_cluster.bootstrap_servers)
    for count in range(1, 11):
        made.begin_transaction()
        for partition in range(8):
            made.produce(topic, b"value", partition=partition)
        made.commit_transaction(SOON_S)
        assert len(kafka_cluster.read(topic)) == 8 * count


def test_an_open_transaction_hides_what_comes_after(
    kafka_cluster: KafkaCluster, topic: str
) -> None:
    kafka_cluster.create_topic(topic)
    opened, committed = (producer(kafka_cluster.bootstrap_servers) for _ in range(2))
    send(opened, topic, "open")
    send(committed, topic, "committed")
    committed.commit_transaction(SOON_S)
    assert visible(kafka_cluster, topic) == []
    assert kafka_cluster.end_offsets(topic, "read_committed") == {0: 0}
    opened.abort_transaction(SOON_S)
    assert visible(kafka_cluster, topic) == ["committed"]


def test_a_short_transaction_timeout_is_kept(kafka_cluster: KafkaCluster, topic: str) -> None:
    kafka_cluster.create_topic(topic)
    settings = {"transaction_timeout_ms": 1_000, "message_timeout_ms": 1_000}
    send(producer(kafka_cluster.bootstrap_servers, **settings), topic, "late")
    deadline = time.monotonic() + SOON_S
    # The broker's marker follows the record when it has aborted.
    while kafka_cluster.end_offsets(topic, "read_committed") != {0: 2}:
        assert time.monotonic() < deadline
        time.sleep(0.05)
    assert visible(kafka_cluster, topic) == []


def test_the_transaction_versions_differ(
    kafka_cluster: KafkaCluster, old_kafka_cluster: KafkaCluster, topic: str
) -> None:
    """By what a cluster says, and by what it does with the end of a transaction."""
    levels, answers = [], []
    for cluster in (old_kafka_cluster, kafka_cluster):
        with closing(KafkaAdminClient(bootstrap_servers=cluster.bootstrap_servers)) as admin:
            levels.append(admin.describe_features()["transaction.version"].get("finalized"))
        cluster.create_topic(topic)
        made = producer(cluster.bootstrap_servers, transactional_id=topic)
        send(made, topic, "a")
        answers.append(end_as_the_new_protocol(cluster, topic))
    assert levels == [None, (2, 2)]  # a level of 0 is not named
    # The old one does not know it, the new one moves the producer's epoch from 0 to 1.
    assert answers == [(UnsupportedVersionError.errno, -1), (0, 1)]


def test_no_topic_is_made_by_mistake(kafka_cluster: KafkaCluster, topic: str) -> None:
    with pytest.raises(KafkaException) as raised:
        kafka_cluster.read(topic)
    assert raised.value.args[0].code() == KafkaError.UNKNOWN_TOPIC_OR_PART
    admin = AdminClient({"bootstrap.servers": kafka_cluster.bootstrap_servers})
    assert topic not in admin.list_topics(timeout=SOON_S).topics


def test_an_answer_can_be_lost(kafka_cluster: KafkaCluster, topic: str) -> None:
    """The commit is done, and its producer does not hear of it."""
    kafka_cluster.create_topic(topic)
    (proxy,) = kafka_cluster.proxies
    made = producer(kafka_cluster.proxied_servers)
    send(made, topic, "a")
    proxy.stall_answers()
    try:
        with pytest.raises(KafkaException) as raised:
            made.commit_transaction(1)
        assert raised.value.args[0].code() == KafkaError._TIMED_OUT
        assert visible(kafka_cluster, topic) == ["a"]
    finally:
        proxy.restore()
    made.commit_transaction(SOON_S)
    assert visible(kafka_cluster, topic) == ["a"]


def test_only_who_may_can_produce(guarded_kafka: KafkaCluster, topic: str) -> None:
    guarded_kafka.create_topic(topic)

    def produce_as(name: str, password: str) -> str | None:
        """The name of the error, or None."""
        outcome: list[KafkaError | None] = []
        conf = {
            "bootstrap.servers": guarded_kafka.sasl_servers,
            "security.protocol": "SASL_PLAINTEXT",
            "sasl.mechanism": "PLAIN",
            "sasl.username": name,
            "sasl.password": password,
            "message.timeout.ms": 3_000,
        }
        made = Producer(conf | QUIET)
        made.produce(topic, b"value", on_delivery=lambda error, _: outcome.append(error))
        made.flush(SOON_S)
        (error,) = outcome
        return None if error is None else error.name()

    assert produce_as("admin", "top-secret") is None
    assert produce_as("bob", "bobs-secret") == "TOPIC_AUTHORIZATION_FAILED"
    assert produce_as("admin", "wrong") == "_MSG_TIMED_OUT"
    assert visible(guarded_kafka, topic) == ["value"]


def test_data_outlives_kill_and_restart(mortal_kafka: KafkaCluster, topic: str) -> None:
    mortal_kafka.create_topic(topic)
    made = producer(mortal_kafka.bootstrap_servers)
    send(made, topic, "a")
    made.commit_transaction(SOON_S)
    send(made, topic, "b")
    (broker,) = mortal_kafka.brokers
    before = broker.pid
    broker.kill()
    assert not broker.alive
    broker.restart()
    assert broker.pid != before
    mortal_kafka.wait_ready()
    assert visible(mortal_kafka, topic) == ["a"]
    # The open transaction is open still: its owner may commit it.
    made.commit_transaction(SOON_S)
    assert visible(mortal_kafka, topic) == ["a", "b"]


def test_a_trio_goes_on_without_one(kafka_trio: KafkaCluster, topic: str) -> None:
    kafka_trio.create_topic(topic, partitions=3)
    made = producer(kafka_trio.bootstrap_servers)
    send(made, topic, "a")
    made.commit_transaction(SOON_S)
    victim = kafka_trio.brokers[0]
    victim.kill()
    try:
        send(made, topic, "b")
        made.commit_transaction(SOON_S)
        assert visible(kafka_trio, topic) == ["a", "b"]
    finally:
        victim.restart()
        kafka_trio.wait_ready()
    assert visible(kafka_trio, topic) == ["a", "b"]
