"""A driver that sleeps (SIGSTOP) while another takes over, then wakes: it changes nothing."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

from beadline.demo.check import check
from beadline.demo.workload import Workload
from beadline.verify.child import Child, Children
from beadline.verify.plan import Kill

FENCED = 4


def fall_asleep(drivers: Children, workload: Workload, point: str, count: int) -> Child:
    """Start a driver that stops itself at a crash point, and wait until it sleeps."""
    order = Kill(point, count).order(drivers.mark(), "pause")
    driver = drivers.start(str(workload.folder), order=order)
    assert driver.wait_until(lambda: driver.asleep), driver.complaint()
    return driver


def generations(driver: Child) -> list[int]:
    """What a driver claimed."""
    return [line["generation"] for line in driver.events if line["kind"] == "claimed"]


@pytest.mark.timeout(600)
@pytest.mark.sampled(2)
@pytest.mark.parametrize(
    "point", ["prepare.after", "decide.before", "decide.after", "commit.after", "epoch.return"]
)
def test_a_zombie_changes_nothing(tmp_path: Path, seed: int, point: str, drivers: Children) -> None:
    workload = Workload(tmp_path / "run", seed).make()
    workload.add(4)
    drivers.expected = 2
    zombie = fall_asleep(drivers, workload, point, 2)
    successor = drivers.start(str(workload.folder))
    assert successor.wait() == 0, successor.complaint()
    before = check(workload)
    assert before.exactly_once, before
    os.kill(zombie.pid, signal.SIGCONT)
    # Its own Spark may notice the other one's files before it comes to decide.
    assert zombie.wait() == FENCED, zombie.events[-3:]
    assert generations(successor) == [2]
    after = check(workload)
    assert after.exactly_once, after
