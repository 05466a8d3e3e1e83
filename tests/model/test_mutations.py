"""Worse protocols, each of which must be caught: a checker that finds nothing proves nothing.

Every mutation leaves out one rule. It is played until the promise that the rule keeps is broken,
and the real protocol has to pass the schedule that did it.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import pytest

from beadline.decisions import DecisionLog, LogState
from beadline.errors import LogProblem, WrongCheckpoint
from beadline.ids import EpochId, QueryId
from beadline.points import hooked
from beadline.protocol import identity, publish, replay
from beadline.protocol.coordinator import Coordinator
from tests.model import mutations as worse
from tests.model.explore import (
    Play,
    Schedule,
    finish,
    play_crashes,
    play_zombie,
    sample,
    told,
)
from tests.model.model import Crash, ModelSink, ModelWorld, Setting, Violation, drive
from tests.model.plays import play_lost, play_lost_unlike, play_modes, play_stop

Explore = Callable[[Setting], Play]
LENGTH = 110  # more points than any run of three epochs has


def exploring(play: Callable[..., int], **options: Any) -> Explore:
    """Return how to play schedules of one kind in any setting."""
    return lambda setting: partial(play, setting, **options)


CRASHES = exploring(play_crashes)
ZOMBIES = exploring(play_zombie)
STOPS = exploring(play_stop)
TWO_TAKEOVERS = exploring(play_zombie, again=True)
LOST = exploring(play_lost)


def hunt(play: Play, seen: str, tries: int = 3000) -> Schedule:
    """Play schedules in no special order until one breaks the promise that is meant."""
    others: Counter[str] = Counter()
    for schedule in sample(random.Random(0), tries, (LENGTH, LENGTH)):
        try:
            play(schedule)
        except BaseException as error:
            if isinstance(error, KeyboardInterrupt):
                raise
            found = f"{type(error).__name__}: {error}"
            if seen in found:
                return schedule
            others[found[:60]] += 1
    pytest.fail(f"{tries} schedules, and none was seen: {seen!r}, but {others.most_common(3)}")


MUTATIONS: list[tuple[Setting, Explore, str]] = [
    (Setting(coordinator=worse.CommitsBeforeItDecides), CRASHES, "visible and not decided"),
    (Setting(coordinator=worse.ClosesAllTheSame, epochs=2, closes=True), STOPS, "aborted"),
    (Setting(coordinator=worse.NeverAborts), CRASHES, "left in doubt"),
    (Setting(coordinator=worse.AbortsBeforeTheClaim), ZOMBIES, "aborted, then decided"),
    (Setting(coordinator=worse.NeverClaims), ZOMBIES, "aborted, then decided"),
    (Setting(coordinator=worse.NeverCommitsAgain), CRASHES, ": lost"),
    (Setting(coordinator=worse.LeavesItToSpark), CRASHES, "decided, started and not visible"),
    (Setting(coordinator=worse.ReturnsBeforeItCommits), CRASHES, ": lost"),
    (Setting(coordinator=worse.LetsTheStateStand, stateful=True), CRASHES, "did not move on"),
    (Setting(log=worse.DecidesAllTheSame), ZOMBIES, "aborted, then decided"),
    (Setting(log=worse.SparesTheNewestOnly, keep=2), CRASHES, "CorruptRecord"),
    (Setting(log=worse.TrustsTheCreate, keep=2), TWO_TAKEOVERS, "visible and not decided"),
    (Setting(sink=worse.ForgetsOlderEpochs), ZOMBIES, "shown twice"),
    (Setting(sink=worse.ChecksTheLedgerTooEarly), ZOMBIES, "shown twice"),
    (Setting(coordinator=worse.ReplaysUndecided), LOST, "visible and not decided"),
    (Setting(coordinator=worse.DropsLostParts), LOST, ": lost"),
]


def name_of(value: object) -> str:
    """A mutation is named by the class that it exchanges."""
    if not isinstance(value, Setting):
        return ""
    chosen = (value.coordinator, value.log, value.sink)
    return next(c.__name__ for c in chosen if c.__module__ == worse.__name__)


@pytest.mark.parametrize(("setting", "explore", "seen"), MUTATIONS, ids=name_of)
def test_a_mutation_is_caught(setting: Setting, explore: Explore, seen: str) -> None:
    schedule = hunt(explore(setting), seen)
    real = replace(setting, coordinator=Coordinator, log=DecisionLog, sink=ModelSink)
    with told(schedule):
        explore(real)(schedule)  # what catches it is not impossible to pass


def test_failed_append_taken_as_undecided_is_caught() -> None:
    for of, log in (
        (Coordinator, DecisionLog),
        (worse.TakesAFailureAsUndecided, worse.NeverReadsBack),
    ):
        world = ModelWorld(Setting(coordinator=of, log=log))
        world.store.fail_at = 3  # the claim, epoch 0, epoch 1
        if of is Coordinator:
            finish(world)
            continue
        with pytest.raises(LogProblem), hooked(world.look):
            drive(world)
        with pytest.raises(Violation, match="decided, then aborted"):
            finish(world)


@pytest.mark.parametrize(
    ("at", "mutation"),
    [("prepare.before", worse.NeverSweepsLosers), ("epoch.return", worse.LeavesLosersOpen)],
)
def test_losers_left_to_the_next_start_are_caught(at: str, mutation: type[Coordinator]) -> None:
    """The real protocol sweeps them when the epoch is finished, not when the next one comes."""

    def most_in_doubt(of: type[Coordinator]) -> int:
        world, most = ModelWorld(Setting(losers=True)), 0

        def hook(point: str) -> None:
            nonlocal most
            if point == at:
                most = max(most, *(len(s.prepared) for s in world.servers.values()))

        with hooked(hook):
            drive(world, of)
        return most

    assert most_in_doubt(Coordinator) == 0
    assert most_in_doubt(mutation) > 0


def crash_after(name: str, times: int) -> Callable[[str], None]:
    """Return a hook that crashes when a driver reaches a point for the ``times``-th time."""
    passed: list[str] = []

    def hook(point: str) -> None:
        passed.append(point)
        if passed.count(name) == times:
            raise Crash(point)

    return hook


def rewind(world: ModelWorld) -> None:
    """Crash with epoch 1 decided, lose its offsets, and let Spark plan it again with more rows."""
    with pytest.raises(Crash), hooked(crash_after("decide.after", 2)):
        drive(world)
    assert [decision.epoch for decision in world.store.decisions] == [0, 1]
    start, end = world.planned[1]
    world.planned[1] = (start, end + world.per_epoch)


def test_a_rewound_checkpoint_is_refused_and_without_the_check_rows_are_lost(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    world = ModelWorld()
    rewind(world)
    with pytest.raises(WrongCheckpoint, match="source positions of epoch 1"):
        drive(world)
    for module in (identity, replay):
        monkeypatch.setattr(module, "check_offsets", lambda decision, digest, meaning="": None)
    with pytest.raises(Violation, match=": lost"):
        finish(world)


def test_a_replay_without_checksums_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rule 13: other rows than were decided are not published."""
    monkeypatch.setattr(replay, "_content", lambda part: (0, 0))
    play = partial(play_lost_unlike, Setting(deterministic=False))
    hunt(play, "continued all the same")


MIXED = Setting(strict=False)
CHANGE = ("at-least", "exactly", "exactly")


def published_is_forgotten(state: LogState, committed: int) -> int:
    """Only the newest claim's own mode counts."""
    if state.claim is None or state.claim.mode == identity.EXACTLY_ONCE:
        return -1
    return committed + 1


def test_a_claim_that_forgets_what_was_published_is_caught(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """After a change of mode and two crashes, the query would never start again."""
    play = partial(play_modes, MIXED, CHANGE)
    monkeypatch.setattr(identity, "published", published_is_forgotten)
    schedule = hunt(play, "which does not match the decision log")
    monkeypatch.undo()
    with told(schedule):
        play(schedule)


def test_a_start_that_does_not_look_again_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    """A driver that still runs moves on between two reads: no reason to cry corruption."""
    monkeypatch.setattr(DecisionLog, "moved", lambda log: False)
    hunt(partial(play_zombie, Setting()), "WrongCheckpoint")


def test_a_publisher_that_makes_up_a_nonce_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    """After a change of mode the sink's nonce would be that of no decision: refused for ever."""

    def made_up(query: QueryId, number: int, nonce: str, at_ms: int) -> EpochId:
        return EpochId(query, number, nonce or "made up", at_ms)

    play = partial(play_modes, MIXED, CHANGE)
    monkeypatch.setattr(publish, "EpochId", made_up)
    schedule = hunt(play, "which does not match the decision log")
    monkeypatch.undo()
    with told(schedule):
        play(schedule)


def test_a_drop_that_lasts_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rule 5: dropping a sink gives up the epoch that was decided, not those that follow."""

    def moved_and_dropped() -> None:
        world = ModelWorld(Setting(keep=2))
        with pytest.raises(Crash), hooked(crash_after("decide.after", 2)):
            drive(world)
        world.move("ledger1")
        with hooked(world.look):
            drive(world, drop=["ledger1"])
        assert sorted(world.servers["ledger1"].rows()) == sorted(world.rows(2))

    moved_and_dropped()
    monkeypatch.setattr(identity, "given_up", lambda state, decision: {*state.claim.dropped})
    with pytest.raises(AssertionError):
        moved_and_dropped()
