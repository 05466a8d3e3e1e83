"""The driver of ``test_spark_fails_or_ends``: ways in which Spark ends under a query.

Run as a program, because Spark does not come back from some of them: a Python worker that is killed
(which costs an attempt, with the session's own default), ``spark.stop()``, the death of the JVM.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pyspark import SparkContext
from pyspark.sql import SparkSession

from beadline import exactly_once
from beadline.environment.session import session
from beadline.sinks import SqliteSink
from tests.spark.jobs import read, table, write_input


@dataclass(frozen=True)
class DyingSink(SqliteSink):
    """The first attempt of the second epoch dies with its worker."""

    def prepare(self, rows: Iterator[Any], part: Any) -> Any:
        """Stage; then die, once."""
        found = super().prepare(rows, part)
        mark = Path(self.path).with_suffix(".died")
        if part.id.epoch == 1 and not mark.exists():
            mark.touch()
            os.kill(os.getpid(), signal.SIGKILL)
        return found


def kill_java() -> None:
    """Kill the JVM that this process has started."""
    gateway = SparkContext._gateway
    assert gateway is not None
    os.kill(gateway.proc.pid, signal.SIGKILL)


def ending(spark: SparkSession, folder: Path, end: Callable[[], None]) -> None:
    """Run a query, end Spark under it, and say what its user is told."""
    write_input(folder / "in", 2)
    stream = exactly_once(read(spark, folder / "in"), "job").to(DyingSink(folder / "out.db", "t"))
    query = stream.start(str(folder / "checkpoint"))
    query.processAllAvailable()
    print("rows", len(table(folder)), "died", (folder / "out.died").exists())
    timer = threading.Timer(1.0, end)
    timer.start()
    try:
        print("ended", query.awaitTermination(60))
    except Exception as error:  # noqa: BLE001 (that is what is shown)
        print("raised", type(error).__name__, error)
    timer.join()
    query.stop()
    print("left", type(query.exception()).__name__)


def main(folder: Path, how: str) -> None:
    """Play one way."""
    spark = session("ended", **{"spark.log.level": "OFF", "spark.driver.memory": "512m"})
    print("master", spark.sparkContext.master)
    ending(spark, folder, spark.stop if how == "stop" else kill_java)
    os._exit(0)


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2])
