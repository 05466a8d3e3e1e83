"""Dead-letter records in the model: refused rows are visible once, whichever process dies.

The first sink refuses some rows of some epochs; both of its kinds go with both kinds of a
dead-letter sink, because they are lost and found in other ways.
"""

from __future__ import annotations

import random
from contextlib import suppress
from functools import partial

import pytest

from beadline.errors import NotDeterministic
from beadline.points import hooked
from tests.conftest import is_long
from tests.model import server as model_server
from tests.model.explore import (
    Play,
    finish,
    play_all,
    play_crashes,
    play_every,
    play_turns,
    play_zombie,
    points,
    sample,
)
from tests.model.model import Crash, ModelWorld, Setting, at_least_once, drive
from tests.model.plays import play_errors, play_lost, play_modes, play_zombie_modes
from tests.model.server import LEDGER, PARTS

PAIRS = [
    Setting(kinds=(owner,), dead_letter=dead_letter, keep=2, stateful=stateful)
    for owner, dead_letter, stateful in (
        (PARTS, PARTS, True),
        (PARTS, LEDGER, False),
        (LEDGER, PARTS, True),
        (LEDGER, LEDGER, False),
    )
]
BESIDE_ANOTHER = Setting(kinds=(PARTS, LEDGER), dead_letter=PARTS, keep=2)


def named(setting: Setting) -> str:
    return f"{' and '.join(setting.kinds)} to {setting.dead_letter}"


def some(play: Play, rng: random.Random, count: int, *bounds: int) -> None:
    if is_long():
        play_every(play, len(bounds))
    else:
        play_all(play, sample(rng, count, bounds))


def die_after_decision(world: ModelWorld, epoch: int) -> None:
    """Let a driver die when this epoch is decided and nothing of it is visible."""
    passed: list[str] = []

    def hook(point: str) -> None:
        passed.append(point)
        if point == "decide.after" and passed.count(point) == epoch + 1:
            raise Crash(point)

    with hooked(hook), suppress(Crash):
        drive(world)


@pytest.mark.parametrize("setting", [*PAIRS, BESIDE_ANOTHER], ids=named)
def test_crashes(setting: Setting, rng: random.Random) -> None:
    play_every(partial(play_crashes, setting), 1)
    some(partial(play_crashes, setting), rng, 300, points(setting), 110)
    some(partial(play_zombie, setting), rng, 200, points(setting), 110)
    some(partial(play_turns, setting), rng, 100, points(setting), points(setting) + 15)


@pytest.mark.parametrize("setting", [*PAIRS, BESIDE_ANOTHER], ids=named)
def test_an_error_at_every_point(setting: Setting) -> None:
    play_every(partial(play_errors, setting), 1)


def test_losing_attempts_refuse_nothing() -> None:
    setting = Setting(kinds=(PARTS,), dead_letter=PARTS, losers=True)
    play_every(partial(play_crashes, setting), 1)


@pytest.mark.parametrize("crash", [False, True], ids=["lives", "dies"])
@pytest.mark.parametrize("setting", [*PAIRS[:3], BESIDE_ANOTHER], ids=named)
def test_lost_parts_are_replayed_once(setting: Setting, crash: bool, rng: random.Random) -> None:
    """Of either sink, at every point; and, at pairs of points, two of them."""
    play = partial(play_lost, setting, crash=crash)
    play_every(play, 1)
    some(play, rng, 200, points(setting), 130)


@pytest.mark.parametrize("publishes", [False, True], ids=["commits", "publishes"])
def test_at_least_once(publishes: bool, rng: random.Random) -> None:
    setting = Setting(
        kinds=(PARTS,),
        dead_letter=PARTS,
        strict=False,
        publishes=publishes,
        coordinator=at_least_once,
    )
    modes = ("at-least", "at-least", "at-least")
    some(partial(play_modes, setting, modes), rng, 200, 60, 60)
    some(partial(play_zombie_modes, setting, modes), rng, 200, 60, 60)


@pytest.fixture
def decided() -> ModelWorld:
    """Epoch 0 is decided: three rows in two parts, one dead-letter record; nothing is visible."""
    world = ModelWorld(Setting(kinds=(PARTS,), dead_letter=PARTS))
    die_after_decision(world, 0)
    assert [len(server.prepared) for server in world.servers.values()] == [2, 1]
    return world


def test_lost_dead_letter_records_are_asked_of_the_sink_that_refused_them(
    decided: ModelWorld,
) -> None:
    owner, dead_letter = decided.servers.values()
    first = set(owner.prepared)
    dead_letter.expire(next(iter(dead_letter.prepared)))
    finish(decided)
    assert first <= owner.visible.keys(), "its parts were not lost"
    assert len([part for part in owner.aborted if part.epoch == 0]) == 2, "all of it was spare"
    (part,) = (part for part in dead_letter.visible if part.epoch == 0)
    assert part.generation == 2


def test_where_only_the_owner_lost_parts_its_dead_letter_records_stay(decided: ModelWorld) -> None:
    owner, dead_letter = decided.servers.values()
    first = set(dead_letter.prepared)
    gone = next(iter(owner.prepared))
    owner.expire(gone)
    finish(decided)
    assert {part for part in dead_letter.visible if part.epoch == 0} == first
    assert {part for part in decided.store.decided[dead_letter.target] if part.epoch == 0} == first
    assert gone not in owner.visible


@pytest.mark.parametrize("lost", [0, 1], ids=["owner", "dead-letter records"])
def test_a_target_that_refuses_other_rows_than_before_stops_the_replay(
    decided: ModelWorld, lost: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A topic that is there by now: the row would be in both sinks, so nothing is published."""
    server = list(decided.servers.values())[lost]
    for part in list(server.prepared):
        server.expire(part)
    monkeypatch.setattr(model_server, "is_refused", lambda row: row == "0")
    for _ in range(2):
        with pytest.raises(NotDeterministic, match="refused 1 rows, which are not the 1"):
            drive(decided)
        assert not server.visible
        assert not any(server.prepared for server in decided.servers.values())
    monkeypatch.undo()
    finish(decided)
