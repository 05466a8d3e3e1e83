"""Cases: records survive their journeys, and values arrive as they were sent."""

from __future__ import annotations

import json

import pyarrow as pa
import pyarrow.compute as pc

from beadline.sink import FrameSink, Outcome, Part, Prepared
from beadline.testing.suite.harness import SinkHarness
from beadline.testing.suite.target import Target, part_id, through_json

__all__ = [
    "test_committables_are_json_and_small_print",
    "test_odd_values_survive",
    "test_text_that_is_not_utf8_blocks_nothing",
    "test_the_rows_that_it_holds_are_counted",
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


def test_the_rows_that_it_holds_are_counted(harness: SinkHarness) -> None:
    """What a committable says of its rows is compared with what was given, before the decision."""
    target = Target(harness)
    rows = target.rows(1, 2, 3)
    held = target.prepare(rows, part_id(0)).committable.rows_held
    assert held in (None, len(rows)), f"given {len(rows)} rows, and it says that it holds {held}"
    target.sweep()


def test_text_that_is_not_utf8_blocks_nothing(harness: SinkHarness) -> None:
    """Spark makes strings of any bytes. What a commit could choke on is refused at prepare.

    At commit it would be too late: the epoch is decided, and would fail in every start.
    """
    target = Target(harness)
    texts = [field.name for field in target.schema if field.type == pa.string()]
    batch = target.batches(target.rows(1, 2))[0]
    for name in texts:
        bad = pc.binary_join_element_wise(
            batch.column(name).cast(pa.binary()), pa.scalar(b"\xe9"), pa.scalar(b"")
        ).view(pa.string())
        batch = batch.set_column(batch.schema.get_field_index(name), batch.schema.field(name), bad)
    refused: list[pa.RecordBatch] = []
    part = Part(part_id(0), slot=0, refuse=lambda rows, why: refused.append(rows))
    try:
        if isinstance(target.sink, FrameSink):
            frame = harness.spark.createDataFrame(pa.Table.from_batches([batch]))
            found = target.sink.prepare(frame, part)
        else:
            found = target.sink.prepare(iter([batch]), part)
    except Exception as error:  # noqa: BLE001 (whatever it is, nothing is decided)
        print(f"refused: {error}")
        target.sweep()
        return
    kept = batch.num_rows - sum(rows.num_rows for rows in refused)
    assert (found is None) == (kept == 0)
    if found is not None:
        prepared = through_json(target, Prepared(part.id, kept, found))
        try:
            outcomes = target.commit(0, [prepared])
        except Exception as error:
            raise AssertionError("accepted at prepare, and the commit fails for good") from error
        assert outcomes == {Outcome.COMMITTED}
