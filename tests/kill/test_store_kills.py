"""Real kill -9 with databases and stores as sinks; then everything that shows is counted.

In each store, one sink's commit is not idempotent by itself (appends, totals that are added up,
pushes), so a commit that happens twice, or half, is seen.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from pathlib import Path

import pytest

from beadline.demo.supervisor import RunFailed
from beadline.demo.workload import Workload
from beadline.verify import plan
from beadline.verify.plan import Kill
from tests.harness import targets
from tests.harness.chain import Run, run_chain
from tests.harness.points import text
from tests.kill.stores import STORES, points_of

KILLS = 4
KILLS_LONG = 10
MOMENTS_LONG = 6


def judged(
    request: pytest.FixtureRequest, folder: Path, name: str, kills: Sequence[Kill], seed: int
) -> Run:
    """Make a run on a store, and judge it."""
    again = f"BEADLINE_SEED={seed} make test; {name}: {text(kills)}"
    print(again)
    workload = Workload(folder / f"{name}-{seed}", seed)
    workload.make()
    store = STORES[name](request, workload.folder)
    targets.save(workload, store.targets)
    try:
        made = run_chain(workload, kills, print, store.judge, targets.JOB)
    except (RunFailed, TimeoutError) as error:
        pytest.fail(f"{error}\nreplay: {again}", pytrace=False)
    assert made.report.exactly_once, f"{made.report}\nreplay: {again}"
    assert made.report.leftovers == (), f"{made.report.leftovers}\nreplay: {again}"
    assert made.report.rows_in > 0
    return made


@pytest.mark.sampled(2)
@pytest.mark.timeout(900)
@pytest.mark.parametrize("name", STORES)
def test_some_points(request: pytest.FixtureRequest, tmp_path: Path, name: str, seed: int) -> None:
    rng = random.Random(f"{seed} {name}")
    usual = [point for point in points_of(name) if not Kill(point).needs_one_before]
    kills = [Kill("decide.after"), *plan.every_point(seed, rng.sample(usual, KILLS - 1))]
    made = judged(request, tmp_path, name, kills, seed)
    assert made.missed == []


@pytest.mark.long
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("first", [0, KILLS_LONG])
@pytest.mark.parametrize("name", STORES)
def test_every_point(
    request: pytest.FixtureRequest, tmp_path: Path, name: str, first: int, seed: int
) -> None:
    kills = plan.every_point(seed, points_of(name))[first : first + KILLS_LONG]
    made = judged(request, tmp_path, name, plan.startable(kills), seed)
    assert made.missed == []


@pytest.mark.long
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("name", STORES)
def test_random_moments(
    request: pytest.FixtureRequest, tmp_path: Path, name: str, seed: int
) -> None:
    judged(request, tmp_path, name, plan.moments(seed, MOMENTS_LONG), seed)
