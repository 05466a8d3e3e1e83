"""Parcels: an epoch's rows of a bucket, with the same result however the shuffle brings them."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from typing import Any, ClassVar

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyspark.sql.streaming.stateful_processor import TimerValues

from beadline.event_time import (
    CustomAggregate,
    approx_distinct,
    avg_of,
    collect_of,
    count,
    first_of,
    last_of,
    max_of,
    min_of,
    quantiles,
    sum_of,
)
from beadline.event_time import operator as operators
from beadline.event_time.aggregates import Aggregate
from beadline.event_time.counted import CountedWindows
from beadline.event_time.custom import AggregateTypes
from beadline.event_time.operator import (
    BUCKET,
    PARCEL,
    TIE,
    Clock,
    Operator,
    _pack,
    _parcels_of,
    _Processor,
    read_parcel,
)
from beadline.event_time.sessions import Sessions
from beadline.event_time.top import Top
from beadline.event_time.windows import Windowed, WindowShape
from tests.unit.event_time_state import MemoryHandle, tie_of
from tests.unit.test_windows_oracle import SECOND, fast

SCHEMA = pa.schema(
    [
        pa.field("n", pa.int64()),
        pa.field("k", pa.string()),
        pa.field("ts", pa.timestamp("us", tz="UTC")),
        pa.field("x", pa.int64()),
        pa.field("f", pa.float64()),
    ]
)


class Joined(CustomAggregate):
    """The rows in the order in which they come: nothing that a user should do."""

    state_type: ClassVar[AggregateTypes] = (pa.string(),)
    returns = pa.string()

    def add(self, rows: pd.DataFrame) -> tuple[Any, ...]:
        return (" ".join(map(str, rows.n)),)

    def merge(self, one: tuple[Any, ...], other: tuple[Any, ...]) -> tuple[Any, ...]:
        return (f"{one[0]} | {other[0]}",)


UNORDERED: dict[str, Aggregate] = {
    "rows": count(), "there": count("x"), "total": sum_of("x"), "mean": avg_of("x"),
    "low": min_of("f"), "high": max_of("f"), "all": collect_of("x"), "first": first_of("x"),
    "last": last_of("f"), "distinct": approx_distinct("n"), "half": quantiles("f", 0.5),
    "best": Top(2, pa.schema([SCHEMA.field("x"), SCHEMA.field("n")])),
}  # fmt: skip
ORDERED: dict[str, Aggregate] = {
    "sum": sum_of("f"), "avg": avg_of("f"), "joined": Joined(),
    "best": Top(2, pa.schema([SCHEMA.field("f"), SCHEMA.field("n")])),
}  # fmt: skip
ROWS = st.fixed_dictionaries(
    {
        "k": st.sampled_from([None, "a", "b"]),
        "ts": st.sampled_from([None, 0, 1, SECOND, 2 * SECOND]),
        "x": st.one_of(st.none(), st.integers(-3, 3)),
        "f": st.sampled_from([None, 0.0, -0.0, 0.1, 0.2, 0.3, 1e16, -1e16]),
    }
)


def operator_of(kind: str, aggregates: dict[str, Aggregate], timed: bool) -> Any:
    common: dict[str, Any] = {"by": ("k",), "aggregates": aggregates, "schema": SCHEMA}
    if kind == "counted":
        return CountedWindows(time="ts" if timed else None, every_rows=3, **common)
    common |= {"time": "ts", "keeps_late": True, "lateness_us": SECOND}
    if kind == "sessions":
        return Sessions(gap_us=SECOND // 2, **common)
    return Windowed(shape=WindowShape(2 * SECOND, SECOND), **common)


def parcels_of(rows: Sequence[dict[str, Any]], ordered: bool) -> list[bytes]:
    """The rows as a task of the shuffle's other side sends them."""
    table = pa.Table.from_pylist(list(rows), SCHEMA)
    if ordered:
        table = table.append_column(TIE, pa.array([tie_of(row) for row in rows], pa.int64()))
    table = table.append_column(BUCKET, pa.array([7] * len(rows), pa.int32()))
    sent: list[bytes] = _parcels_of(table).to_pydict()[PARCEL]
    return sent


def outcome(operator: Any, epochs: Sequence[Sequence[bytes]]) -> tuple[Any, Any]:
    """The state before all windows end, and everything that was emitted, in no order."""
    handle, told = MemoryHandle(), []
    for parcels in epochs:
        processor = _Processor(operator, operator.output)
        processor.init(handle)  # type: ignore[arg-type]
        frames = iter([pd.DataFrame({PARCEL: list(parcels)})])
        for sent in processor.handleInputRows((7,), frames, TimerValues(1, 1)):
            told += [row for parcel in sent[PARCEL] for row in read_parcel(parcel).to_pylist()]
    held = {name: contents(state.held) for name, state in sorted(handle.states.items())}
    for table in operator.expire(1, Clock(10_000, 10_000)):
        told += table.to_pylist()
    return held, sorted(map(repr, told))


def contents(held: Any) -> Any:
    """By their text: 0.0 is equal to -0.0, and not what the state must hold.

    The bytes of an Arrow batch have gaps, which may hold anything; the results show its rows.
    """
    if isinstance(held, dict):
        return sorted((contents(key), contents(value)) for key, value in held.items())
    if isinstance(held, list | tuple):
        return [contents(one) for one in held]
    is_batch = isinstance(held, bytes) and held.startswith(b"\xff\xff\xff\xff")
    return "a batch" if is_batch else repr(held)


def arrangement(
    epochs: Sequence[Sequence[dict[str, Any]]], ordered: bool, rng: random.Random
) -> list[list[bytes]]:
    """The rows of each epoch in any order, in any parcels."""
    found = []
    for rows in epochs:
        mixed = rng.sample(list(rows), len(rows))
        cuts = sorted(rng.sample(range(1, len(mixed)), min(2, len(mixed) - 1)))
        ends = zip([0, *cuts], [*cuts, len(mixed)], strict=True)
        found.append([one for a, b in ends for one in parcels_of(mixed[a:b], ordered)])
    return found


@settings(fast, max_examples=40)
@given(
    st.lists(st.lists(ROWS, min_size=1, max_size=12), min_size=1, max_size=3),
    st.sampled_from(["counted", "windows", "sessions"]),
    st.booleans(),
    st.booleans(),
    st.randoms(use_true_random=False),
)
def test_neither_order_nor_tasks_of_a_shuffle_matter(
    epochs: list[list[dict[str, Any]]], kind: str, with_order: bool, timed: bool, rng: random.Random
) -> None:
    """Spark's Kafka source renumbers its partitions at each start: no task has a number to keep."""
    numbers = iter(range(1000))
    given = [[{"n": next(numbers), **row} for row in rows] for rows in epochs]
    operator = operator_of(kind, ORDERED if with_order else UNORDERED, timed)
    assert operator.ordered is (with_order or kind == "counted")
    one, other = (outcome(operator, arrangement(given, operator.ordered, rng)) for _ in range(2))
    assert one == other


class Same(Operator):
    """Its rows, as they come."""

    output = SCHEMA

    def open(self, handle: Any) -> None:
        """No state."""

    def process(self, rows: pa.Table, clock: Clock) -> Iterator[pa.Table]:
        yield rows


def test_a_parcel_has_the_rows_of_one_bucket() -> None:
    table = pa.table({"n": [1, 2, 3, 4], BUCKET: pa.array([7, 8, 7, 7], pa.int32())})
    packed = _parcels_of(table).to_pydict()
    assert packed[BUCKET] == [7, 8]
    assert [read_parcel(one)["n"].to_pylist() for one in packed[PARCEL]] == [[1, 3, 4], [2]]


def test_what_needs_no_order_is_not_sorted(monkeypatch: pytest.MonkeyPatch) -> None:
    """It would cost windows a part of their speed."""
    rows = [{"n": n, "k": "a", "ts": 0, "x": 1, "f": 0.5} for n in range(3)]
    monkeypatch.setattr(np, "argsort", None)
    processor = _Processor(Same(), SCHEMA)
    frames = iter([pd.DataFrame({PARCEL: [*packed_of(rows[2:]), *packed_of(rows[:2])]})])
    (told,) = processor.handleInputRows((7,), frames, TimerValues(1, 0))
    assert read_parcel(told[PARCEL][0])["n"].to_pylist() == [2, 0, 1]


def packed_of(rows: Sequence[dict[str, Any]]) -> list[bytes]:
    return [operators.write_parcel(pa.Table.from_pylist(list(rows), SCHEMA))]


def test_large_rows_are_in_several_parcels(monkeypatch: pytest.MonkeyPatch) -> None:
    """In one parcel there is room for 2 GB."""
    monkeypatch.setattr(operators, "PARCEL_BYTES_MAX", 1000)
    rows = pa.RecordBatch.from_pydict({"n": ["x" * 100] * 6, BUCKET: pa.array([7] * 6, pa.int32())})
    sent = list(_pack(iter([rows.slice(at, 2) for at in (0, 2, 4)] * 10)))
    assert len(sent) > 3
    assert sum(read_parcel(one.as_py()).num_rows for batch in sent for one in batch[PARCEL]) == 60
