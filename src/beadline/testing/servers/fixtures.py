"""Pytest fixtures, one per server, one server per test session.

Import them in a `conftest.py`. Where a server cannot be had, its tests are skipped with the reason;
where CI=true they fail, because a skipped test in CI is a test that nobody runs. A server that was
had and did not come up fails everywhere.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import AbstractContextManager
from typing import TypeVar

import pytest

from beadline.testing.servers import (
    HdfsCluster,
    KafkaCluster,
    ServerUnavailable,
    hdfs,
    kafka,
)

S = TypeVar("S")


@pytest.fixture(scope="session")
def hdfs_cluster() -> Iterator[HdfsCluster]:
    """One HDFS for the whole session: use a folder of your own in it."""
    yield from serve(hdfs())


@pytest.fixture(scope="session")
def kafka_cluster() -> Iterator[KafkaCluster]:
    """One broker with the present transactions: use topics and ids of your own in it.

    Its proxies are for all: `restore` what you cut.
    """
    yield from serve(kafka(proxied=True))


@pytest.fixture(scope="session")
def old_kafka_cluster() -> Iterator[KafkaCluster]:
    """One broker with the transactions of Kafka before 4.0, as an upgraded cluster may have."""
    yield from serve(kafka(transaction_version=0))


@pytest.fixture(scope="session")
def kafka_trio() -> Iterator[KafkaCluster]:
    """Three brokers, three replicas, two in sync: `restart` what you kill, and `wait_ready`."""
    yield from serve(kafka(brokers=3))


def serve(server: AbstractContextManager[S]) -> Iterator[S]:
    """The body of a fixture for any server of this package, or a user's own."""
    try:
        running = server.__enter__()
    except ServerUnavailable as error:
        if os.environ.get("CI", "").lower() == "true":
            pytest.fail(str(error), pytrace=False)
        pytest.skip(str(error))
    try:
        yield running
    finally:
        server.__exit__(None, None, None)
