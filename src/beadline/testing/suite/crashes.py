"""Cases: the process dies in the middle of prepare or commit, at every point that it reaches."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

from beadline.sink import FrameSink
from beadline.testing.suite.harness import SinkHarness
from beadline.testing.suite.repeats import IN_EFFECT
from beadline.testing.suite.target import (
    POINTS_MAX,
    SimulatedCrash,
    Target,
    bag,
    crash_at,
    does_not_apply,
    only_exactly_once,
    part_id,
    was_there,
)

__all__ = [
    "test_a_crash_in_commit_is_finished_by_the_next_commit",
    "test_a_crash_in_prepare_is_swept_and_tried_again",
    "test_a_crash_while_rows_come_is_swept",
    "test_a_part_that_is_swept_while_it_is_written_leaves_nothing",
    "test_a_task_that_fails_leaves_nothing_after_the_sweep",
    "test_an_atomic_epoch_shows_whole_or_not_at_all",
]

ONE_FRAME = "the rows of a FrameSink come from Spark, not from an iterator"


class TaskFailed(Exception):
    """An error in the rows themselves: a user's function, a source that is gone."""


@only_exactly_once
def test_a_crash_in_commit_is_finished_by_the_next_commit(harness: SinkHarness) -> None:
    """What was done before the crash is not repeated, and what was not is done."""
    for nth in range(POINTS_MAX):
        target = Target(harness)
        target.commit(0, target.prepare_epoch(0, target.rows(1, 2)))
        rows = [target.rows(1, 2, 3, version=1), target.rows(4, 5)]
        parts = target.prepare_epoch(1, *rows)
        dying = target.copy()
        point = crash_at(nth, partial(dying.commit, 1, parts))
        assert target.commit(1, parts) <= IN_EFFECT
        target.assert_shows(*target.rows(1, 2), *rows[0], *rows[1])
        target.assert_clean()
        if not was_there(nth, point, "commit"):
            return


@only_exactly_once
def test_an_atomic_epoch_shows_whole_or_not_at_all(harness: SinkHarness) -> None:
    """``Capabilities.atomic``: also to a reader who looks just after a crash in the commit."""
    for nth in range(POINTS_MAX):
        target = Target(harness)
        if not target.capabilities.atomic:
            return does_not_apply("the sink does not say that its epochs are atomic")
        before, shares = target.rows(1, 2), [target.rows(3, 4), target.rows(5)]
        target.commit(0, target.prepare_epoch(0, before))
        parts = target.prepare_epoch(1, *shares)
        point = crash_at(nth, partial(target.copy().commit, 1, parts))
        whole = [*before, *shares[0], *shares[1]]
        seen = bag(harness.visible(target.sink))
        assert seen in (bag(harness.expected(before)), bag(harness.expected(whole))), (
            f"after a crash at {point} an epoch shows in part: {list(seen)}"
        )
        target.commit(1, parts)
        if not was_there(nth, point, "commit"):
            return None
    return None


def test_a_crash_in_prepare_is_swept_and_tried_again(harness: SinkHarness) -> None:
    """Half a part shows nowhere, is swept, and does not get in the way of the next attempt."""
    for nth in range(POINTS_MAX):
        target = Target(harness)
        dying = target.copy()
        rows = target.rows(1, 2, 3, 4, 5)
        point = crash_at(nth, partial(dying.ack, rows, part_id(0)))
        _sweep_and_retry(target)
        if point is None and nth == 0 and not _leaves_something(harness):
            return does_not_apply("a prepared part leaves nothing outside its committable")
        if not was_there(nth, point, "prepare"):
            return None
    return None


def _leaves_something(harness: SinkHarness) -> bool:
    target = Target(harness)
    target.prepare_epoch(0, target.rows(1))
    found = target.leaves_something
    target.sweep()
    return found


def test_a_task_that_fails_leaves_nothing_after_the_sweep(harness: SinkHarness) -> None:
    """An error among the rows must come out of ``prepare``, never turn into a short part."""
    _disturbed(harness, TaskFailed)


def test_a_crash_while_rows_come_is_swept(harness: SinkHarness) -> None:
    """A worker is killed in the middle of a part: no handler of errors has run."""
    _disturbed(harness, SimulatedCrash)


def _disturbed(harness: SinkHarness, error: type[BaseException]) -> None:
    target = Target(harness)
    if isinstance(target.sink, FrameSink):
        return does_not_apply(ONE_FRAME)

    def broken(batches: Iterator[Any]) -> Iterator[Any]:
        yield next(batches)
        raise error("in the middle of the rows")

    try:
        target.copy().ack(target.rows(1, 2, 3, 4, 5), part_id(0), around=broken)
    except error:
        return _sweep_and_retry(target)
    raise AssertionError("prepare swallowed an error among its rows")


def _sweep_and_retry(target: Target) -> None:
    """What recovery does after a crash before the decision."""
    target.assert_shows()
    target.sweep()
    target.assert_clean()
    rows = target.rows(1, 2, 3, 4, 5)
    target.commit(0, target.prepare_epoch(0, rows, generation=2))
    target.assert_shows(*rows)
    target.assert_clean()


def test_a_part_that_is_swept_while_it_is_written_leaves_nothing(harness: SinkHarness) -> None:
    """A cancelled task may continue after the sweep: it fails, or a second sweep finds its part."""
    target = Target(harness)
    if isinstance(target.sink, FrameSink):
        return does_not_apply(ONE_FRAME)

    def swept(batches: Iterator[Any]) -> Iterator[Any]:
        yield next(batches)
        target.sweep()
        yield from batches

    outcome = _outcome(
        lambda: target.copy().ack(target.rows(1, 2, 3, 4, 5), part_id(0), around=swept)
    )
    print(f"the result of the task: {outcome}")
    _sweep_and_retry(target)
    return None


def _outcome(call: Callable[[], object]) -> object:
    try:
        return call()
    except Exception as error:  # noqa: BLE001 (any error is a fair answer)
        return error
