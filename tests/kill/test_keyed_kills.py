"""Real kill -9 under a ``KeyedProcess``: its state, its timers and what they told are counted."""

from __future__ import annotations

import random
from collections.abc import Sequence
from pathlib import Path

import pytest

from beadline.demo.supervisor import RunFailed
from beadline.demo.workload import Workload
from beadline.points import POINTS
from beadline.verify import plan
from beadline.verify.plan import Kill
from tests.harness import keyed
from tests.harness.chain import run_chain
from tests.harness.points import every_case, text

KILLS = 2
CHAIN_LONG = 12


def run_and_judge(folder: Path, kills: Sequence[Kill], seed: int) -> None:
    again = f"BEADLINE_SEED={seed}; {text(kills)}"
    print(again)
    workload = Workload(folder / "run", seed, rows_per_file=60)
    try:
        made = run_chain(workload, kills, print, keyed.judge, keyed.JOB)
    except (RunFailed, TimeoutError) as error:
        pytest.fail(f"{error}\nreplay: {again}", pytrace=False)
    assert made.report.exactly_once, f"{made.report}\nreplay: {again}"
    assert made.report.leftovers == (), f"{made.report.leftovers}\nreplay: {again}"
    assert made.report.sinks[keyed.FIRED].rows_out > 0
    assert made.missed == []


@pytest.mark.timeout(900)
def test_some_points(tmp_path: Path, seed: int) -> None:
    rng = random.Random(f"{seed} keyed")
    usual = [point for point in POINTS if not Kill(point).needs_one_before]
    # Decided, and not known to Spark: the state of the epoch is computed again.
    kills = [Kill("decide.after"), *plan.every_point(seed, rng.sample(usual, KILLS - 1))]
    run_and_judge(tmp_path, kills, seed)


@pytest.mark.long
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("first", range(0, len(every_case(0, plan.PROCESS)), CHAIN_LONG))
def test_every_case(tmp_path: Path, seed: int, first: int) -> None:
    kills = every_case(seed, plan.PROCESS)[first : first + CHAIN_LONG]
    run_and_judge(tmp_path, plan.startable(kills), seed)
