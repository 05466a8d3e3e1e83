"""The driver of ``test_speculation``: a part that is prepared twice at the same time.

Run as a program, because it needs a Spark cluster of its own: Spark makes a second attempt only on
another host, so two workers have two addresses of the loopback interface. In each epoch the first
attempt of one part is prepared and then dawdles before its ack, until Spark starts a second one
beside it, whose ack comes first. The rows of the first are there, staged, and nobody asked for
them.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pyspark

from beadline import exactly_once
from beadline.environment.session import session
from beadline.ids import QueryId
from beadline.sink import Capabilities, Part
from beadline.sinks import SqliteSink
from beadline.testing.servers.java import java_command
from beadline.testing.servers.ports import free_ports
from beadline.testing.servers.process import ServerProcess
from tests.spark.jobs import read, run, write_input

DAWDLE_S = 8.0
OPENED = ("java.lang", "java.nio", "java.util", "sun.nio.ch")
HOSTS = ("127.0.0.1", "127.0.0.2")


@dataclass(frozen=True)
class DawdlingSink(SqliteSink):
    """Slow in one part, and only in the attempt that Spark made first."""

    def check(self, schema: Any, query: QueryId) -> Capabilities:
        """Here, the two hosts are one, with one disk."""
        return replace(super().check(schema, query), shared_disk=False)

    def prepare(self, rows: Iterator[Any], part: Part) -> Any:
        """Stage, note that it was done, and dawdle."""
        from pyspark import TaskContext

        prepared = super().prepare(rows, part)
        context = TaskContext.get()
        assert context is not None
        notes = Path(self.path).parent / "prepared"
        notes.mkdir(exist_ok=True)
        (notes / f"{part.id.epoch}-{part.id.partition}-{part.id.attempt}").touch()
        if context.partitionId() == 0 and context.attemptNumber() == 0:
            time.sleep(DAWDLE_S)
        return prepared


def main(folder: Path) -> None:
    """Run three epochs on a cluster, and say what is staged in the end."""
    with standalone(folder / "cluster") as master:
        speculate(folder, master)


@contextmanager
def standalone(folder: Path) -> Iterator[str]:
    """Run a Spark master and two workers; yield the master's address."""
    (port,) = free_ports(1)
    jars = [Path(pyspark.__file__).parent / "jars" / "*"]
    deploy = "org.apache.spark.deploy"
    # As Spark's own launcher does: Hadoop and Arrow reach into the JDK.
    opens = [f"--add-opens=java.base/{name}=ALL-UNNAMED" for name in OPENED]
    at = ("--host", HOSTS[0], "--port", str(port), "--webui-port", "0")
    command = java_command(f"{deploy}.master.Master", jars, *at, options=opens)
    processes = [ServerProcess("master", command, folder, ports=[port])]
    for host in HOSTS:
        size = ("--host", host, "--cores", "1", "--memory", "1g", "--webui-port", "0")
        url = f"spark://{HOSTS[0]}:{port}"
        command = java_command(f"{deploy}.worker.Worker", jars, *size, url, options=opens)
        spark = str(Path(pyspark.__file__).parent)
        home = {**os.environ, "SPARK_HOME": spark, "SPARK_SCALA_VERSION": "2.13"}
        processes.append(ServerProcess("worker", command, folder / host, env=home))
    processes[0].start()
    processes[0].wait_for_ports()
    try:
        for process in processes[1:]:
            process.start()
        yield f"spark://{HOSTS[0]}:{port}"
    finally:
        for process in reversed(processes):
            process.stop()


def speculate(folder: Path, master: str) -> None:
    """Run the job on the cluster."""
    conf = {
        "spark.master": master,
        "spark.driver.host": HOSTS[0],
        "spark.executor.memory": "768m",
        "spark.executor.cores": "1",
        "spark.scheduler.minRegisteredResourcesRatio": "1.0",
        "spark.scheduler.maxRegisteredResourcesWaitingTime": "60s",
        "spark.cores.max": "2",
        "spark.sql.shuffle.partitions": "2",
        "spark.log.level": "OFF",
        "spark.speculation": "true",
        "spark.speculation.interval": "100ms",
        "spark.speculation.minTaskRuntime": "500ms",
        "spark.speculation.multiplier": "1.2",
        "spark.speculation.quantile": "0.25",
    }
    spark = session("speculation", **conf)
    write_input(folder / "in", 3, rows=40)
    frame = read(spark, folder / "in").repartition(2)
    run(exactly_once(frame, "job").to(DawdlingSink(folder / "out.db", "rows")), folder)
    staged = list((folder / ".out.db.beadline").rglob("beadline~*"))
    print(f"staged={len(staged)}")
    spark.stop()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
