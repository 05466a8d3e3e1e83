"""Cases: a commit may come twice, from anywhere, at once, or an hour late."""

from __future__ import annotations

import itertools
import threading
from functools import partial

from beadline.errors import BeadlineError
from beadline.points import hooked
from beadline.sink import Outcome
from beadline.testing.suite.elsewhere import commit_elsewhere
from beadline.testing.suite.harness import SinkHarness
from beadline.testing.suite.target import (
    POINTS_MAX,
    PreparedParts,
    Target,
    crash_at,
    does_not_apply,
    only_exactly_once,
    was_there,
)

__all__ = [
    "test_a_commit_that_pauses_while_others_go_on_has_no_effect",
    "test_a_late_commit_after_a_crash_has_no_effect",
    "test_a_late_commit_has_no_effect",
    "test_another_process_can_commit",
    "test_commit_again_changes_nothing",
    "test_two_commits_at_once_show_each_row_once",
]

IN_EFFECT = {Outcome.COMMITTED, Outcome.ALREADY_COMMITTED}
RACES = 5
PAUSE_S = 0.3


@only_exactly_once
def test_commit_again_changes_nothing(harness: SinkHarness) -> None:
    """Recovery commits the newest decision again, always."""
    target = Target(harness)
    parts = target.prepare_epoch(0, target.rows(1, 2, 3), target.rows(4))
    target.commit(0, parts)
    for again in (target, target.copy()):
        assert again.commit(0, parts) <= IN_EFFECT
        target.assert_shows(*target.rows(1, 2, 3, 4))
        target.assert_clean()


def test_another_process_can_commit(harness: SinkHarness) -> None:
    """Which has nothing but the pickled sink and the stored committable: an ack means durable."""
    if not harness.other_process:
        return does_not_apply("the harness says that no other process can reach the target")
    target = Target(harness)
    parts = target.prepare_epoch(0, target.rows(1, 2, 3), target.rows(4))
    assert commit_elsewhere(target.sink, 0, parts) <= IN_EFFECT
    target.assert_shows(*target.rows(1, 2, 3, 4))
    target.assert_clean()
    return None


@only_exactly_once
def test_a_late_commit_has_no_effect(harness: SinkHarness) -> None:
    """A driver that was paused for an hour commits what it decided; newer epochs are there."""
    target = Target(harness)
    history = [target.rows(1, 2, version=epoch) for epoch in range(3)]
    prepared = []
    for epoch, rows in enumerate(history):
        prepared.append(target.prepare_epoch(epoch, rows))
        target.commit(epoch, prepared[-1])
    for epoch in (0, 1):
        assert target.copy().commit(epoch, prepared[epoch]) <= IN_EFFECT
        target.assert_shows(*(row for rows in history for row in rows))
    target.assert_clean()


@only_exactly_once
def test_a_late_commit_after_a_crash_has_no_effect(harness: SinkHarness) -> None:
    """The crash may have left anything half-done; the new start finishes it, not the zombie."""
    for nth in range(POINTS_MAX):
        target = Target(harness)
        old = target.prepare_epoch(0, target.rows(1, 2))
        zombie = target.copy()
        point = crash_at(nth, partial(zombie.commit, 0, old))
        target.commit(0, old)
        target.commit(1, target.prepare_epoch(1, target.rows(1, 2, version=1)))
        assert zombie.commit(0, old) <= IN_EFFECT
        target.assert_shows(*target.rows(1, 2), *target.rows(1, 2, version=1))
        target.assert_clean()
        if not was_there(nth, point, "commit"):
            return


@only_exactly_once
def test_two_commits_at_once_show_each_row_once(harness: SinkHarness) -> None:
    """Two drivers that both hold the decision, in a race."""
    target = Target(harness)
    shown = []
    for epoch in range(RACES):
        rows = target.rows(*range(epoch * 10, epoch * 10 + 6))
        parts = target.prepare_epoch(epoch, rows[:3], rows[3:])
        _race(target, epoch, parts)
        shown += rows
        target.assert_shows(*shown)
        target.assert_clean()


def _race(target: Target, epoch: int, parts: PreparedParts) -> None:
    barrier = threading.Barrier(2)
    problems: list[BaseException] = []

    def commit(hands: Target) -> None:
        barrier.wait()
        try:
            assert hands.commit(epoch, parts) <= IN_EFFECT
        except BaseException as problem:  # noqa: BLE001 (carried to the test's own thread)
            problems.append(problem)

    threads = [threading.Thread(target=commit, args=(target.copy(),)) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if problems:
        raise problems[0]


@only_exactly_once
def test_a_commit_that_pauses_while_others_go_on_has_no_effect(harness: SinkHarness) -> None:
    """A zombie stops between its look and its write; others finish this epoch and the next."""
    for nth in range(POINTS_MAX):
        target = Target(harness)
        first = target.prepare_epoch(0, target.rows(1, 2))
        second = target.prepare_epoch(1, target.rows(1, 2, version=1))
        paused = _pause(nth, target, first, second)
        target.assert_shows(*target.rows(1, 2), *target.rows(1, 2, version=1))
        target.assert_clean()
        if not was_there(nth, paused, "commit"):
            return


def _pause(nth: int, target: Target, first: PreparedParts, second: PreparedParts) -> bool:
    """Commit ``first``, paused at its nth crash point while others commit both epochs."""
    points = itertools.count()
    reached, others = threading.Event(), threading.Event()

    def hook(name: str) -> None:
        if next(points) == nth:
            reached.set()
            others.wait(PAUSE_S)  # not for ever: it may hold the lock that the others want

    outcomes: set[Outcome] = set()

    def zombie() -> None:
        try:
            outcomes.update(target.copy().commit(0, first))
        except (BeadlineError, AssertionError, OSError) as error:
            print(
                f"the commit of the zombie raised: {error}"
            )  # which is its right, if it changes nothing

    thread = threading.Thread(target=zombie)
    with hooked(hook):
        thread.start()
        while thread.is_alive() and not reached.wait(0.01):
            pass
        for epoch, parts in enumerate((first, second)):
            assert target.commit(epoch, parts) <= IN_EFFECT
        others.set()
        thread.join()
    assert Outcome.LOST not in outcomes, "visible rows were reported lost to the zombie"
    return reached.is_set()
