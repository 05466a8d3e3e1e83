"""The order of kills: every point is in it, where it can be reached, and it can be written down."""

from __future__ import annotations

import pytest

from beadline.chaos import plan
from beadline.chaos.plan import Kill
from beadline.chaos.points import POINTS


@pytest.mark.parametrize("seed", range(20))
def test_every_point_once_and_reachable(seed: int) -> None:
    chain = plan.every_point(seed)
    assert sorted(kill.point for kill in chain) == sorted(POINTS)
    assert chain == plan.every_point(seed) == plan.parse(plan.text(chain))
    check_reachable(chain)


@pytest.mark.parametrize("scope", [plan.PROCESS, plan.GROUP])
def test_every_case(scope: str) -> None:
    chain = plan.every_case(7, scope)
    again = {kill.point for kill in chain if kill.occurrence == 2}
    assert {kill.point for kill in chain} == set(POINTS)
    assert again == set(POINTS) - plan.ONCE
    check_reachable(chain)
    for first in range(len(chain)):
        check_reachable(plan.startable(chain[first:]))


def check_reachable(chain: list[Kill]) -> None:
    for index, kill in enumerate(chain):
        if kill.point in plan.NEEDS_DECIDED:
            assert index > 0
            assert chain[index - 1].leaves_decided, plan.text(chain)


def test_moments_are_of_drivers_and_workers() -> None:
    scopes = [kill.scope for kill in plan.moments(3, 8)]
    assert sorted(scopes) == ["group"] * 2 + ["process"] * 2 + ["worker"] * 4


@pytest.mark.parametrize("text", ["decide.never", "decide.before#0", "decide.before/worker", "a/b"])
def test_what_nobody_could_come_by_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"decide|'a'"):
        Kill.parse(text)
