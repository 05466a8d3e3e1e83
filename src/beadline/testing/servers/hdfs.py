"""A real HDFS, one NameNode and one DataNode, on the loopback interface.

::

    with hdfs() as cluster:
        spark.read.parquet(f"{cluster.uri}/orders")

Real, because what Beadline needs of a file system is what fakes get wrong: a rename that refuses
an existing target, an `hsync` that has reached the DataNode, a lease that outlives its writer.
Settings are Hadoop's own except for what makes it small, quick to start and quick to see a death.
"""

from __future__ import annotations

import json
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from beadline.testing.servers import maven, pins
from beadline.testing.servers.hadoop_files import write_configuration
from beadline.testing.servers.java import java_command
from beadline.testing.servers.ports import LOOPBACK, free_ports
from beadline.testing.servers.process import ServerProcess, run_to_end, wait_until
from beadline.testing.servers.running import running, work_folder

_SERVER = "org.apache.hadoop.hdfs.server"
_START_TIMEOUT_S = 90
# WebHDFS goes through an old JAXB, which reaches into the JDK.
_JAVA_OPTIONS = ("--add-opens=java.base/java.lang=ALL-UNNAMED",)
# Never through a proxy that the environment may name for the outside world.
_http = urllib.request.build_opener(urllib.request.ProxyHandler({}))


class HdfsCluster:
    """A running HDFS.

    A fault test may `kill` and `restart` its `namenode` and `datanode`, and then `wait_ready`:
    ports and data stay.
    """

    #: What a client of a one-DataNode cluster should set; for Spark, after `spark.hadoop.`.
    client_settings: Mapping[str, str] = {
        "dfs.replication": "1",
        "dfs.client.block.write.replace-datanode-on-failure.enable": "false",
    }

    def __init__(self, folder: Path) -> None:
        """Lay out the folder; `start` starts."""
        rpc, http, data, data_http, data_ipc = free_ports(5)
        self.uri = f"hdfs://{LOOPBACK}:{rpc}"
        self.http = f"http://{LOOPBACK}:{http}"
        self._folder = folder
        libraries = maven.jars(pins.HDFS)
        ports = {"http": http, "data": data, "data_http": data_http, "data_ipc": data_ipc}
        _write_configuration(folder, self.uri, ports)
        self._class_path = [folder / "conf", folder, libraries / "*"]
        self.namenode = self._server("namenode", "NameNode", rpc, http)
        self.datanode = self._server("datanode", "DataNode", data, data_http, data_ipc)

    def start(self) -> None:
        """Format, start both servers, and wait until a file can be written."""
        command = java_command(
            f"{_SERVER}.namenode.NameNode", self._class_path, "-format", "-nonInteractive"
        )
        run_to_end("format", command, self._folder, _START_TIMEOUT_S)
        self.namenode.start()
        self.datanode.start()
        self.wait_ready()

    def stop(self) -> None:
        """Stop both servers; the folder stays."""
        self.datanode.stop()
        self.namenode.stop()

    def wait_ready(self, timeout_s: float = _START_TIMEOUT_S) -> None:
        """Return when the DataNode is registered, safe mode is over, and a file can be written."""
        both = [self.namenode, self.datanode]
        wait_until(self._operational, "HDFS to leave safe mode", both, timeout_s)
        wait_until(self._writes, "HDFS to take a small file", both, timeout_s)

    def _server(self, name: str, main: str, *ports: int) -> ServerProcess:
        command = java_command(f"{_SERVER}.{name}.{main}", self._class_path, options=_JAVA_OPTIONS)
        return ServerProcess(name, command, self._folder, ports=ports)

    def _operational(self) -> bool:
        query = "Hadoop:service=NameNode,name=FSNamesystemState"
        try:
            with _http.open(f"{self.http}/jmx?qry={query}", timeout=5) as answer:
                beans = json.load(answer)["beans"]
        except (OSError, ValueError):
            return False
        return any(
            bean.get("FSState") == "Operational" and bean.get("NumLiveDataNodes", 0) >= 1
            for bean in beans
        )

    def _writes(self) -> bool:
        """Put a file over WebHDFS: needs no Hadoop client here, and goes all the way to disk."""
        options = "op=CREATE&overwrite=true&noredirect=true"
        create = f"{self.http}/webhdfs/v1/tmp/beadline-ready?{options}"
        try:
            with _http.open(_put(create), timeout=10) as answer:
                location = json.load(answer)["Location"]
            with _http.open(_put(location, b"ready"), timeout=10) as answer:
                return bool(answer.status == 201)
        except (OSError, ValueError, KeyError):
            return False


@contextmanager
def hdfs(folder: Path | None = None) -> Iterator[HdfsCluster]:
    """An HDFS for the length of a `with`, in a temporary folder unless one is given.

    Raises `ServerUnavailable` where it cannot be had, and `ServerFailed` if it does not come up.
    """
    with work_folder("hdfs", folder) as work, running(HdfsCluster(work)) as cluster:
        yield cluster


def _put(url: str, body: bytes = b"") -> urllib.request.Request:
    headers = {"Content-Type": "application/octet-stream"}
    return urllib.request.Request(url, data=body, headers=headers, method="PUT")


def _write_configuration(folder: Path, uri: str, ports: Mapping[str, int]) -> None:
    for web_application in ("hdfs", "datanode"):  # both servers insist on finding their folder
        (folder / "webapps" / web_application).mkdir(parents=True, exist_ok=True)
    core = {"fs.defaultFS": uri, "hadoop.tmp.dir": f"{folder}/tmp"}
    site = {
        "dfs.replication": "1",
        "dfs.permissions.enabled": "false",
        "dfs.namenode.name.dir": f"file://{folder}/name",
        "dfs.datanode.data.dir": f"file://{folder}/data",
        # Loopback only, and by number: a machine's own name may not resolve.
        "dfs.namenode.http-address": f"{LOOPBACK}:{ports['http']}",
        "dfs.datanode.address": f"{LOOPBACK}:{ports['data']}",
        "dfs.datanode.http.address": f"{LOOPBACK}:{ports['data_http']}",
        "dfs.datanode.ipc.address": f"{LOOPBACK}:{ports['data_ipc']}",
        "dfs.datanode.hostname": LOOPBACK,
        "dfs.namenode.datanode.registration.ip-hostname-check": "false",
        # Out of safe mode the moment the one DataNode has reported, and not before.
        "dfs.namenode.safemode.extension": "0",
        "dfs.namenode.safemode.min.datanodes": "1",
        # A restart or a death is noticed in seconds, not in the usual ten minutes.
        "dfs.heartbeat.interval": "1",
        "dfs.namenode.heartbeat.recheck-interval": "2000",
        "dfs.namenode.stale.datanode.interval": "5000",
        # One small node: no free-space reserve, few threads.
        "dfs.datanode.du.reserved": "0",
        "dfs.namenode.resource.du.reserved": "0",
        "dfs.namenode.handler.count": "4",
        "dfs.datanode.handler.count": "4",
    }
    files = {"core-site.xml": core, "hdfs-site.xml": site}
    write_configuration(folder / "conf", files, quieter=("http.requests",))
