"""A real HBase, master, region server and ZooKeeper in one process, and its Thrift server.

::

    with hbase() as server:
        server.create_table("orders", "f")
        HBaseSink(server.host, port=server.port, table="orders", ...)
        server.rows("orders")  # what any reader sees

Real, because what Beadline needs of HBase is in its store: which version of a cell a reader sees,
what a delete marker hides, and what a major compaction forgets. Settings are HBase's own except
for what makes it small, quick to start and silent to the outside.

Data is on a local disk through Hadoop's local file system, which cannot flush a log to the disk:
a killed *master* may lose what it has acknowledged, which no production HBase does. So a fault
test kills the `thrift` server, which keeps nothing, and leaves the `master` alone.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

from beadline.testing.servers import maven, pins
from beadline.testing.servers.hadoop_files import write_configuration
from beadline.testing.servers.java import java_command
from beadline.testing.servers.ports import LOOPBACK, free_ports
from beadline.testing.servers.process import ServerProcess, wait_until
from beadline.testing.servers.running import need_client, running, work_folder

_START_TIMEOUT_S = 180
_ANSWER_TIMEOUT_S = 20
_STOP_S = 5
_HEAP_MB = 512
_THRIFT_HEAP_MB = 256
_JAVA_OPTIONS = (
    "--add-opens=java.base/java.lang=ALL-UNNAMED",
    "--add-opens=java.base/java.nio=ALL-UNNAMED",
    "--add-opens=java.base/sun.nio.ch=ALL-UNNAMED",
    "--add-exports=java.base/jdk.internal.misc=ALL-UNNAMED",
    "--add-exports=java.security.jgss/sun.security.krb5=ALL-UNNAMED",
)

HBaseRow = dict[str, bytes]


class HBaseServer:
    """A running HBase.

    A fault test may `kill` and `restart` its Thrift server: port and data stay.
    """

    def __init__(self, folder: Path, settings: Mapping[str, str] | None = None) -> None:
        """Lay out the folder; `start` starts."""
        need_client("hbase")
        folder = folder.resolve()
        self.host = LOOPBACK
        master, region, zookeeper, self.port = free_ports(4)
        ports = {"master": master, "region": region, "zookeeper": zookeeper, "thrift": self.port}
        _write_configuration(folder, ports, settings or {})
        self._folder = folder
        self._class_path = [folder / "conf", maven.jars(pins.HBASE) / "*"]
        self.master = self._server("master", "master.HMaster", _HEAP_MB, master, zookeeper)
        self.thrift = self._server("thrift", "thrift.ThriftServer", _THRIFT_HEAP_MB, self.port)

    def start(self) -> None:
        """Start both processes and wait until a table can be made."""
        self.master.start()
        # Before ZooKeeper answers, the Thrift server would give up.
        self.master.wait_for_ports(_START_TIMEOUT_S)
        self.thrift.start()
        self.wait_ready()
        # The Thrift server answers long before the master is done with its own start.
        self.create_table("beadline_ready", "f")

    def stop(self) -> None:
        """Stop both; the folder stays."""
        self.thrift.stop(_STOP_S)
        self.master.stop(_STOP_S)

    def kill(self) -> None:
        """Kill -9 the Thrift server, as a crash would; HBase itself continues."""
        self.thrift.kill()

    def restart(self) -> None:
        """Start the Thrift server again, and wait until it serves."""
        self.thrift.stop(_STOP_S)
        self.thrift.start()
        self.wait_ready()

    def wait_ready(self, timeout_s: float = _START_TIMEOUT_S) -> None:
        """Return when the Thrift server answers, and HBase through it."""
        both = [self.master, self.thrift]
        wait_until(self._answers, "HBase to answer through Thrift", both, timeout_s)

    def connect(self, timeout_s: float = _ANSWER_TIMEOUT_S) -> Any:
        """A connection of happybase: close it."""
        from happybase import Connection

        return Connection(self.host, self.port, timeout=int(timeout_s * 1000))

    def create_table(self, name: str, *families: str, **options: Any) -> None:
        """Make a table; `options` of happybase, such as `max_versions`, go to every family."""
        with closing(self.connect(timeout_s=_START_TIMEOUT_S)) as connection:
            connection.create_table(name, {family: dict(options) for family in families})

    def rows(self, table: str) -> dict[bytes, HBaseRow]:
        """Every row that a reader sees now, by its key; cells by `family:qualifier`."""
        with closing(self.connect()) as connection:
            return {
                key: {column.decode(): value for column, value in cells.items()}
                for key, cells in connection.table(table).scan()
            }

    def _server(self, name: str, main: str, heap_mb: int, *ports: int) -> ServerProcess:
        command = java_command(
            f"org.apache.hadoop.hbase.{main}",
            self._class_path,
            "start",
            heap_mb=heap_mb,
            options=_JAVA_OPTIONS,
        )
        return ServerProcess(name, command, self._folder, ports=ports)

    def _answers(self) -> bool:
        from thriftpy2.thrift import TException

        try:
            with closing(self.connect(timeout_s=5)) as connection:
                connection.client.getTableNames()
                return True
        except (TException, OSError):
            return False


@contextmanager
def hbase(
    folder: Path | None = None, settings: Mapping[str, str] | None = None
) -> Iterator[HBaseServer]:
    """An HBase for the length of a `with`, in a temporary folder unless one is given.

    Raises `ServerUnavailable` where it cannot be had, and `ServerFailed` if it does not come up.
    """
    with work_folder("hbase", folder) as work, running(HBaseServer(work, settings)) as server:
        yield server


def _write_configuration(
    folder: Path, ports: Mapping[str, int], settings: Mapping[str, str]
) -> None:
    site = {
        "hbase.rootdir": f"file://{folder}/data",
        "hbase.tmp.dir": f"{folder}/tmp",
        "hbase.cluster.distributed": "false",
        "hbase.unsafe.stream.capability.enforce": "false",
        "hbase.wal.provider": "filesystem",
        # Loopback only, and by number: a machine's own name may not resolve.
        "hbase.zookeeper.quorum": LOOPBACK,
        "hbase.zookeeper.property.clientPort": str(ports["zookeeper"]),
        "hbase.zookeeper.property.dataDir": f"{folder}/zookeeper",
        "hbase.localcluster.assign.random.ports": "false",
        "hbase.master.ipc.address": LOOPBACK,
        "hbase.master.port": str(ports["master"]),
        "hbase.master.hostname": LOOPBACK,
        "hbase.master.info.port": "-1",
        "hbase.regionserver.ipc.address": LOOPBACK,
        "hbase.regionserver.port": str(ports["region"]),
        "hbase.regionserver.hostname": LOOPBACK,
        "hbase.regionserver.info.port": "-1",
        "hbase.regionserver.thrift.ipaddress": LOOPBACK,
        "hbase.regionserver.thrift.port": str(ports["thrift"]),
        "hbase.thrift.info.port": "-1",
        # Small: a table of a test must not set 2 MB of the heap aside.
        "hbase.hregion.memstore.mslab.enabled": "false",
        "hbase.regionserver.handler.count": "8",
        "hbase.regionserver.metahandler.count": "4",
        "hbase.master.wait.on.regionservers.interval": "100",
        "hfile.block.cache.size": "0.1",
    }
    write_configuration(
        folder / "conf",
        {"hbase-site.xml": {**site, **settings}},
        quieter=("org.apache.zookeeper", "org.apache.hadoop.hbase.zookeeper"),
    )
