"""The order of kills: every point is in it, where it can be reached, and it can be written down."""

from __future__ import annotations

import pytest

from beadline.points import KAFKA_POINTS, POINTS
from beadline.verify import plan
from beadline.verify.plan import Kill
from tests.harness.points import (
    OF_KAFKA,
    BrokerKill,
    every_case,
    moments_with_brokers,
    parse,
    text,
)
from tests.kill import test_kafka_kill_points as kafka_points
from tests.kill import test_kafka_random_kills as random_kills
from tests.kill.test_kafka_network import END_WRITER

SCOPES = (plan.PROCESS, plan.GROUP)


@pytest.mark.parametrize("points", [list(POINTS), OF_KAFKA], ids=["files", "kafka"])
@pytest.mark.parametrize("seed", range(20))
def test_every_point_once_and_reachable(seed: int, points: list[str]) -> None:
    chain = plan.every_point(seed, points)
    assert sorted(kill.point for kill in chain) == sorted(points)
    assert chain == plan.every_point(seed, points) == parse(text(chain))
    check_reachable(chain)
    for first in range(len(chain)):
        check_reachable(plan.startable(chain[first:]))


def test_every_point_of_kafka_is_in_some_chain() -> None:
    """Those that a job without a fault reaches, and those that only a fault leads to."""
    tried = {kill.point for scope in SCOPES for kill in kafka_points.kills_of(7, scope)}
    tried |= {kill.point for kill in parse(kafka_points.EXPIRING)} | {END_WRITER}
    assert tried == {name for name in {**POINTS, **KAFKA_POINTS} if not name.startswith("files.")}
    assert tried > KAFKA_POINTS.keys()


def test_how_many_kills_a_long_run_makes() -> None:
    at_points = sum(len(kafka_points.kills_of(7, scope)) for scope in SCOPES)
    at_moments = random_kills.KILLS_LONG * random_kills.ROUNDS
    assert at_points >= 50
    assert at_moments >= 40


@pytest.mark.parametrize("scope", [plan.PROCESS, plan.GROUP])
def test_every_case(scope: str) -> None:
    chain = every_case(7, scope)
    again = {kill.point for kill in chain if kill.occurrence == 2}
    assert {kill.point for kill in chain} == set(POINTS)
    assert again == set(POINTS) - plan.ONCE
    check_reachable(chain)
    for first in range(len(chain)):
        check_reachable(plan.startable(chain[first:]))


def check_reachable(chain: list[Kill]) -> None:
    for index, kill in enumerate(chain):
        if kill.needs_one_before:
            assert index > 0
            assert kill.may_follow(chain[index - 1]), text(chain)


def test_moments_are_of_drivers_and_workers() -> None:
    scopes = [kill.scope for kill in plan.moments(3, 8)]
    assert sorted(scopes) == ["group"] * 2 + ["process"] * 2 + ["worker"] * 4


def test_half_of_the_moments_with_brokers_are_of_brokers() -> None:
    kills = moments_with_brokers(3, 5)
    brokers = [kill for kill in kills if isinstance(kill, BrokerKill)]
    assert len(kills) == 5
    assert [str(kill) for kill in brokers] == ["moment/broker"] * 3
    assert all(kill.survived for kill in brokers)
    assert parse(text(kills)) == kills
    at_a_point = parse("decide.after#2/broker,decide.after#2/group")
    assert at_a_point == [BrokerKill("decide.after", 2), Kill("decide.after", 2, "group")]


@pytest.mark.parametrize(
    "text",
    [
        "decide.never",
        "decide.before#0",
        "decide.before/worker",
        "decide.after/broker",
        "moment/broker",
        "a/b",
    ],
)
def test_kills_that_no_child_can_reach_are_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"decide|moment|'a'"):
        Kill.parse(text)
