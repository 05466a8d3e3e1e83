"""Rows of an Arrow table grouped by their keys: sorted once, then divided into slices.

The state holds *plain* values: a number of microseconds for a timestamp, of days for a date. So the
time zone of a Python worker has no influence, and no date is too far away for Python.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

Ints = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]


@dataclass(frozen=True)
class Groups:
    """The rows of a table by group: the rows of group g are ``starts[g]`` to ``ends[g]``.

    ``times`` is each row's event time in microseconds, ascending within a group; rows of the same
    time stay in the order of the table.
    """

    table: pa.Table
    starts: Ints
    times: Ints
    extra: Ints | None = None  # a number by which rows were grouped in addition to their keys

    @cached_property
    def ends(self) -> Ints:
        """One past the last row of each group."""
        return np.append(self.starts[1:], self.table.num_rows).astype(np.int64)

    @cached_property
    def numbers(self) -> Ints:
        """The group of each row."""
        return np.repeat(np.arange(len(self)), self.ends - self.starts)

    def __len__(self) -> int:
        """How many groups there are."""
        return len(self.starts)

    def firsts(self, names: Sequence[str]) -> list[tuple[Any, ...]]:
        """Return the plain values of the key's columns in each group's first row."""
        if not names:
            return [()] * len(self)
        first = pa.array(self.starts)
        columns = (plain(_one_zero(self.column(name).take(first))) for name in names)
        return list(zip(*(column.to_pylist() for column in columns), strict=True))

    def column(self, name: str) -> pa.Array:
        """Return a column as one array."""
        return one_array(self.table[name])

    def cut(self, starts: Ints) -> Groups:
        """Return the same rows in smaller groups."""
        return Groups(self.table, starts, self.times, self.extra)


def group(table: pa.Table, keys: Sequence[str], times: Ints, extra: Ints | None = None) -> Groups:
    """Group rows by their keys (null is a key like any other), and by ``extra`` numbers."""
    codes = [_codes(one_array(table[name])) for name in keys]
    if extra is not None:
        codes.append(extra)
    order = np.lexsort((times, *reversed(codes)))
    changed = np.zeros(len(order), dtype=bool)
    if len(order):
        changed[0] = True
    for code in codes:
        sorted_code = code[order]
        changed[1:] |= sorted_code[1:] != sorted_code[:-1]
    sorted_extra = None if extra is None else extra[order]
    return Groups(table.take(pa.array(order)), np.flatnonzero(changed), times[order], sorted_extra)


def plain_type(type_: pa.DataType) -> pa.DataType:
    """Return the type in which the state holds the values of a column."""
    if any(is_a(type_) for is_a in (pa.types.is_timestamp, pa.types.is_duration, pa.types.is_time)):
        return pa.int64()
    return pa.int32() if pa.types.is_date(type_) else type_


def plain(column: pa.Array) -> pa.Array:
    """Return a column in the type in which the state holds it."""
    return column.cast(plain_type(column.type))


def one_array(column: pa.ChunkedArray | pa.Array) -> pa.Array:
    """Return a column as one array."""
    return column if isinstance(column, pa.Array) else column.combine_chunks()


def _one_zero(column: pa.Array) -> pa.Array:
    """Return floats with -0.0 as 0.0, and all NaN the same, as Spark groups by them."""
    if not pa.types.is_floating(column.type):
        return column
    zeros = pc.add(column, pa.scalar(0.0, column.type))
    return pc.if_else(pc.is_nan(column), pa.scalar(float("nan"), column.type), zeros)


def _codes(column: pa.Array) -> Ints:
    """Return a number per row that is the same for equal values, -1 for null."""
    encoded = pc.dictionary_encode(_one_zero(column), null_encoding="mask")
    indices = pc.fill_null(encoded.indices, -1).to_numpy(zero_copy_only=False)
    return np.asarray(indices, dtype=np.int64)
