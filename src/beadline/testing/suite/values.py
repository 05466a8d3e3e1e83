"""Cases: records survive their journeys, and values arrive as they were sent."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pyarrow as pa

from beadline.ids import PartId
from beadline.sink import Part, Prepared
from beadline.testing.suite.harness import Row, SinkHarness
from beadline.testing.suite.repeats import IN_EFFECT
from beadline.testing.suite.target import Target, bag, part_id

__all__ = [
    "test_committables_are_json_and_small_print",
    "test_odd_values_survive",
    "test_the_rows_that_it_holds_are_counted",
    "test_the_sink_travels",
    "test_what_prepare_takes_commit_can_write",
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


def test_what_prepare_takes_commit_can_write(harness: SinkHarness) -> None:
    """Rule 23: a value that could never be committed is refused while nothing is decided.

    It may be taken, refused, or end ``prepare`` with an error; but once it is taken, the epoch is
    decided, and every start would stop at it.
    """
    target = Target(harness)
    good, rows_taken = [], 0
    for epoch, (what, hostile) in enumerate(_hostile(target.schema)):
        good_row, carrier = target.rows(2 * epoch + 1, 2 * epoch + 2)
        batch = _with_value([good_row, carrier], target.schema, *hostile)
        refused: list[Any] = []
        committable = _taken(target, batch, part_id(epoch), what, refused)
        if committable is None:
            continue
        part = Prepared(part_id(epoch), batch.num_rows - len(refused), committable)
        try:
            assert target.commit(epoch, [part]) <= IN_EFFECT
        except Exception as error:
            raise AssertionError(f"{what}: prepare took it, commit cannot write it") from error
        good.append(good_row)
        rows_taken += part.rows
        seen = harness.visible(target.sink)
        assert not bag(harness.expected(good)) - bag(seen), f"{what}: rows next to it are missing"
        assert len(seen) == rows_taken, f"{what}: {rows_taken} rows taken, {len(seen)} show"
    target.assert_clean()


def _taken(
    target: Target, batch: pa.RecordBatch, id_: PartId, what: str, refused: list[Any]
) -> Any:
    """Prepare a part with one bad value in it; None if it was not taken at all."""

    def refuse(rows: pa.RecordBatch, reason: str) -> None:
        refused.extend([reason] * rows.num_rows)

    try:
        committable = target.ack_batches([batch], Part(id_, slot=id_.epoch, refuse=refuse))
    except Exception as error:  # noqa: BLE001 (nothing is decided, so any error will do)
        print(f"{what}: {error}")
        target.sweep()
        return None
    print(f"{what}: {refused or 'taken'}")
    assert committable is not None, f"{what}: a row next to it was not taken, without an error"
    assert len(refused) <= 1, f"{what}: a row next to it was refused"
    return committable


def _hostile(schema: pa.Schema) -> Iterator[tuple[str, tuple[str, pa.Array]]]:
    """Values that Spark can send and outside systems stumble over, by column."""
    texts = {
        "bytes that are not UTF-8": b"\xff\xfe",
        "half of a surrogate pair": b"\xed\xa0\x80",
        "a NUL": b"a\0b",
    }
    numbers = {"the largest": 2**63 - 1, "the smallest": -(2**63)}
    amounts = {"NaN": float("nan"), "infinity": float("inf"), "-infinity": float("-inf")}
    for field in schema:
        values: dict[str, pa.Array] = {"null": pa.nulls(1, field.type)}
        if pa.types.is_string(field.type):
            values |= {k: pa.array([v], pa.binary()).view(pa.string()) for k, v in texts.items()}
        elif pa.types.is_int64(field.type):
            values |= {k: pa.array([v], field.type) for k, v in numbers.items()}
        elif pa.types.is_floating(field.type):
            values |= {k: pa.array([v], field.type) for k, v in amounts.items()}
        for name, value in values.items():
            yield f"{name} in column {field.name!r}", (field.name, value)


def _with_value(rows: list[Row], schema: pa.Schema, column: str, value: pa.Array) -> pa.RecordBatch:
    """Rows as a batch, in whose last row one column holds the value."""
    batch = pa.RecordBatch.from_pylist(rows, schema=schema)
    at = schema.get_field_index(column)
    changed = pa.concat_arrays([batch.column(at)[:-1], value])
    return batch.set_column(at, schema.field(at), changed)
