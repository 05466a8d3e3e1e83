"""Pytest fixtures, one per server, one server per test session.

Import them in a `conftest.py`. Where a server cannot be had, its tests are skipped with the reason;
where CI=true they fail, because a test that CI skips is never run. A server that was had and did
not come up fails everywhere.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import AbstractContextManager
from typing import TypeVar

import pytest

from beadline.testing.servers import (
    HBaseServer,
    HdfsCluster,
    KafkaCluster,
    MariaDbServer,
    PostgresServer,
    RedisCluster,
    RedisServer,
    ServerUnavailable,
    hbase,
    hdfs,
    kafka,
    mariadb,
    postgres,
    redis,
)

# Under another name, because the fixture has its own.
from beadline.testing.servers import redis_cluster as cluster_of_redis

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
def kafka_trio() -> Iterator[KafkaCluster]:
    """Three brokers, three replicas, two in sync: `restart` what you kill, and `wait_ready`."""
    yield from serve(kafka(brokers=3))


@pytest.fixture(scope="session")
def hbase_server() -> Iterator[HBaseServer]:
    """One HBase for the whole session: use tables of your own, and `restart` what you kill."""
    yield from serve(hbase())


@pytest.fixture(scope="session")
def redis_server() -> Iterator[RedisServer]:
    """One durable Redis: use a prefix of your own, and `restart` what you kill."""
    yield from serve(redis())


@pytest.fixture(scope="session")
def redis_cluster() -> Iterator[RedisCluster]:
    """Three masters without replicas: `restart` what you kill, and `wait_ready`."""
    yield from serve(cluster_of_redis())


@pytest.fixture(scope="session")
def postgres_server() -> Iterator[PostgresServer]:
    """One PostgreSQL with prepared transactions: use a schema of your own."""
    yield from serve(postgres())


@pytest.fixture(scope="session")
def mariadb_server() -> Iterator[MariaDbServer]:
    """One MariaDB: use tables of your own in it, and `restart` it if you kill it."""
    yield from serve(mariadb())


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
