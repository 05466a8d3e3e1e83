"""Real kill -9, at every named crash point and at random moments; then everything is counted.

Each test is one chain of children on one checkpoint, each killed somewhere else, the last left
alone. What came out must be what went in, as multisets: nothing lost, nothing twice, nothing torn,
and no part left over. A failing chain prints the command that makes it again.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from beadline.demo.supervisor import RunFailed
from beadline.demo.workload import Workload
from beadline.points import POINTS
from beadline.verify import plan
from beadline.verify.plan import Kill
from tests.harness.chain import Run, replay, run_chain
from tests.harness.points import every_case

MOMENTS = 3
MOMENTS_LONG = 40
ROUNDS = 4
# One chain must not be longer than what fits into its test's time on a busy machine.
CHAIN_LONG = 12

Chain = Callable[[Sequence[Kill], int], Run]


@pytest.fixture
def chain(tmp_path: Path) -> Chain:
    """Make a run, and judge it; how it went is on stdout, which pytest shows of a failure."""

    def run(kills: Sequence[Kill], seed: int) -> Run:
        again = replay(seed, kills)
        print(again)
        try:
            made = run_chain(Workload(tmp_path / "run", seed), kills, print)
        except (RunFailed, TimeoutError) as error:
            pytest.fail(f"{error}\nreplay: {again}", pytrace=False)
        assert made.report.exactly_once, f"{made.report}\nreplay: {again}"
        assert made.report.leftovers == (), f"parts are left over\nreplay: {again}"
        assert made.report.rows_in > 0
        return made

    return run


@pytest.mark.timeout(1800)
def test_every_crash_point(chain: Chain, seed: int) -> None:
    made = chain(plan.every_point(seed), seed)
    # A point that no process reaches is a promise that no test has tried.
    assert made.reached == set(POINTS), f"missed: {made.missed}; replay: {replay(seed, made.kills)}"


@pytest.mark.timeout(900)
def test_random_moments(chain: Chain, seed: int) -> None:
    made = chain(plan.moments(seed, MOMENTS), seed)
    assert made.killed >= 1


def cases() -> list[tuple[str, int]]:
    """Both scopes, cut into chains; the points of each depend on the seed, their number not."""
    return [
        (scope, first)
        for scope in (plan.PROCESS, plan.GROUP)
        for first in range(0, len(every_case(0, scope)), CHAIN_LONG)
    ]


@pytest.mark.long
@pytest.mark.timeout(1800)
@pytest.mark.parametrize(("scope", "first"), cases())
def test_every_case(chain: Chain, seed: int, scope: str, first: int) -> None:
    """Each point with each scope, the first time that it is reached and the second."""
    kills = every_case(seed, scope)[first : first + CHAIN_LONG]
    made = chain(plan.startable(kills), seed)
    assert made.missed == [], replay(seed, made.kills)


@pytest.mark.long
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("round_", range(ROUNDS))
def test_many_random_moments(chain: Chain, seed: int, round_: int) -> None:
    # A few more than are counted: a child may be done before its moment comes.
    made = chain(plan.moments(seed + round_, MOMENTS_LONG // ROUNDS + 2), seed + round_)
    assert made.killed >= MOMENTS_LONG // ROUNDS, replay(seed + round_, made.kills)
