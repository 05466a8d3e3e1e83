"""The ordered checksum: the same for the same rows in any batches, another for any change."""

from __future__ import annotations

import datetime
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from beadline.spark.checksum import Ordered, supported

SCHEMA = pa.schema(
    [
        ("key", pa.binary()),
        ("value", pa.string()),
        ("number", pa.int32()),
        ("measure", pa.float64()),
        ("at", pa.timestamp("us", "UTC")),
        ("wide", pa.large_binary()),
    ]
)
ROWS = st.lists(
    st.tuples(
        st.none() | st.binary(max_size=12),
        st.none() | st.text(max_size=12),
        st.none() | st.integers(-(2**31), 2**31 - 1),
        st.none() | st.floats(allow_nan=False),
        st.none() | st.datetimes(datetime.datetime(1970, 1, 1), datetime.datetime(2100, 1, 1)),
        st.none() | st.binary(max_size=12),
    ),
    min_size=1,
    max_size=12,
)
Row = tuple[Any, ...]


def value_of(rows: list[Row], size: int = 100) -> int:
    table = pa.Table.from_pylist(
        [dict(zip(SCHEMA.names, row, strict=True)) for row in rows], schema=SCHEMA
    )
    ordered = Ordered()
    for batch in table.to_batches(max_chunksize=size):
        ordered.update(batch)
    return ordered.value


@settings(deadline=None)
@given(rows=ROWS, size=st.integers(1, 5))
def test_batches_do_not_matter(rows: list[Row], size: int) -> None:
    """Slices of one table have offsets into shared buffers; what lies beyond them is not theirs."""
    assert value_of(rows, size) == value_of(rows)


@settings(deadline=None)
@given(rows=ROWS, data=st.data())
def test_any_change_shows(rows: list[Row], data: st.DataObject) -> None:
    other = data.draw(ROWS)
    same = [repr(row) for row in rows] == [repr(row) for row in other]
    assert (value_of(rows) == value_of(other)) == same


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ([(b"ab", b"c")], [(b"a", b"bc")]),  # the same bytes, cut elsewhere
        ([(b"", b"")], [(None, b"")]),
        ([(b"a", b"b")], [(b"b", b"a")]),
        ([(b"a", b""), (b"b", b"")], [(b"b", b""), (b"a", b"")]),
    ],
)
def test_cuts_nulls_columns_and_order_count(one: list[Row], other: list[Row]) -> None:
    rest = ("", 0, 0.0, None)
    left, right = ([(a, *rest, b) for a, b in rows] for rows in (one, other))
    assert value_of(left) != value_of(right)


def test_types_that_are_left_to_spark() -> None:
    assert supported(SCHEMA)
    for kind in (pa.list_(pa.string()), pa.decimal128(10, 2), pa.bool_(), pa.struct([])):
        assert not supported(pa.schema([("x", kind)]))
