"""Brokers that several files here share; starting one takes seconds."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from beadline.testing.servers import KafkaCluster, kafka
from beadline.testing.servers.fixtures import serve

USERS = {"admin": "top-secret", "bob": "bobs-secret"}


@pytest.fixture(scope="session")
def old_kafka_cluster() -> Iterator[KafkaCluster]:
    """One broker with the transactions of Kafka before 4.0, as an upgraded cluster may have."""
    yield from serve(kafka(transaction_version=0))


@pytest.fixture(scope="session")
def guarded_kafka() -> Iterator[KafkaCluster]:
    """One broker that asks who is there, by SASL or a certificate; bob may do what is granted."""
    yield from serve(kafka(tls=True, users=USERS, superusers=("admin", "CN=client")))


@pytest.fixture
def producers() -> Iterator[None]:
    """Close the producers that this process keeps, when the test is over."""
    yield
    from beadline.sinks.kafka.producers import pool

    pool().close()


@pytest.fixture(scope="session")
def only_broker() -> Iterator[KafkaCluster]:
    """The broker of `mortal_kafka`."""
    yield from serve(kafka())


@pytest.fixture
def mortal_kafka(only_broker: KafkaCluster) -> Iterator[KafkaCluster]:
    """One broker that may be killed, for others could not do without theirs so long."""
    yield only_broker
    (broker,) = only_broker.brokers
    if not broker.alive:
        broker.start()
    only_broker.wait_ready()
