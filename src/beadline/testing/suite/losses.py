"""Cases: a part is reported lost only if proven absent, and committed only if it is visible."""

from __future__ import annotations

from beadline.errors import TargetRestored
from beadline.ids import PartId
from beadline.sink import Outcome
from beadline.testing.suite.harness import Row, SinkHarness
from beadline.testing.suite.repeats import IN_EFFECT
from beadline.testing.suite.target import PreparedParts, Target, bag, does_not_apply, epoch_id

__all__ = [
    "test_a_part_that_is_gone_is_not_committed",
    "test_a_target_that_cannot_be_reached_has_lost_nothing",
    "test_a_target_that_was_altered_changes_no_value",
    "test_a_target_that_was_restored_to_an_older_state_takes_nothing",
]

ASKED_MAX = 3


def test_a_part_that_is_gone_is_not_committed(harness: SinkHarness) -> None:
    """A decided part was deleted: its rows are lost, and any other answer hides it."""
    target = Target(harness)
    target.commit(0, target.prepare_epoch(0, target.rows(1)))
    shares = [target.rows(2, 3), target.rows(4, 5)]
    parts = target.prepare_epoch(1, *shares)
    target.copy().sink.abort(parts[:1])
    others = target.doubts()
    outcomes = _outcomes_of(target, parts)
    if len(parts) == 1:  # a FrameSink has one part for all the shares
        shares = [[*shares[0], *shares[1]]]
    shown: list[Row] = []
    for part, share in zip(parts, shares, strict=True):
        shown += share if outcomes.get(part.id) in IN_EFFECT else []
    target.assert_shows(*target.rows(1), *shown)
    left = {part.id for part in parts[1:] if outcomes.get(part.id) not in IN_EFFECT}
    assert target.doubts() >= left & others, "the parts that are whole were discarded too"
    target.sweep()


def _outcomes_of(target: Target, parts: PreparedParts) -> dict[PartId, Outcome]:
    """What becomes of each part, asked as the coordinator asks: without an outcome it is unknown.

    Nothing more if the sink stops with an error, which is its right.
    """
    outcomes: dict[PartId, Outcome] = {}
    for _ in range(ASKED_MAX):
        left = [part for part in parts if outcomes.get(part.id, Outcome.UNKNOWN) is Outcome.UNKNOWN]
        if not left:
            break
        try:
            outcomes |= target.copy().sink.commit(epoch_id(1), left).outcomes
        except Exception as error:  # noqa: BLE001 (any error stops the query with nothing dropped)
            print(f"the commit raised: {error}")
            break
    return outcomes


def test_a_target_that_cannot_be_reached_has_lost_nothing(harness: SinkHarness) -> None:
    """Rule 12: an error from the outside system is not a proof. The target is back a minute later,
    and so are the parts."""
    target = Target(harness)
    target.commit(0, target.prepare_epoch(0, target.rows(1)))
    rows = target.rows(2, 3, 4)
    parts = target.prepare_epoch(1, rows[:2], rows[2:])
    cut_off = harness.unreachable(target.sink)
    if cut_off is None:
        return does_not_apply("the harness says that the target cannot be cut off")
    with cut_off as sink:
        try:
            outcomes = set(sink.commit(epoch_id(1, previous=0), parts).outcomes.values())
        except Exception as error:  # noqa: BLE001 (what it is called is the sink's own affair)
            print(f"the commit raised: {error}")
            outcomes = set()
    assert Outcome.LOST not in outcomes, (
        "parts of a target that cannot be reached were reported lost"
    )
    assert not outcomes & IN_EFFECT, (
        "parts of a target that cannot be reached were reported committed"
    )
    assert target.copy().commit(1, parts, previous=0) <= IN_EFFECT
    target.assert_shows(*target.rows(1), *rows)
    target.assert_clean()
    return None


def test_a_target_that_was_altered_changes_no_value(harness: SinkHarness) -> None:
    """A column was given another type between prepare and commit: its values would be cast."""
    target = Target(harness)
    altered = harness.alter(target.sink)
    if altered is None:
        return does_not_apply("the harness says that the target cannot be altered so")
    target.commit(0, target.prepare_epoch(0, target.rows(1)))
    rows = target.rows(2, 3, version=1)
    parts = target.prepare_epoch(1, rows[:1], rows[1:])
    with altered:
        before = harness.visible(target.sink)
        outcomes = _outcomes_of(target, parts)
        assert not outcomes or set(outcomes.values()) <= IN_EFFECT, (
            f"neither written nor refused: {outcomes}"
        )
        whole = [*before, *harness.expected(rows)] if outcomes else before
        assert bag(harness.visible(target.sink)) == bag(whole), "a value was changed, or is missing"
    assert target.copy().commit(1, parts) <= IN_EFFECT
    target.assert_shows(*target.rows(1), *rows)
    target.assert_clean()
    return None


def test_a_target_that_was_restored_to_an_older_state_takes_nothing(harness: SinkHarness) -> None:
    """Rule 25: it lacks an epoch that it had acknowledged, and continuing would hide the gap."""
    target = Target(harness)
    if not target.capabilities.remembers:
        _asks_in_vain(target)
        return does_not_apply("the sink does not say that it remembers the newest epoch exactly")
    shares = [target.rows(1, version=epoch) for epoch in range(3)]
    first, second, third = (target.prepare_epoch(epoch, rows) for epoch, rows in enumerate(shares))
    _refused(target, 1, second, previous=0)
    target.assert_shows()
    assert target.commit(0, first) == {Outcome.COMMITTED}
    _refused(target, 2, third, previous=1)
    target.assert_shows(*shares[0])
    for epoch, parts in ((1, second), (2, third)):  # restored again, to the newest: nothing is lost
        assert target.copy().commit(epoch, parts, previous=epoch - 1) == {Outcome.COMMITTED}
    for epoch, parts in enumerate((first, second, third)):  # late ones, as ever
        assert target.copy().commit(epoch, parts, previous=epoch - 1) <= IN_EFFECT
    target.assert_shows(*(row for rows in shares for row in rows))
    target.assert_clean()
    return None


def _asks_in_vain(target: Target) -> None:
    """A sink that refuses to continue after a gap must be asked about it before the claim too."""
    parts = target.prepare_epoch(1, target.rows(1))
    try:
        target.copy().commit(1, parts, previous=0)
    except TargetRestored as error:
        raise AssertionError(
            f"the commit raised: {error}. A sink that looks at what it has acknowledged declares "
            "Capabilities.remembers: then the start looks too, names every epoch that is missing, "
            "and a person can give exactly those up with drop="
        ) from error
    except Exception as error:  # noqa: BLE001 (an answer of its own, which has its own way out)
        print(f"the commit raised: {error}")


def _refused(target: Target, epoch: int, parts: PreparedParts, previous: int) -> None:
    try:
        outcomes = target.copy().commit(epoch, parts, previous=previous)
    except TargetRestored as error:
        print(f"the commit raised: {error}")
        return
    raise AssertionError(f"epoch {previous} is missing, and epoch {epoch} is {outcomes}")
