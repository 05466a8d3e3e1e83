"""Real servers for tests, Beadline's own and its users', started and stopped by the test run.

Nothing has to run before, and nothing is left after::

    from beadline.testing.servers import hdfs

    with hdfs() as cluster:
        ...  # cluster.uri is hdfs://127.0.0.1:PORT

In pytest, `from beadline.testing.servers.fixtures import hdfs_cluster` in a `conftest.py` gives one
for the session. Needs Java, and Maven for the first download; Linux or macOS.
"""

from beadline.testing.servers.base import ServerError, ServerFailed, ServerUnavailable
from beadline.testing.servers.hdfs import HdfsCluster, hdfs

__all__ = ["HdfsCluster", "ServerError", "ServerFailed", "ServerUnavailable", "hdfs"]
