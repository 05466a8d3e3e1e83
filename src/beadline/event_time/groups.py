"""Rows of an Arrow table brought together by their keys: sorted once, then cut into slices."""

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


@dataclass(frozen=True)
class Groups:
    """The rows of a table by group: those of group g are ``starts[g]`` to ``ends[g]``.

    ``times`` is each row's event time in microseconds, ascending within a group; rows of the same
    time stay in the order that they came in.
    """

    table: pa.Table
    starts: Ints
    times: Ints

    @cached_property
    def ends(self) -> Ints:
        """One behind the last row of each group."""
        return np.append(self.starts[1:], self.table.num_rows).astype(np.int64)

    def __len__(self) -> int:
        """How many groups there are."""
        return len(self.starts)

    def firsts(self, names: Sequence[str]) -> list[tuple[Any, ...]]:
        """Return the values of some columns in each group's first row: those of a key."""
        if not names:
            return [()] * len(self)
        taken = self.table.select(list(names)).take(pa.array(self.starts))
        return list(zip(*(column.to_pylist() for column in taken.columns), strict=True))

    def column(self, name: str) -> pa.Array:
        """Return a column as one array."""
        column = self.table[name]
        return column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column


def group(table: pa.Table, keys: Sequence[str], times: Ints, extra: Ints | None = None) -> Groups:
    """Group rows by their keys (null is a key like any other), and by ``extra`` numbers."""
    codes = [_codes(table[name]) for name in keys]
    if extra is not None:
        codes.append(extra)
    order = np.lexsort((times, *reversed(codes)))
    changed = np.zeros(len(order), dtype=bool)
    if len(order):
        changed[0] = True
    for code in codes:
        sorted_code = code[order]
        changed[1:] |= sorted_code[1:] != sorted_code[:-1]
    return Groups(table.take(pa.array(order)), np.flatnonzero(changed), times[order])


def _codes(column: pa.ChunkedArray) -> Ints:
    """Return a number per row that is the same for equal values, -1 for null."""
    encoded = pc.dictionary_encode(column.combine_chunks(), null_encoding="mask")
    if isinstance(encoded, pa.ChunkedArray):
        encoded = encoded.combine_chunks()
    indices = pc.fill_null(encoded.indices, -1).to_numpy(zero_copy_only=False)
    return np.asarray(indices, dtype=np.int64)
