"""Cases: prepared is invisible, committed shows once, and all that a start may ask."""

from __future__ import annotations

import json

from beadline.errors import BadSink
from beadline.ids import check_name
from beadline.sink import Outcome, Seen, StagedSink
from beadline.testing.suite.harness import SinkHarness
from beadline.testing.suite.target import (
    OTHER_QUERY,
    QUERY,
    SAME_NAME,
    SINK_NAME,
    Target,
    does_not_apply,
    epoch_id,
    only_exactly_once,
    part_id,
)

__all__ = [
    "test_a_part_without_rows_is_none",
    "test_check_can_be_repeated_and_leaves_nothing",
    "test_commit_shows_each_row_once",
    "test_it_remembers_what_it_saw",
    "test_prepared_is_invisible",
    "test_secrets_show_nowhere",
    "test_several_parts_make_one_epoch",
    "test_two_queries_share_a_target",
    "test_two_sinks_of_a_query_share_a_target",
]

BESIDE = "beside-it"


def test_check_can_be_repeated_and_leaves_nothing(harness: SinkHarness) -> None:
    """A start may be refused after the check, and is then tried again."""
    target = Target(harness)
    assert target.sink.check(target.schema, QUERY) == target.capabilities
    assert target.capabilities.target, "where do the rows go?"
    if isinstance(target.sink, StagedSink):
        assert target.capabilities.shared_disk, "driver and executors must see the staging folder"
    assert target.capabilities.sentence.endswith("."), "the guarantee is a sentence for people"
    check_name("sink", target.sink.default_name)
    assert target.sink.last_seen(QUERY, SINK_NAME) is None
    target.assert_shows()
    target.assert_clean()


def test_prepared_is_invisible(harness: SinkHarness) -> None:
    """Nobody has decided yet; a reader must not see what may be taken back."""
    target = Target(harness)
    target.prepare_epoch(0, target.rows(1, 2, 3), target.rows(4))
    target.assert_shows()
    assert target.sink.last_seen(QUERY, SINK_NAME) is None
    target.sweep()


def test_commit_shows_each_row_once(harness: SinkHarness) -> None:
    """The plain course of things, three epochs long."""
    target = Target(harness)
    shown = []
    for epoch in range(3):
        rows = target.rows(*range(epoch * 10, epoch * 10 + 5))
        assert target.commit(epoch, target.prepare_epoch(epoch, rows)) == {Outcome.COMMITTED}
        shown += rows
        target.assert_shows(*shown)
        target.assert_clean()


def test_several_parts_make_one_epoch(harness: SinkHarness) -> None:
    """Every part's rows show, and a key that is in two parts is settled in their order."""
    target = Target(harness)
    shares = [target.rows(1, 2, 3), target.rows(3, 4, version=1), target.rows(5)]
    parts = target.prepare_epoch(0, *shares)
    assert target.commit(0, parts[::-1]) == {Outcome.COMMITTED}
    target.assert_shows(*(row for share in shares for row in share))
    target.assert_clean()


def test_a_part_without_rows_is_none(harness: SinkHarness) -> None:
    """A part with nothing to write leaves nothing to finish."""
    target = Target(harness)
    assert target.ack([], part_id(0)) is None
    assert target.ack([], part_id(0, partition=1), around=lambda batches: iter(())) is None
    target.assert_shows()
    target.assert_clean()


@only_exactly_once
def test_it_remembers_what_it_saw(harness: SinkHarness) -> None:
    """So that a deleted, copied or rewound checkpoint is noticed at the start."""
    target = Target(harness)
    target.commit(0, target.prepare_epoch(0, target.rows(1)))
    target.commit(3, target.prepare_epoch(3, target.rows(2)))
    seen = target.copy().sink.last_seen(QUERY, SINK_NAME)
    assert seen in (
        Seen(QUERY.incarnation, 3, epoch_id(3).nonce),
        Seen(QUERY.incarnation, 3),
    )
    assert target.sink.last_seen(SAME_NAME, SINK_NAME) == seen, (
        "asked by name, whatever the incarnation"
    )
    assert target.sink.last_seen(OTHER_QUERY, SINK_NAME) is None


@only_exactly_once
def test_two_queries_share_a_target(harness: SinkHarness) -> None:
    """One query's epochs say nothing of another's, unless the sink refuses to be shared."""
    target = Target(harness)
    try:
        target.sink.check(target.schema, OTHER_QUERY)
    except BadSink as refusal:
        return does_not_apply(f"the sink refuses a second query: {refusal}")
    theirs = target.prepare(target.rows(1), part_id(5, query=OTHER_QUERY))
    target.commit(5, [theirs], query=OTHER_QUERY)
    ours = target.prepare_epoch(0, target.rows(2))
    assert target.commit(0, ours) == {Outcome.COMMITTED}
    target.assert_shows(*target.rows(1), *target.rows(2))
    seen = target.sink.last_seen(QUERY, SINK_NAME)
    assert seen is not None
    assert (seen.incarnation, seen.epoch) == (QUERY.incarnation, 0)
    return None


def test_two_sinks_of_a_query_share_a_target(harness: SinkHarness) -> None:
    """Each has the same epochs: what one has committed says nothing of the other's rows."""
    target = Target(harness)
    if not harness.sinks_share:
        return does_not_apply("the harness says that two sinks cannot share its target")
    target.sink.open(QUERY, BESIDE)

    def committed(epoch: int, sink: str, number: int, previous: int) -> None:
        part = target.prepare(target.rows(number), part_id(epoch, sink=sink))
        outcomes = target.copy().commit(epoch, [part], previous=previous)
        assert outcomes == {Outcome.COMMITTED}, f"epoch {epoch} of {sink}: {outcomes}"

    def remembered(sink: str, epoch: int) -> None:
        if not target.capabilities.remembers:
            return  # it may answer for the query: it does not show that anything is missing
        seen = target.copy().sink.last_seen(QUERY, sink)
        assert seen is not None, f"{sink} has committed epoch {epoch}, and last_seen says nothing"
        assert seen.epoch == epoch, f"{sink} holds epoch {epoch}, last_seen says {seen.epoch}"

    committed(0, SINK_NAME, 1, previous=-1)
    committed(0, BESIDE, 2, previous=-1)
    target.assert_shows(*target.rows(1, 2))
    committed(1, SINK_NAME, 3, previous=0)
    remembered(SINK_NAME, 1)
    remembered(BESIDE, 0)
    committed(1, BESIDE, 4, previous=0)
    target.assert_shows(*target.rows(1, 2, 3, 4))
    remembered(BESIDE, 1)
    return None


def test_secrets_show_nowhere(harness: SinkHarness) -> None:
    """Not in a repr, not in the log, not in errors and sentences."""
    target = Target(harness)
    part = target.prepare(target.rows(1), part_id(0))
    shown = {
        "repr of the sink": repr(target.sink),
        "its name": target.sink.default_name,
        "its capabilities": repr(target.capabilities),
        "repr of a part": repr(part),
        "the stored committable": json.dumps(part.committable.to_json()),
    }
    for secret in harness.secrets:
        found = [where for where, text in shown.items() if secret in text]
        assert not found, f"a secret shows in {found}"
    target.sweep()
