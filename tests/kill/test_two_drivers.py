"""Two drivers of one query at once: the newer one lives, the older one ends as fenced.

Spark's own logs know no fence: whichever driver comes second to one of their files fails with
Spark's error, and by chance that is the newer one.
"""

from __future__ import annotations

import os
import random
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from beadline.demo.check import check
from beadline.demo.workload import Workload
from beadline.verify.child import CHILD_TIMEOUT_S, Children
from tests.kill import rate_job
from tests.kill.test_zombie import FENCED, fall_asleep, generations

_ROUNDS_MIN = 5  # of a long run; one alone may go by without a conflict


@pytest.fixture(scope="module")
def beaten() -> Iterator[Callable[[bool], None]]:
    """Takes what every race saw; in many of them, a driver must have been in another's way."""
    seen: list[bool] = []
    yield seen.append
    assert any(seen) or len(seen) < _ROUNDS_MIN, "drivers that never met prove nothing"


def test_spark_of_the_newer_driver_comes_second_and_is_started_again(
    tmp_path: Path, seed: int, drivers: Children
) -> None:
    workload = Workload(tmp_path / "run", seed).make()
    workload.add(4)
    commits = workload.checkpoint / "commits"
    drivers.expected = 2
    older = fall_asleep(drivers, workload, "epoch.return", 2)
    # Both have finished epoch 1 then, and neither Spark has written that it is done.
    newer = fall_asleep(drivers, workload, "epoch.return", 1)
    # What the older one's Spark writes next. Were it woken to do so itself, it would as often
    # learn first that it is fenced.
    (commits / ".1.tmp").write_bytes((commits / "0").read_bytes())
    (commits / ".1.tmp").rename(commits / "1")
    os.kill(newer.pid, signal.SIGCONT)
    assert newer.wait() == 0, newer.complaint()
    os.kill(older.pid, signal.SIGCONT)
    assert older.wait() == FENCED, older.complaint()
    assert sum(line["kind"] == "spark restarted" for line in newer.events) == 1
    found = check(workload)
    assert found.exactly_once, found


@pytest.mark.timeout(900)
@pytest.mark.sampled(1)
@pytest.mark.parametrize("number", range(20))
def test_drivers_started_at_once(
    tmp_path: Path, seed: int, number: int, drivers: Children, beaten: Callable[[bool], None]
) -> None:
    """One of them lives: the newest by its claim; a driver that ended before is not beaten."""
    workload = Workload(tmp_path / "run", seed).make()
    workload.add(8)
    race(drivers, workload.folder, seed, number, beaten)
    found = check(workload)
    assert found.exactly_once, found


@pytest.mark.timeout(900)
@pytest.mark.sampled(1)
@pytest.mark.parametrize("number", range(20))
def test_drivers_of_quickly_written_logs_started_at_once(
    tmp_path: Path, seed: int, number: int, drivers: Children, beaten: Callable[[bool], None]
) -> None:
    """Both may take one name of Spark's logs then: what a driver has planned is compared."""
    drivers.module = rate_job.__name__
    race(drivers, tmp_path, seed, number, beaten)
    events = [line for driver in drivers.started for line in driver.events]
    managers = {line["name"] for line in events if line["kind"] == rate_job.MANAGER}
    assert managers == {"FileSystemBasedCheckpointFileManager"}
    values = sorted(pq.read_table(tmp_path / "out")["value"].to_pylist())
    assert values == list(range(len(values)))
    assert len(values) >= rate_job.EPOCHS * rate_job.ROWS


def race(
    drivers: Children, folder: Path, seed: int, number: int, beaten: Callable[[bool], None]
) -> None:
    """Start two or three drivers; the newest ends well, and the others do or are fenced.

    ``beaten`` is told whether one of them got in another's way.
    """
    rng = random.Random(f"{seed} {number}")
    for _ in range(2 + number % 2):
        drivers.start(str(folder))
        if len(drivers.started) == 2:
            assert drivers.started[0].alive, "the first has ended: that is no race"
        time.sleep(rng.choice((0.0, 0.0, 0.3, 1.0, 2.0)))
    codes = [driver.wait(CHILD_TIMEOUT_S * 2) for driver in drivers.started]
    claims = [generations(driver) for driver in drivers.started]
    newest = max(range(len(claims)), key=lambda number: claims[number])
    said = "\n".join(driver.complaint() for driver in drivers.started)
    assert codes[newest] == 0, (claims, codes, said)
    assert set(codes) <= {0, FENCED}, (claims, codes, said)
    events = [line for driver in drivers.started for line in driver.events]
    beaten(FENCED in codes or any(line["kind"] == "spark restarted" for line in events))
