"""Two drivers of one query at once: the newer one lives, the older one ends as fenced.

Spark's own logs know no fence: whichever driver comes second to one of their files fails with
Spark's error, and by chance that is the newer one.
"""

from __future__ import annotations

import os
import random
import signal
import subprocess
import time
from pathlib import Path

import pytest

from beadline.demo.check import check
from beadline.demo.workload import Workload
from tests.kill.test_zombie import FENCED, TIMEOUT_S, events, start, wait_until_asleep


def restarts(log: Path) -> int:
    """How many times a driver started Spark's query again."""
    return sum(event["kind"] == "spark restarted" for event in events(log))


def test_spark_of_the_newer_driver_comes_second_and_is_started_again(
    tmp_path: Path, seed: int
) -> None:
    workload = Workload(tmp_path / "run", seed).make()
    workload.add(4)
    logs = tmp_path / "older.log", tmp_path / "newer.log"
    commits = workload.checkpoint / "commits"
    older = start(workload, logs[0], crash="epoch.return#2", crash_scope="pause")
    newer: subprocess.Popen[bytes] | None = None
    try:
        wait_until_asleep(older)
        # Both have finished epoch 1 now, and neither Spark has written that it is done.
        pause = {"crash_scope": "pause", "crash_mark": str(tmp_path / "once")}
        newer = start(workload, logs[1], crash="epoch.return#1", **pause)
        wait_until_asleep(newer)
        # What the older one's Spark writes next. Were it woken to do so itself, it would as often
        # learn first that it is fenced.
        (commits / ".1.tmp").write_bytes((commits / "0").read_bytes())
        (commits / ".1.tmp").rename(commits / "1")
        os.kill(newer.pid, signal.SIGCONT)
        assert newer.wait(TIMEOUT_S) == 0, logs[1].read_text()[-2000:]
        os.kill(older.pid, signal.SIGCONT)
        assert older.wait(TIMEOUT_S) == FENCED, logs[0].read_text()[-2000:]
    finally:
        for driver in (older, newer):
            if driver is not None and driver.poll() is None:
                os.killpg(driver.pid, signal.SIGKILL)
    assert restarts(logs[1]) == 1
    found = check(workload)
    assert found.exactly_once, found


@pytest.mark.timeout(900)
@pytest.mark.sampled(1)
@pytest.mark.parametrize("number", range(20))
def test_drivers_started_at_once(tmp_path: Path, seed: int, number: int) -> None:
    """One of them lives: the newest by its claim; a driver that ended before is not beaten."""
    rng = random.Random(f"{seed} {number}")
    workload = Workload(tmp_path / "run", seed).make()
    workload.add(8)
    logs = [tmp_path / f"driver{i}.log" for i in range(2 + number % 2)]
    drivers = []
    for log in logs:
        drivers.append(start(workload, log))
        time.sleep(rng.choice((0.0, 0.0, 0.3, 1.0, 2.0)))
    try:
        codes = [driver.wait(TIMEOUT_S * 2) for driver in drivers]
    finally:
        for driver in drivers:
            if driver.poll() is None:
                os.killpg(driver.pid, signal.SIGKILL)
    claims = [[e["generation"] for e in events(log) if e["kind"] == "claimed"] for log in logs]
    newest = max(range(len(logs)), key=lambda i: claims[i])
    said = "\n".join(log.read_text("utf-8", "replace")[-1500:] for log in logs)
    assert codes[newest] == 0, (claims, codes, said)
    assert set(codes) <= {0, FENCED}, (claims, codes, said)
    found = check(workload)
    assert found.exactly_once, found
