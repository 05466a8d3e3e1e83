"""Cases: lost is said of what is proven absent, committed of what shows, and neither by guess."""

from __future__ import annotations

from beadline.sink import Outcome
from beadline.testing.suite.harness import Row, SinkHarness
from beadline.testing.suite.repeats import FINE
from beadline.testing.suite.target import Parts, Target, does_not_apply, epoch_id

__all__ = [
    "test_a_part_that_is_gone_is_not_committed",
    "test_a_target_that_cannot_be_reached_has_lost_nothing",
]

ASKED_MAX = 3


def test_a_part_that_is_gone_is_not_committed(harness: SinkHarness) -> None:
    """Somebody deleted a decided part: its rows are lost, and whoever says otherwise hides it."""
    target = Target(harness)
    target.commit(0, target.prepare_epoch(0, target.rows(1)))
    shares = [target.rows(2, 3), target.rows(4, 5)]
    parts = target.prepare_epoch(1, *shares)
    target.copy().sink.abort(parts[:1])
    told = _told(target, parts)
    shown: list[Row] = []
    # A FrameSink has one part for all the shares.
    for part, share in zip(parts, shares if len(parts) > 1 else [sum(shares, [])], strict=True):
        shown += share if told.get(part.id) in FINE else []
    target.assert_shows(*target.rows(1), *shown)


def _told(target: Target, parts: Parts) -> dict[object, Outcome]:
    """What becomes of each part; nothing if the sink stops with an error, which is its right."""
    told: dict[object, Outcome] = {}
    for _ in range(ASKED_MAX):
        try:
            told |= target.copy().sink.commit(epoch_id(1), parts).outcomes
        except Exception as error:  # noqa: BLE001 (any error stops the query with nothing dropped)
            print(f"the commit was told: {error}")
        if Outcome.UNKNOWN not in told.values():
            break
    return told


def test_a_target_that_cannot_be_reached_has_lost_nothing(harness: SinkHarness) -> None:
    """Rule 12: an error from the outside system is not a proof. The target is back a minute later,
    and so are the parts."""
    target = Target(harness)
    rows = target.rows(1, 2, 3)
    parts = target.prepare_epoch(0, rows[:2], rows[2:])
    cut_off = harness.unreachable(target.sink)
    if cut_off is None:
        return does_not_apply("the harness says that the target cannot be cut off")
    with cut_off as sink:
        try:
            told = set(sink.commit(epoch_id(0), parts).outcomes.values())
        except Exception as error:  # noqa: BLE001 (what it is called is the sink's own affair)
            print(f"the commit was told: {error}")
            told = set()
    assert Outcome.LOST not in told, "parts of a target that cannot be reached were called lost"
    assert not told & FINE, "parts of a target that cannot be reached were called committed"
    assert target.copy().commit(0, parts) <= FINE
    target.assert_shows(*rows)
    target.assert_clean()
    return None
