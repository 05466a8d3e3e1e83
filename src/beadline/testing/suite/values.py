"""Cases: records survive their journeys, and values arrive as they were sent."""

from __future__ import annotations

import json

from beadline.testing.suite.harness import SinkHarness
from beadline.testing.suite.target import Target, part_id

__all__ = [
    "test_committables_are_json_and_small_print",
    "test_odd_values_survive",
    "test_the_sink_travels",
]


def test_committables_are_json_and_small_print(harness: SinkHarness) -> None:
    """Stored as JSON with a version, equal when read back, and hashable like any frozen value."""
    target = Target(harness)
    committable = target.ack(target.rows(1, 2), part_id(0))
    stored = json.loads(json.dumps(committable.to_json()))
    assert stored["version"] == committable.version
    assert target.sink.committable.from_json(stored) == committable
    hash(committable)
    target.sweep()


def test_the_sink_travels(harness: SinkHarness) -> None:
    """It is pickled to executors and back, is the same then, and works there."""
    target = Target(harness)
    there = target.copy()
    assert there.sink == target.sink
    part = there.prepare(target.rows(1), part_id(0))
    there.copy().commit(0, [part])
    target.assert_shows(*target.rows(1))


def test_odd_values_survive(harness: SinkHarness) -> None:
    """Null is not an empty string, a large integer is not a float, a name is not SQL."""
    schema, rows = harness.odd_rows()
    target = Target(harness, schema)
    target.commit(0, target.prepare_epoch(0, rows))
    target.assert_shows(*rows)
