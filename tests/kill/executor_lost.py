"""The driver of ``test_executor_lost``: two sinks, and an executor that dies under them.

Run as a program, because it needs a Spark with executors of their own (``local-cluster``). The
rows are not deterministic: if Spark computed them again for the second sink, the two would differ.

``between`` kills both executors between the jobs of the two sinks. ``within`` kills one in the job
of the first sink, when its part is done and that of the other still runs: the job ends well, and
Spark computes the lost part again before it lets go of how that is done.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from beadline import exactly_once
from beadline.environment.session import session
from beadline.errors import BeadlineError
from beadline.points import hooked
from beadline.sinks import SqliteSink
from tests.slowness import patient
from tests.spark.jobs import read, run, write_input

EXECUTOR = "CoarseGrainedExecutorBackend"


def executors() -> list[int]:
    """The process ids of this session's executors; the test runs in a session of its own."""
    found = []
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit() or os.getsid(int(entry.name)) != os.getsid(0):
            continue
        if EXECUTOR.encode() in (entry / "cmdline").read_bytes():
            found.append(int(entry.name))
    return found


def wait_for(condition: Callable[[], bool], timeout_s: float = 60.0) -> None:
    """Wait until a condition holds."""
    until_s = time.monotonic() + patient(timeout_s)
    while not condition():
        assert time.monotonic() < until_s, "it did not happen"
        time.sleep(0.05)


def own_executor() -> int:
    """The process id of the executor whose Python worker this is."""
    pid = os.getpid()
    while EXECUTOR.encode() not in Path(f"/proc/{pid}/cmdline").read_bytes():
        pid = int(Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[1])
    return pid


@dataclass(frozen=True)
class WaitingSink(SqliteSink):
    """Part 1 of the first epoch waits, before its ack, for a file; each part tells who runs it."""

    def prepare(self, rows: Iterator[Any], part: Any) -> Any:
        """Stage; then tell, and wait."""
        found = super().prepare(rows, part)
        folder = Path(self.path).parent
        if part.id.epoch == 0:
            (folder / f"prepared-{part.id.partition}").write_text(str(own_executor()))
            if part.id.partition == 1:
                wait_for((folder / "go").exists)
        return found


@contextmanager
def killed_between(spark: SparkSession, folder: Path) -> Iterator[None]:
    """Kill both executors when the first sink is prepared."""
    killed: list[int] = []

    def kill(point: str) -> None:
        if point == "prepare.between" and not killed:
            killed.extend(executors())
            for pid in killed:
                os.kill(pid, signal.SIGKILL)
            # Until Spark has noticed.
            wait_for(lambda: not set(killed) & set(executors()))
            time.sleep(2.0)

    with hooked(kill):
        yield
    print(f"kills={int(bool(killed))}")


@contextmanager
def killed_within(spark: SparkSession, folder: Path) -> Iterator[None]:
    """Kill the executor of part 0 when that is acknowledged, and part 1 still runs elsewhere."""
    kills = 0

    def kill() -> None:
        nonlocal kills
        wait_for(lambda: all((folder / f"prepared-{part}").exists() for part in (0, 1)))
        doomed, other = (int((folder / f"prepared-{part}").read_text()) for part in (0, 1))
        if doomed != other:
            tracker = spark.sparkContext.statusTracker()

            def acked() -> bool:
                stages = [tracker.getStageInfo(stage) for stage in tracker.getActiveStageIds()]
                return any(s and s.numTasks == 2 and s.numCompletedTasks == 1 for s in stages)

            wait_for(acked)
            os.kill(doomed, signal.SIGKILL)
            kills += 1
            lost = len(executors())
            wait_for(lambda: len(executors()) > lost or doomed not in executors())
            time.sleep(2.0)  # until Spark has noticed
        (folder / "go").touch()

    thread = threading.Thread(target=kill, daemon=True)
    thread.start()
    yield
    thread.join(5)
    print(f"kills={kills}")


KILLS: dict[str, Callable[[SparkSession, Path], AbstractContextManager[None]]] = {
    "between": killed_between,
    "within": killed_within,
}


def by_chance() -> str:
    """Answers differently each time; Spark's own uuid() keeps its seed when it runs again."""
    import uuid

    return uuid.uuid4().hex


def some(frame: DataFrame) -> DataFrame:
    """A sink's own ``rows=``."""
    return frame.where("id >= 0")


def main(folder: Path, how: str) -> None:
    """Run until everything is through; print what happened."""
    conf = {
        "spark.master": "local-cluster[2,1,768]",
        "spark.executor.memory": "768m",
        "spark.sql.shuffle.partitions": "2",
        "spark.log.level": "OFF",
        "spark.executorEnv.PYTHONPATH": str(Path(__file__).parents[2]),
    }
    spark = session("executor-lost", **conf)
    write_input(folder / "in", 3 if how == "between" else 1, rows=40)
    frame = read(spark, folder / "in").repartition(2, "id")
    frame = frame.select("id", F.udf(by_chance).asNondeterministic()().alias("u"))
    stream = exactly_once(frame, "job").to(WaitingSink(folder / "out.db", "one"))
    stream = stream.to(SqliteSink(folder / "out.db", "other"), rows=some)
    failures = 0
    if how == "between":
        (folder / "go").touch()
    with KILLS[how](spark, folder):
        for _ in range(5):
            try:
                run(stream, folder)
                break
            except BeadlineError as error:
                failures += 1
                print("failed:", str(error)[:400])
    print(f"failures={failures}")
    spark.stop()


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2])
