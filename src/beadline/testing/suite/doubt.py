"""Cases: what was prepared and not decided can be found and discarded, and nothing else."""

from __future__ import annotations

from beadline.sink import Outcome
from beadline.testing.suite.harness import SinkHarness
from beadline.testing.suite.target import (
    OTHER_QUERY,
    QUERY,
    SAME_NAME,
    SINK_NAME,
    Target,
    does_not_apply,
    part_id,
)

__all__ = [
    "test_abort_again_changes_nothing",
    "test_abort_of_one_attempt_leaves_the_other",
    "test_abort_removes_what_was_prepared",
    "test_in_doubt_finds_parts_of_any_sink_name",
    "test_in_doubt_is_what_is_prepared_and_not_committed",
    "test_in_doubt_skips_strangers",
    "test_losing_attempts_can_be_swept_after_the_commit",
]

NOTHING_OUTSIDE = "a prepared part leaves nothing outside its committable"


def test_abort_removes_what_was_prepared(harness: SinkHarness) -> None:
    """Aborted parts leave no trace, and the epoch can be prepared again."""
    target = Target(harness)
    parts = target.prepare_epoch(0, target.rows(1, 2), target.rows(3))
    target.copy().sink.abort(parts)
    target.assert_shows()
    target.assert_clean()
    again = target.prepare_epoch(0, target.rows(1, 2), target.rows(3), generation=2)
    assert target.commit(0, again) == {Outcome.COMMITTED}
    target.assert_shows(*target.rows(1, 2, 3))
    target.assert_clean()


def test_abort_again_changes_nothing(harness: SinkHarness) -> None:
    """A sweep that was cut short is done again; also of what was never there."""
    target = Target(harness)
    target.commit(0, target.prepare_epoch(0, target.rows(1)))
    parts = target.prepare_epoch(1, target.rows(2))
    for _ in range(3):
        target.sink.abort(parts)
        target.sweep()
    target.sink.abort([])
    target.assert_shows(*target.rows(1))
    target.assert_clean()


def test_abort_of_one_attempt_leaves_the_other(harness: SinkHarness) -> None:
    """A speculative attempt loses; the winner's rows must not be lost with it."""
    target = Target(harness)
    ids = [part_id(0, attempt=attempt) for attempt in range(3)]
    parts = [target.prepare(target.rows(1, 2, 3), id_) for id_ in ids]
    target.sink.abort([parts[0], parts[2]])
    assert target.commit(0, [parts[1]]) == {Outcome.COMMITTED}
    target.assert_shows(*target.rows(1, 2, 3))
    target.assert_clean()


def test_in_doubt_is_what_is_prepared_and_not_committed(harness: SinkHarness) -> None:
    """Found by a process that remembers nothing; what it finds is enough to abort."""
    target = Target(harness)
    target.commit(0, target.prepare_epoch(0, target.rows(1)))
    assert target.doubts() == set()
    ids = [part_id(1), part_id(1, attempt=1), part_id(2, generation=2)]
    for id_ in ids:
        target.prepare(target.rows(2), id_)
    if not target.leaves_something:
        return does_not_apply(NOTHING_OUTSIDE)
    assert target.copy().doubts() == set(ids)
    target.copy().sweep()
    target.assert_clean()
    target.assert_shows(*target.rows(1))
    return None


def test_losing_attempts_can_be_swept_after_the_commit(harness: SinkHarness) -> None:
    """Rule 7: one result per partition counts, the others stay in doubt until they are swept."""
    target = Target(harness)
    winner = target.prepare(target.rows(1, 2), part_id(0))
    loser = target.prepare(target.rows(1, 2), part_id(0, attempt=1))
    outside = target.leaves_something
    target.commit(0, [winner])
    assert target.doubts() == ({loser.id} if outside else set())
    target.sweep()
    target.assert_clean()
    target.assert_shows(*target.rows(1, 2))


def test_in_doubt_finds_parts_of_any_sink_name(harness: SinkHarness) -> None:
    """Rule 27: a sink was renamed or taken out; what it left open is found, and can be aborted."""
    target = Target(harness)
    ours = target.prepare(target.rows(1, 2), part_id(0))
    gone = target.prepare(target.rows(3), part_id(0, sink="renamed-since"))
    if not target.leaves_something:
        return does_not_apply(NOTHING_OUTSIDE)
    found = list(target.copy().sink.in_doubt(QUERY, SINK_NAME))
    assert {part.id for part in found} == {ours.id, gone.id}
    target.copy().sink.abort([part for part in found if part.id == gone.id])
    assert target.doubts() == {ours.id}, "only what was named is aborted"
    target.commit(0, [ours])
    target.assert_shows(*target.rows(1, 2))
    target.assert_clean()
    return None


def test_in_doubt_skips_strangers(harness: SinkHarness) -> None:
    """Another query's parts, another incarnation's, and what is not Beadline's at all."""
    target = Target(harness)
    stranger = harness.plant_stranger(target.sink)
    ours = target.prepare(target.rows(1), part_id(0))
    if not set(harness.leftovers(target.sink)) - {stranger}:
        return does_not_apply(NOTHING_OUTSIDE)
    theirs = target.prepare(target.rows(2), part_id(0, query=OTHER_QUERY))
    before = target.prepare(target.rows(3), part_id(0, query=SAME_NAME))
    for query, part in ((QUERY, ours), (OTHER_QUERY, theirs), (SAME_NAME, before)):
        assert target.doubts(query) == {part.id}
    target.sweep(QUERY)
    assert target.doubts(OTHER_QUERY) == {theirs.id}
    assert target.doubts(SAME_NAME) == {before.id}
    target.sweep(OTHER_QUERY)
    target.sweep(SAME_NAME)
    kept = [] if stranger is None else [stranger]
    assert list(harness.leftovers(target.sink)) == kept, "what others have there must stay"
    target.assert_shows()
    return None
