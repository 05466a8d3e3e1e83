"""Every crash point, up to two crashes, and a second driver waking at every point.

Three epochs, two sinks (one of prepared transactions, one with a ledger), two parts each. At every
point the checker looks: visible only if decided, never twice, never both decided and aborted. After
a last undisturbed start every row is there once and nothing is in doubt. What is too much for a
normal run is sampled by the seed, and played whole with BEADLINE_LONG=1.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

import pytest

from beadline.errors import CommitFailed, PrepareFailed
from beadline.ids import EpochId
from beadline.points import POINTS, hooked
from beadline.shared import retry as retrying
from beadline.sink import CommitResult, Outcome, Prepared
from tests.conftest import is_long
from tests.model.explore import (
    Play,
    finish,
    only,
    play_all,
    play_crashes,
    play_every,
    play_turns,
    play_zombie,
    points,
    sample,
)
from tests.model.model import (
    COMMITTED,
    PLANNED,
    READING,
    ModelSink,
    ModelWorld,
    Setting,
    at_least_once,
    drive,
)
from tests.model.plays import (
    STUCK,
    play_errors,
    play_failing_append,
    play_lost,
    play_lost_unlike,
    play_modes,
    play_moved,
    play_stop,
    play_stuck,
    play_zombie_modes,
)
from tests.model.server import LEDGER, PARTS, ModelCommittable

# keep=2 frees slots at once; by default nothing is freed in so short a run.
PLAIN = Setting()
STATEFUL = Setting(stateful=True)
PLAIN_KEEP_2 = Setting(keep=2)
STATEFUL_KEEP_2 = Setting(stateful=True, keep=2)
EVERY = [PLAIN, STATEFUL, PLAIN_KEEP_2, STATEFUL_KEEP_2]
MIXED = Setting(strict=False, stateful=True, keep=2)

MODES = [
    ("exactly", "at-least", "exactly"),
    ("at-least", "exactly", "at-least"),
    ("at-least", "exactly", "exactly"),
    ("exactly", "at-least", "at-least"),
    ("at-least", "at-least", "exactly"),
]


def named(setting: Setting) -> str:
    words = ["stateful" if setting.stateful else "stateless", f"keep {setting.keep}"]
    return ", ".join([*words, *setting.kinds, *(["losers"] if setting.losers else [])])


def every_or_sample(
    play: Play, rng: random.Random, count: int, bounds: tuple[int, ...], whole: bool = False
) -> int:
    """Play all of it if that was asked for, else as many as may be had in a normal run."""
    if whole or is_long():
        return play_every(play, len(bounds))
    return play_all(play, sample(rng, count, bounds))


def test_a_run_comes_by_every_point_of_the_protocol() -> None:
    """Points of other sinks and of recovery aside, no step of an epoch goes untried."""
    passed: set[str] = set()
    world = ModelWorld(PLAIN)
    with hooked(passed.add):
        drive(world)
    world.check_end()
    recovery = {"recover.before", "recover.after", "epoch.again"}
    of_files = {name for name in POINTS if name.startswith("files.")}
    assert passed - READING - {PLANNED, COMMITTED} == POINTS.keys() - recovery - of_files


@pytest.mark.parametrize("setting", EVERY, ids=named)
def test_two_crashes(setting: Setting, rng: random.Random) -> None:
    """Both drivers die, at every pair of points; the third finishes."""
    whole = setting in (PLAIN, STATEFUL_KEEP_2)
    tried = every_or_sample(partial(play_crashes, setting), rng, 300, (86, 110), whole)
    assert tried >= (4900 if whole and only() is None else 1)


@pytest.mark.parametrize("setting", EVERY, ids=named)
def test_a_second_driver_wakes(setting: Setting, rng: random.Random) -> None:
    """A sleeps at every point, B dies at every point or not; A is a zombie; C finishes."""
    whole = setting is STATEFUL_KEEP_2
    bounds = (points(setting), 110)
    tried = every_or_sample(partial(play_zombie, setting), rng, 400, bounds, whole)
    assert tried >= (5000 if whole and only() is None else 1)


@pytest.mark.parametrize("setting", [PLAIN_KEEP_2, STATEFUL_KEEP_2], ids=named)
def test_a_sleeper_through_two_takeovers(setting: Setting, rng: random.Random) -> None:
    """A's slot is free again when it wakes: retention has freed the one that fenced it."""
    play = partial(play_zombie, setting, again=True)
    every_or_sample(play, rng, 600, (points(setting), 110))


@pytest.mark.parametrize("setting", EVERY, ids=named)
def test_two_drivers_at_once(setting: Setting, rng: random.Random) -> None:
    """A to p, B to q, A to its end, B to its end; nobody dies, one is overtaken."""
    bounds = (points(setting), points(setting) + 15)
    every_or_sample(partial(play_turns, setting), rng, 400, bounds)


def test_two_drivers_in_many_turns(rng: random.Random) -> None:
    bounds = (40, 40, 30, 30, 30, 30, 30, 30)
    count = 20_000 if is_long() else 500
    play_all(partial(play_turns, STATEFUL_KEEP_2), sample(rng, count, bounds))


@pytest.mark.parametrize("play", [play_crashes, play_zombie], ids=["crash", "zombie"])
def test_losing_attempts(play: partial[int]) -> None:
    """Every first part is prepared twice; the loser is swept, whichever process dies."""
    play_every(partial(play, Setting(losers=True, keep=2)), 1)


@pytest.mark.parametrize("stateful", [False, True], ids=["stateless", "stateful"])
def test_a_clean_stop(stateful: bool, rng: random.Random) -> None:
    """It ends every writer: its own, never those of a start that has taken over meanwhile."""
    setting = Setting(epochs=2, stateful=stateful, keep=2, closes=True)
    play_every(partial(play_crashes, setting), 1)
    play_every(partial(play_zombie, setting), 1)
    every_or_sample(partial(play_stop, setting), rng, 300, (points(setting), 80))
    end = points(Setting(epochs=1, closes=True))
    stopping = range(end - 10, end)
    play_all(partial(play_stop, setting), [(a, b) for a in stopping for b in range(80)])


def test_a_sink_is_moved_away_from_another_one(rng: random.Random) -> None:
    """What it left is swept by the one that stayed, and nothing that was decided for that one."""
    play = partial(play_moved, Setting(epochs=2, kinds=(PARTS, PARTS)))
    play_every(play, 1)
    every_or_sample(play, rng, 300, (60, 80))


@pytest.mark.parametrize("name", ["parts0", "ledger1"])
@pytest.mark.parametrize("setting", [PLAIN, STATEFUL_KEEP_2], ids=named)
def test_an_epoch_is_given_up(setting: Setting, name: str, rng: random.Random) -> None:
    """Drivers die anywhere: also around the second claim of a start, which gives it up."""
    passed: Counter[str] = Counter()
    world = ModelWorld(setting)
    world.servers[name].stuck = [STUCK]
    with pytest.raises(CommitFailed):
        drive(world)
    with hooked(lambda point: passed.update([point])):
        drive(world, drop=[name])
    assert passed["claim.before"] == passed["claim.after"] == 2, "of one start"
    play = partial(play_stuck, setting, name)
    play_every(play, 1)
    every_or_sample(play, rng, 250, (80, 80))


@pytest.mark.parametrize("asleep", [False, True], ids=["alone", "as a zombie"])
@pytest.mark.parametrize("setting", [PLAIN, STATEFUL_KEEP_2], ids=named)
def test_an_error_at_every_point(setting: Setting, asleep: bool, rng: random.Random) -> None:
    """As ``stop()`` makes it: what a driver does about an error must not break anything either."""
    play = partial(play_errors, setting, asleep=asleep)
    play_every(play, 1)
    every_or_sample(play, rng, 250, (points(setting), 110))


@pytest.mark.parametrize("point", ["prepare.part", "prepare.acked"])
def test_what_a_failed_prepare_leaves_is_swept_at_once(point: str) -> None:
    for failing in range(1, 13):
        world = ModelWorld(PLAIN)
        passed: list[str] = []

        def hook(name: str, passed: list[str] = passed, failing: int = failing) -> None:
            passed.append(name)
            if name == point and passed.count(point) == failing:
                raise RuntimeError("a task failed")

        with hooked(hook), pytest.raises(PrepareFailed, match="a task failed"):
            drive(world)
        assert not any(server.prepared for server in world.servers.values())
        finish(world)


ASKED: Counter[str] = Counter()


@dataclass(frozen=True)
class Vague(ModelSink):
    """Answers every other time, and then only for the first part; it may have done it or not."""

    def commit(self, epoch: EpochId, parts: Sequence[Prepared[ModelCommittable]]) -> CommitResult:
        ASKED[self.server.target] += 1
        if ASKED[self.server.target] % 3 == 1:
            return CommitResult({part.id: Outcome.UNKNOWN for part in parts})
        outcomes = super().commit(epoch, parts).outcomes
        if ASKED[self.server.target] % 3 == 2:
            return CommitResult({parts[0].id: outcomes[parts[0].id]})
        return CommitResult(outcomes)


def test_an_unknown_outcome_is_asked_for_until_it_is_known(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Rule 14."""
    monkeypatch.setattr(retrying, "_PAUSES_S", (0.0,))
    ASKED.clear()
    play_every(partial(play_crashes, Setting(sink=Vague)), 1)
    assert min(ASKED.values()) > 100


@pytest.mark.parametrize("landed", [True, False], ids=["landed", "refused"])
def test_a_failing_append(landed: bool) -> None:
    """An append that fails but landed is decided; one that is not there is unknown, no more."""
    play_every(partial(play_failing_append, STATEFUL, landed=landed), 2)


LOST = [
    Setting(stateful=stateful, keep=2, kinds=kinds)
    for stateful in (False, True)
    for kinds in ((PARTS, LEDGER), (PARTS, PARTS))
]


@pytest.mark.parametrize("crash", [False, True], ids=["lives", "dies"])
@pytest.mark.parametrize("setting", LOST, ids=named)
def test_a_lost_part_is_replayed_once(setting: Setting, crash: bool, rng: random.Random) -> None:
    """A prepared part expires at every point, in one sink of two; then, at pairs of points."""
    play = partial(play_lost, setting, crash=crash)
    play_every(play, 1)
    every_or_sample(play, rng, 150, (points(setting), 130))


@pytest.mark.parametrize("crash", [False, True], ids=["lives", "dies"])
def test_a_lost_part_of_a_plan_that_is_not_deterministic(crash: bool) -> None:
    """It stops at every start, and nothing else is published."""
    play_every(partial(play_lost_unlike, Setting(deterministic=False), crash=crash), 1)


@pytest.mark.parametrize("publishes", [False, True], ids=["commits", "publishes"])
@pytest.mark.parametrize("stateful", [False, True], ids=["stateless", "stateful"])
def test_at_least_once_loses_nothing(stateful: bool, publishes: bool, rng: random.Random) -> None:
    setting = Setting(
        stateful=stateful, strict=False, publishes=publishes, coordinator=at_least_once
    )
    modes = ("at-least", "at-least", "at-least")
    every_or_sample(partial(play_modes, setting, modes), rng, 300, (60, 60))
    every_or_sample(partial(play_zombie_modes, setting, modes), rng, 300, (60, 60))


@pytest.mark.parametrize("modes", MODES, ids=" → ".join)
def test_the_mode_changes(modes: tuple[str, str, str], rng: random.Random) -> None:
    """Nothing is lost, nothing refuses to start, and what was only ever decided shows once."""
    every_or_sample(partial(play_modes, MIXED, modes), rng, 300, (86, 110))


@pytest.mark.parametrize("modes", MODES, ids=" → ".join)
def test_the_mode_changes_while_the_old_driver_sleeps(
    modes: tuple[str, str, str], rng: random.Random
) -> None:
    every_or_sample(partial(play_zombie_modes, MIXED, modes), rng, 200, (95, 110))
