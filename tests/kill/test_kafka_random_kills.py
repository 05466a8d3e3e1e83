"""Kill -9 at random moments, of drivers, Python workers and one of three brokers at a time."""

from __future__ import annotations

import uuid
from pathlib import Path

import pytest
from confluent_kafka.admin import AdminClient

from beadline.ids import QueryId
from beadline.sinks import KafkaSink
from beadline.testing.servers import KafkaCluster
from tests.harness.points import moments_with_brokers
from tests.kill.kafka_chains import judged_chain

KILLS = 5
KILLS_LONG = 12
ROUNDS = 4


def test_random_moments(kafka_trio: KafkaCluster, tmp_path: Path, seed: int) -> None:
    kills = moments_with_brokers(seed, KILLS)
    chain = judged_chain(kafka_trio, tmp_path, seed, kills)
    assert chain.killed >= KILLS - 1  # a child may have failed before its moment came


@pytest.mark.long
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("round_", range(ROUNDS))
def test_many_random_moments(
    kafka_trio: KafkaCluster, tmp_path: Path, seed: int, round_: int
) -> None:
    kills = moments_with_brokers(seed + round_, KILLS_LONG)
    chain = judged_chain(kafka_trio, tmp_path, seed + round_, kills, totals=bool(round_ % 2))
    assert chain.killed >= KILLS_LONG - 3


def test_markers_are_read_though_their_leader_has_just_died(kafka_trio: KafkaCluster) -> None:
    """A start, or the proof of a lost transaction, must not fail over it."""
    topic = f"markers-{uuid.uuid4().hex[:8]}"
    kafka_trio.create_topic(topic)
    servers = kafka_trio.bootstrap_servers
    found = AdminClient({"bootstrap.servers": servers}).list_topics(topic, timeout=10)
    leader = kafka_trio.brokers[found.topics[topic].partitions[0].leader - 1]
    sink = KafkaSink("orders", servers, control_topic=topic)
    leader.kill()
    try:
        assert sink.last_seen(QueryId("orders", "a" * 32, "file:/checkpoint"), "out") is None
    finally:
        leader.restart()
        kafka_trio.wait_ready()
