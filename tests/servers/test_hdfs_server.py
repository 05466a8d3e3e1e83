"""The HDFS of `beadline.testing.servers` is a real one: it keeps what Beadline builds on.

The decision log needs a rename that refuses an existing target, also when two race for it. Here
that is asked of the real NameNode, through the Hadoop client that PySpark brings.
"""

from __future__ import annotations

import uuid
from concurrent.futures import ThreadPoolExecutor
from threading import Barrier
from typing import Any

import pytest
from py4j.protocol import Py4JJavaError
from pyspark.sql import SparkSession

from beadline.testing.servers import HdfsCluster, hdfs

NAMES = 200

# Hadoop's client does not retry on its own unless there is a standby NameNode: the first call after
# a restart fails on the connection that it had kept. These are 20 tries, 200 ms apart.
RETRIES = {
    "dfs.client.retry.policy.enabled": "true",
    "dfs.client.retry.policy.spec": "200,20",
}


class Client:
    """The few calls of Hadoop's `FileContext` that these tests make."""

    def __init__(self, spark: SparkSession, cluster: HdfsCluster, **settings: str) -> None:
        gateway: Any = spark.sparkContext._gateway
        self._jvm = gateway.jvm
        self._fs = self._jvm.org.apache.hadoop.fs
        configuration = self._jvm.org.apache.hadoop.conf.Configuration()
        for name, value in {**cluster.client_settings, **settings}.items():
            configuration.set(name, value)
        # A FileContext has its own client, with these settings; FileSystem.get shares one.
        uri = self._jvm.java.net.URI(cluster.uri)
        self._context = self._fs.FileContext.getFileContext(uri, configuration)
        self._with_parents = gateway.new_array(self._fs.Options.CreateOpts, 1)
        self._with_parents[0] = self._fs.Options.CreateOpts.createParent()
        self._without_overwrite = gateway.new_array(self._fs.Options.Rename, 0)

    def write(self, path: str, content: bytes = b"") -> None:
        flags = self._jvm.java.util.EnumSet.of(self._fs.CreateFlag.CREATE)
        stream = self._context.create(self._fs.Path(path), flags, self._with_parents)
        try:
            if content:
                stream.write(content)
                stream.hsync()
        finally:
            stream.close()

    def read(self, path: str) -> bytes:
        stream = self._context.open(self._fs.Path(path))
        try:
            return bytes(stream.readAllBytes())
        finally:
            stream.close()

    def rename(self, source: str, target: str) -> bool:
        """Whether it was renamed; False if the target was there."""
        source_path, target_path = self._fs.Path(source), self._fs.Path(target)
        try:
            self._context.rename(source_path, target_path, self._without_overwrite)
        except Py4JJavaError as error:
            kind = error.java_exception.getClass().getName()
            if kind == "org.apache.hadoop.fs.FileAlreadyExistsException":
                return False
            raise
        return True

    def names(self, path: str) -> set[str]:
        statuses = self._context.util().listStatus(self._fs.Path(path))
        return {status.getPath().getName() for status in statuses}


@pytest.fixture
def client(spark: SparkSession, hdfs_cluster: HdfsCluster) -> Client:
    return Client(spark, hdfs_cluster)


@pytest.fixture
def folder() -> str:
    return f"/test-{uuid.uuid4().hex}"


def test_spark_writes_and_reads(
    spark: SparkSession, hdfs_cluster: HdfsCluster, folder: str
) -> None:
    target = f"{hdfs_cluster.uri}{folder}/numbers"
    spark.range(1_000).write.parquet(target)
    assert spark.read.parquet(target).count() == 1_000


def test_bytes_come_back_as_written(client: Client, folder: str) -> None:
    content = bytes(range(256)) * 8
    client.write(f"{folder}/file", content)
    assert client.read(f"{folder}/file") == content


def test_rename_refuses_an_existing_target(client: Client, folder: str) -> None:
    client.write(f"{folder}/first", b"first")
    client.write(f"{folder}/second", b"second")
    assert client.rename(f"{folder}/first", f"{folder}/target")
    assert not client.rename(f"{folder}/second", f"{folder}/target")
    assert client.read(f"{folder}/target") == b"first"
    assert client.names(folder) == {"second", "target"}


def test_a_race_for_a_name_has_one_winner(client: Client, folder: str) -> None:
    racers = ("a", "b")
    for racer in racers:
        for number in range(NAMES):
            client.write(f"{folder}/{racer}-{number}")
    start = Barrier(len(racers))

    def race(racer: str) -> list[bool]:
        won = []
        for number in range(NAMES):
            start.wait(timeout=60)
            won.append(client.rename(f"{folder}/{racer}-{number}", f"{folder}/name-{number}"))
        return won

    with ThreadPoolExecutor(len(racers)) as pool:
        results = list(pool.map(race, racers))

    assert [sum(winners) for winners in zip(*results, strict=True)] == [1] * NAMES
    left = client.names(folder)
    for number in range(NAMES):
        loser = racers[1] if results[0][number] else racers[0]
        assert {f"name-{number}", f"{loser}-{number}"} <= left
    assert len(left) == 2 * NAMES


def test_data_outlives_kill_and_restart(spark: SparkSession) -> None:
    """A cluster of its own: the session's must not die under other tests."""
    with hdfs() as cluster:
        client = Client(spark, cluster, **RETRIES)
        client.write("/kept", b"kept")
        for server in (cluster.namenode, cluster.datanode):
            before = server.pid
            server.kill()
            assert not server.alive
            server.restart()
            assert server.pid != before
        cluster.wait_ready()
        assert client.read("/kept") == b"kept"
