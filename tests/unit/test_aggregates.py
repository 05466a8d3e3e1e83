"""Aggregates by themselves: values that are hard, merges that must not depend on the cuts.

That they agree with Spark's own functions is shown in tests/spark/test_windows.py.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Sequence
from datetime import date, datetime, timedelta
from decimal import Decimal
from typing import Any, ClassVar

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from beadline.errors import BadQuery
from beadline.event_time import (
    Aggregate,
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
from beadline.event_time.aggregates import held_as
from beadline.event_time.codec import Window, WindowCodec
from beadline.event_time.custom import AggregateTypes
from beadline.event_time.groups import group
from beadline.event_time.sketches import hashes_of

NAN = float("nan")
few = settings(max_examples=60, deadline=None)


def result(
    aggregate: Aggregate, parts: Sequence[Sequence[tuple[int, Any]]], type_: pa.DataType
) -> Any:
    """The result of rows (time, value) that come in parts, through all that windows do with it."""
    schema = pa.schema([pa.field("x", type_)])
    codec = WindowCodec(schema, (), {"r": aggregate})
    held: Window | None = None
    for part in parts:
        if not part:
            continue
        table = pa.table({"x": pa.array([value for _, value in part], type_)}, schema=schema)
        groups = group(table, (), np.array([time for time, _ in part], dtype=np.int64))
        partials = [aggregate.partials(groups)[0]]
        window = Window((), 0, 0, 0, partials)
        if held is not None:
            window.partials = codec.merged(held.partials, partials)
        held = codec.window(codec.state_of(window, 0))
    assert held is not None
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        return codec.results([held])["r"].to_pylist()[0]


def one(aggregate: Aggregate, values: Sequence[Any], type_: pa.DataType) -> Any:
    """The result of values in one part, and the same where each comes alone, in either order."""
    rows = list(enumerate(values))
    whole = result(aggregate, [rows], type_)
    for parts in ([[row] for row in rows], [[row] for row in reversed(rows)]):
        assert repr(result(aggregate, parts, type_)) == repr(whole)
    return whole


DEC = pa.decimal128(38, 0)


@pytest.mark.parametrize(
    ("aggregate", "type_", "values", "expected"),
    [
        (sum_of("x"), pa.int8(), [100, 100, None], 200),
        (sum_of("x"), pa.int64(), [2**62, 2**62 - 1, -5], 2**63 - 6),
        (sum_of("x"), pa.float32(), [1.5, None, 2.0], 3.5),
        (sum_of("x"), pa.int64(), [None, None], None),
        (sum_of("x"), pa.decimal128(30, 2), [Decimal("1e27"), Decimal("0.01")],
         Decimal("1000000000000000000000000000.01")),
        (sum_of("x"), DEC, [Decimal("9" * 37), Decimal(1)], Decimal("1" + "0" * 37)),
        (avg_of("x"), pa.int64(), [2**62, 2**62, None], 2.0**62),
        (avg_of("x"), pa.decimal128(10, 0), [Decimal(1), Decimal(2)], Decimal("1.5000")),
        (avg_of("x"), pa.decimal128(10, 2), [Decimal("1.00")] * 2 + [Decimal("0.00")],
         Decimal("0.666667")),
        (avg_of("x"), pa.decimal128(4, 2), [Decimal("-0.01"), None], Decimal("-0.010000")),
        (avg_of("x"), pa.float64(), [None], None),
        (min_of("x"), pa.float64(), [NAN, 1.0, None, -math.inf], -math.inf),
        (max_of("x"), pa.float64(), [NAN, math.inf], NAN),
        (min_of("x"), pa.float64(), [NAN, None], NAN),
        (min_of("x"), pa.float32(), [NAN, 2.0], 2.0),
        (max_of("x"), pa.float32(), [NAN, 2.0], NAN),
        (max_of("x"), pa.float64(), [None, None], None),
        (max_of("x"), pa.float64(), [-0.0], 0.0),
        (min_of("x"), pa.int8(), [None, -128, 127], -128),
        (max_of("x"), pa.int64(), [-(2**63), None], -(2**63)),
        (min_of("x"), pa.string(), ["b", "", None, "é"], ""),
        (max_of("x"), pa.string(), ["b", "ÿ", "𝄞"], "𝄞"),
        (max_of("x"), pa.binary(), [b"a", b"\xff", None], b"\xff"),
        (min_of("x"), pa.bool_(), [True, False, None], False),
        (max_of("x"), pa.decimal128(5, 2), [Decimal("1.10"), Decimal("-7")], Decimal("1.10")),
        (min_of("x"), pa.date32(), [date(1, 1, 1), date(9999, 12, 31)], date(1, 1, 1)),
        (max_of("x"), pa.timestamp("us"), [datetime(1900, 1, 1), None], datetime(1900, 1, 1)),
        (max_of("x"), pa.duration("us"), [timedelta(days=-1), timedelta(days=2)],
         timedelta(days=2)),
        (count("x"), pa.string(), ["a", None, "a"], 2),
        (count(), pa.string(), ["a", None, "a"], 3),
        (collect_of("x"), pa.string(), ["b", None, "a"], ["b", "a"]),
        (collect_of("x"), pa.timestamp("us"), [datetime(1900, 1, 1)], [datetime(1900, 1, 1)]),
        (collect_of("x"), pa.int64(), [None], []),
        (first_of("x"), pa.string(), [None, "b", "a"], "b"),
        (last_of("x"), pa.date32(), [date(2020, 1, 1), None], date(2020, 1, 1)),
        (last_of("x"), pa.float64(), [1.0, NAN], NAN),
        (first_of("x"), pa.bool_(), [None], None),
        (approx_distinct("x"), pa.string(), ["a", None, "b", "a"], 2),
        (approx_distinct("x"), pa.float64(), [0.0, -0.0, NAN, -NAN, None], 2),
        (approx_distinct("x"), pa.bool_(), [None], 0),
        (quantiles("x", 0.5), pa.int64(), [None], None),
        (quantiles("x", [0, 0.5, 1]), pa.float64(), [0.0, -math.inf, NAN], [-math.inf, 0.0, NAN]),
        (quantiles("x", [0, 1]), pa.float64(), [math.inf, 5e-324], [5e-324, math.inf]),
    ],
)  # fmt: skip
def test_values(aggregate: Aggregate, type_: pa.DataType, values: list[Any], expected: Any) -> None:
    found = one(aggregate, values, type_)
    assert repr(found) == repr(expected)


@pytest.mark.parametrize(
    ("aggregate", "type_", "values"),
    [
        (sum_of("x"), pa.int64(), [2**63 - 1, 1]),
        (sum_of("x"), pa.int64(), [-(2**63), -1]),
        (sum_of("x"), pa.int64(), [2**62] * 4),
        (sum_of("x"), DEC, [Decimal("9" * 38), Decimal(1)]),
        (sum_of("x"), DEC, [Decimal("9" * 38)] * 3),
    ],
)
def test_a_sum_that_the_state_cannot_hold_is_an_error(
    aggregate: Aggregate, type_: pa.DataType, values: list[Any]
) -> None:
    rows = list(enumerate(values))
    for parts in ([rows], [[row] for row in rows]):
        with pytest.raises(OverflowError, match=r"'r' of a window.*cast the column to decimal"):
            result(aggregate, parts, type_)


@pytest.mark.parametrize(
    ("aggregate", "type_"),
    [
        (sum_of("x"), pa.string()),
        (sum_of("x"), pa.bool_()),
        (avg_of("x"), pa.date32()),
        (min_of("x"), pa.list_(pa.int64())),
        (collect_of("x"), pa.struct([("a", pa.int64())])),
        (first_of("x"), pa.map_(pa.string(), pa.string())),
        (approx_distinct("x"), pa.list_(pa.int64())),
        (quantiles("x", 0.5), pa.string()),
    ],
)
def test_a_column_that_it_is_not_for(aggregate: Aggregate, type_: pa.DataType) -> None:
    with pytest.raises(BadQuery, match=r"column 'x' is of type .* Nothing was written\."):
        aggregate.state(type_)


@pytest.mark.parametrize(
    "make",
    [
        lambda: quantiles("x", []),
        lambda: quantiles("x", [50]),
        lambda: quantiles("x", [NAN]),
        lambda: quantiles("x", ["0.5"]),  # type: ignore[list-item]
        lambda: quantiles("x", 0.5, error=0),
        lambda: quantiles("x", 0.5, error=1),
        lambda: approx_distinct("x", error=0.0001),
        lambda: approx_distinct("x", error=1),
    ],
)
def test_bad_arguments(make: Any) -> None:
    with pytest.raises(BadQuery, match=r"Nothing was written\."):
        make()


TIMED = st.lists(st.tuples(st.integers(0, 3), st.one_of(st.none(), st.integers(-2, 2))), min_size=1)


@few
@given(TIMED, st.data())
def test_equal_times_by_value_however_they_are_cut(
    rows: list[tuple[int, int | None]], data: st.DataObject
) -> None:
    order = data.draw(st.permutations(rows))
    cut = data.draw(st.integers(0, len(rows)))
    there = sorted(row for row in rows if row[1] is not None)
    for aggregate, expected in (
        (collect_of("x"), [value for _, value in there]),
        (first_of("x"), there[0][1] if there else None),
        (last_of("x"), there[-1][1] if there else None),
    ):
        for parts in ([rows], [order[:cut], order[cut:]]):
            assert result(aggregate, parts, pa.int64()) == expected


@few
@given(
    st.lists(st.one_of(st.none(), st.floats(), st.sampled_from([1.0, -1e-3, 1.7e308])), min_size=1),
    st.data(),
    st.sampled_from([0.3, 0.01, 0.001]),
)
def test_a_quantile_is_within_its_error(
    values: list[float | None], data: st.DataObject, error: float
) -> None:
    at = [0, 0.25, 0.5, 0.99, 1]
    aggregate = quantiles("x", at, error)
    cut = data.draw(st.integers(0, len(values)))
    rows = [(0, value) for value in values]
    found = result(aggregate, [rows], pa.float64())
    assert repr(result(aggregate, [rows[cut:], rows[:cut]], pa.float64())) == repr(found)
    there = sorted((value for value in values if value is not None), key=lambda v: (v != v, v))
    if not there:
        assert found is None
        return
    for q, value in zip(at, found, strict=True):
        real = there[math.floor(q * (len(there) - 1))]
        if math.isfinite(real):
            # The smallest numbers of all have no digits left to be within an error.
            assert abs(value - real) <= abs(real) * (error + 1e-9) + 5e-324, (q, real, value)
        else:
            assert repr(value) == repr(real)


@pytest.mark.parametrize("many", [1, 10, 500, 3_000, 10_000, 100_000])
@pytest.mark.parametrize("type_", [pa.int64(), pa.string(), pa.float64()])
def test_approximate_counts_are_near(many: int, type_: pa.DataType) -> None:
    numbers = np.arange(many) * 7919
    column = pa.array(numbers).cast(type_)
    aggregate = approx_distinct("x")
    schema = pa.schema([("x", type_)])
    table = pa.table({"x": pa.concat_arrays([column, column])}, schema=schema)
    groups = group(table, (), np.zeros(2 * many, dtype=np.int64))
    (partial,) = aggregate.partials(groups)
    found = aggregate.result(partial)
    assert abs(found - many) <= 4 * 0.02 * many, found
    # The same registers, however they were cut: byte for byte.
    parts = [table.slice(at, many // 2 + 1) for at in range(0, 2 * many, many // 2 + 1)]
    merged = None
    for part in parts:
        (new,) = aggregate.partials(group(part, (), np.zeros(part.num_rows, dtype=np.int64)))
        merged = new if merged is None else aggregate.merge(merged, new)
    assert merged == partial
    assert len(partial[0]) <= 1 + min(4 * many, 4096)


def test_several_groups_at_once() -> None:
    """What one epoch has for many windows is computed together."""
    keys = [at % 5 for at in range(1000)]
    table = pa.table({"k": keys, "x": [None if at % 3 == 0 else at // 5 for at in range(1000)]})
    groups = group(table, ("k",), np.arange(1000))
    for aggregate in (
        sum_of("x"), count("x"), min_of("x"), max_of("x"), avg_of("x"), collect_of("x"),
        first_of("x"), last_of("x"), approx_distinct("x"), quantiles("x", [0.1, 0.9]),
    ):  # fmt: skip
        found = [aggregate.result(partial) for partial in aggregate.partials(groups)]
        for key, value in enumerate(found):
            alone = table.filter(pa.array([one == key for one in keys]))
            times = np.arange(key, 1000, 5)
            (partial,) = aggregate.partials(group(alone, ("k",), times))
            assert value == aggregate.result(partial), aggregate


def test_the_hash_stays_what_it_was() -> None:
    """Registers of an older version are merged with new ones: the hash may never change."""
    hashes = hashes_of(pa.array(["tea", ""])), hashes_of(pa.array([1, -1]))
    floats = hashes_of(pa.array([1.5])), hashes_of(pa.array([Decimal("1.50")]))
    found = [f"{value:016x}" for each in (*hashes, *floats) for value in each.tolist()]
    assert found == [
        "ba6587c1bb84c490",
        "e4a6a0577479b2b4",
        "910a2dec89025cc1",
        "e4d971771b652c20",
        "d6dab18e1392608a",
        "d2f838f6214680e7",
    ]
    assert hashes_of(pa.array([0.0])).tolist() == hashes_of(pa.array([-0.0])).tolist()


class Weighted(CustomAggregate):
    state_type: ClassVar[AggregateTypes] = (pa.float64(), pa.int64())
    returns = pa.float64()

    def add(self, rows: pd.DataFrame) -> tuple[Any, ...]:
        return (rows.x * 2).sum(), len(rows)

    def merge(self, one: tuple[Any, ...], other: tuple[Any, ...]) -> tuple[Any, ...]:
        return one[0] + other[0], one[1] + other[1]

    def result(self, partial: tuple[Any, ...]) -> Any:
        return partial[0] / partial[1]


def test_an_aggregate_of_ones_own() -> None:
    assert one(Weighted(), [1, 2, 6], pa.int64()) == 6.0


def test_a_partial_is_made_what_the_state_has() -> None:
    """Spark keeps null of an int where the state has a double, and says nothing."""
    doubles = pa.list_(pa.float64())
    held = [
        held_as(np.int64(3), pa.float64()),
        held_as(True, pa.int64()),
        held_as(5, pa.decimal128(5, 0)),
        held_as(np.array([1, 2]), doubles),
        held_as(None, pa.string()),
    ]
    assert repr(held) == "[3.0, 1, Decimal('5'), [1.0, 2.0], None]"
    for value, type_ in (
        (1.5, pa.int64()),
        ("1", pa.float64()),
        (1, pa.string()),
        (["a"], doubles),
    ):
        with pytest.raises(TypeError, match="where the state has"):
            held_as(value, type_)
    for value, type_ in ((128, pa.int8()), (100, pa.decimal128(3, 1))):
        with pytest.raises(OverflowError):
            held_as(value, type_)


def test_an_aggregate_of_ones_own_that_lacks_something() -> None:
    class NoState(Weighted):
        state_type = ()

    class Times(Weighted):
        state_type = (pa.timestamp("us"),)

    class NoTuple(Weighted):
        def add(self, rows: pd.DataFrame) -> Any:
            return 1

    with pytest.raises(BadQuery, match=r"NoState needs a state_type.*Nothing was written\."):
        NoState().state(None)
    with pytest.raises(BadQuery, match=r"would depend on a worker's time zone"):
        Times().state(None)
    with pytest.raises(TypeError, match=r"NoTuple\.add\(\) returned a int, not a tuple"):
        one(NoTuple(), [1], pa.int64())


def test_the_state_of_one_aggregate_is_not_read_as_that_of_another() -> None:
    schema = pa.schema([("k", pa.string()), ("x", pa.int64()), ("y", pa.int64())])
    alike = [
        count(),
        count("x"),
        sum_of("x"),
        sum_of("y"),
        min_of("x"),
        max_of("x"),
        quantiles("x", [0.5], error=0.01),
        quantiles("x", [0.5], error=0.02),
    ]
    names = [WindowCodec(schema, ["k"], {"n": one}).state_schema.fieldNames() for one in alike]
    assert len({tuple(columns) for columns in names}) == len(alike)
    more = WindowCodec(schema, ["k"], {"n": quantiles("x", [0.9], error=0.01)})
    assert more.state_schema.fieldNames() == names[-2], "which quantiles are shown may change"
