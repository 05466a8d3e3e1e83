"""A driver that sleeps (SIGSTOP) while another takes over, then wakes: it changes nothing."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from beadline.demo.check import check
from beadline.demo.workload import Workload

FENCED = 4
TIMEOUT_S = 180


def start(workload: Workload, log: Path, **crash: str) -> subprocess.Popen[bytes]:
    """Start a driver of the workload's job in a session of its own."""
    environment = {k: v for k, v in os.environ.items() if not k.startswith("BEADLINE_CRASH")}
    environment |= {f"BEADLINE_{key.upper()}": value for key, value in crash.items()}
    with log.open("wb") as out:
        return subprocess.Popen(
            [sys.executable, "-m", "beadline.demo.job", str(workload.folder)],
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=subprocess.STDOUT,
            env=environment,
            start_new_session=True,
        )


def events(log: Path) -> list[dict[str, Any]]:
    """What a driver told."""
    lines = log.read_text("utf-8", "replace").splitlines()
    return [json.loads(line) for line in lines if line.startswith('{"kind"')]


def wait_until_asleep(process: subprocess.Popen[bytes]) -> None:
    """Wait until the driver has stopped itself at its crash point."""
    deadline = time.monotonic() + TIMEOUT_S
    while time.monotonic() < deadline:
        state = Path(f"/proc/{process.pid}/stat").read_text().rpartition(")")[2].split()[0]
        if state == "T":
            return
        assert process.poll() is None, "the driver ended before it came by its point"
        time.sleep(0.1)
    raise TimeoutError("the driver did not come by its point")


@pytest.mark.timeout(600)
@pytest.mark.sampled(2)
@pytest.mark.parametrize(
    "point", ["prepare.after", "decide.before", "decide.after", "commit.after", "epoch.return"]
)
def test_a_zombie_changes_nothing(tmp_path: Path, seed: int, point: str) -> None:
    workload = Workload(tmp_path / "run", seed).make()
    workload.add(4)
    zombie_log, heir_log = tmp_path / "zombie.log", tmp_path / "heir.log"
    zombie = start(workload, zombie_log, crash=f"{point}#2", crash_scope="pause")
    try:
        wait_until_asleep(zombie)
        heir = start(workload, heir_log)
        assert heir.wait(TIMEOUT_S) == 0, heir_log.read_text()[-2000:]
        before = check(workload)
        assert before.exactly_once, before
        os.kill(zombie.pid, signal.SIGCONT)
        code = zombie.wait(TIMEOUT_S)
    finally:
        os.killpg(zombie.pid, signal.SIGKILL)
    told = events(zombie_log)
    # Its own Spark may notice the other one's files before it comes to decide.
    assert code == FENCED, told[-3:]
    assert [e["generation"] for e in events(heir_log) if e["kind"] == "claimed"] == [2]
    after = check(workload)
    assert after.exactly_once, after
