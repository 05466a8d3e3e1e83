"""The conformance suite on ``MemorySink``, and what is its own: rows in order, and clear."""

from __future__ import annotations

import itertools
from collections.abc import Collection
from dataclasses import replace

import pyarrow as pa
import pytest

from beadline.errors import WrongCheckpoint
from beadline.sink import AnySink
from beadline.sinks import MemorySink
from beadline.sinks.memory import MemoryPart
from beadline.testing.suite import *  # noqa: F403
from beadline.testing.suite import Row, SinkHarness
from beadline.testing.suite.target import QUERY, SAME_NAME, Target, part_id

_numbers = itertools.count()


class MemoryHarness(SinkHarness):
    other_process = False

    def fresh(self, schema: pa.Schema) -> AnySink:
        return MemorySink(f"table {next(_numbers)}")

    def visible(self, sink: AnySink) -> list[Row]:
        assert isinstance(sink, MemorySink)
        return MemorySink.rows(sink.name)

    def leftovers(self, sink: AnySink) -> Collection[str]:
        return ()

    def unreachable(self, sink: AnySink) -> None:
        return None


@pytest.fixture
def harness() -> SinkHarness:
    return MemoryHarness()


def test_version_1_stays_readable() -> None:
    assert MemoryPart.from_json({"version": 1, "arrow_base64": "AA=="}) == MemoryPart("AA==")


def test_rows_are_in_the_order_of_epochs_and_parts(harness: SinkHarness) -> None:
    target = Target(harness)
    parts = target.prepare_epoch(0, target.rows(3), target.rows(1))
    target.commit(0, parts[::-1])
    target.commit(1, target.prepare_epoch(1, target.rows(2)))
    assert harness.visible(target.sink) == target.rows(3, 1, 2)


def test_clear_forgets_the_ledger_too(harness: SinkHarness) -> None:
    target = Target(harness)
    parts = target.prepare_epoch(0, target.rows(1))
    target.commit(0, parts)
    assert isinstance(target.sink, MemorySink)
    MemorySink.clear(target.sink.name)
    target.assert_shows()
    target.commit(0, parts)
    target.assert_shows(*target.rows(1))


def test_another_incarnation_is_refused(harness: SinkHarness) -> None:
    target = Target(harness)
    target.commit(0, target.prepare_epoch(0, target.rows(1)))
    theirs = target.prepare(target.rows(2), part_id(1, query=SAME_NAME))
    with pytest.raises(
        WrongCheckpoint, match=r"another query of that name.*targets that were emptied"
    ):
        target.commit(1, [theirs], query=SAME_NAME)
    target.assert_shows(*target.rows(1))


def test_what_one_sink_has_written_says_nothing_of_the_same_epoch_of_another(
    harness: SinkHarness,
) -> None:
    """Of the epochs before it does, as it may be the same sink under an earlier name."""
    target = Target(harness)
    target.commit(4, target.prepare_epoch(4, target.rows(1)))
    held = target.sink.last_seen(QUERY, "another-sink")
    assert held is not None
    assert (held.incarnation, held.epoch) == (QUERY.incarnation, 4)
    (part,) = target.prepare_epoch(4, target.rows(1))
    theirs = replace(part, id=replace(part.id, sink="another-sink"))
    target.commit(4, [theirs])
    target.assert_shows(*target.rows(1), *target.rows(1))
    seen = target.sink.last_seen(SAME_NAME, "another-sink")
    assert seen is not None, "another incarnation is told whichever sink asks"
    assert (seen.incarnation, seen.epoch) == (QUERY.incarnation, 4)
