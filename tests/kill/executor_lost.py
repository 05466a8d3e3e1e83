"""The driver of ``test_executor_lost``: two sinks, and an executor that dies between their jobs.

Run as a program, because it needs a Spark with executors of their own (``local-cluster``). The
rows are not deterministic: if Spark computed them again for the second sink, the two would differ.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from pathlib import Path

from beadline import exactly_once
from beadline.chaos.points import hooked
from beadline.errors import BeadlineError
from beadline.run.session import session
from beadline.sinks import SqliteSink
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


def main(folder: Path) -> None:
    """Run until everything is through; print what happened."""
    conf = {
        "spark.master": "local-cluster[2,1,768]",
        "spark.executor.memory": "768m",
        "spark.sql.shuffle.partitions": "2",
        "spark.log.level": "OFF",
    }
    spark = session("executor-lost", **conf)
    write_input(folder / "in", 3, rows=40)
    frame = read(spark, folder / "in").repartition(2).selectExpr("id", "uuid() AS u")
    stream = exactly_once(frame, "job")
    for table in ("one", "other"):
        stream = stream.to(SqliteSink(folder / "out.db", table))
    kills = 0

    def kill_one(point: str) -> None:
        nonlocal kills
        if point == "prepare.between" and kills < 1:
            kills += 1
            for pid in executors():
                os.kill(pid, signal.SIGKILL)
            time.sleep(2.0)  # until Spark has noticed

    failures = 0
    with hooked(kill_one):
        for _ in range(5):
            try:
                run(stream, folder)
                break
            except BeadlineError as error:
                failures += 1
                print("failed:", str(error)[:200])
    print(f"kills={kills} failures={failures}")
    spark.stop()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
