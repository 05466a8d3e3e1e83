"""Real servers for tests, Beadline's own and its users', started and stopped by the test run.

Nothing has to run before, and nothing is left after::

    from beadline.testing.servers import hdfs, kafka

    with hdfs() as cluster:
        ...  # cluster.uri is hdfs://127.0.0.1:PORT
    with kafka() as cluster:
        ...  # cluster.bootstrap_servers is 127.0.0.1:PORT

In pytest, `from beadline.testing.servers.fixtures import hdfs_cluster, kafka_cluster` in a
`conftest.py` gives one of each for the session. Needs Java, and Maven for the first download;
Linux or macOS.
"""

from beadline.testing.servers.base import ServerError, ServerFailed, ServerUnavailable
from beadline.testing.servers.hbase import HBaseServer, hbase
from beadline.testing.servers.hdfs import HdfsCluster, hdfs
from beadline.testing.servers.kafka import KafkaCluster, KafkaRecord, kafka
from beadline.testing.servers.mariadb import MariaDbServer, mariadb
from beadline.testing.servers.postgres import PostgresServer, postgres
from beadline.testing.servers.redis import RedisCluster, RedisServer, redis, redis_cluster

__all__ = [
    "HBaseServer",
    "HdfsCluster",
    "KafkaCluster",
    "KafkaRecord",
    "MariaDbServer",
    "PostgresServer",
    "RedisCluster",
    "RedisServer",
    "ServerError",
    "ServerFailed",
    "ServerUnavailable",
    "hbase",
    "hdfs",
    "kafka",
    "mariadb",
    "postgres",
    "redis",
    "redis_cluster",
]
