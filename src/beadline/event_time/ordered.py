"""Aggregates in the order of time: all values of a column, the first value, the last value.

Rows of the same time are ordered by their values, so that the result depends neither on the order
in which they arrived, nor on their division into epochs.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from beadline.event_time.aggregates import (
    Aggregate,
    Partial,
    before,
    best_rows,
    ordered_type,
    with_one_zero,
)
from beadline.event_time.columns import column_of
from beadline.event_time.groups import Groups, plain, plain_type

if TYPE_CHECKING:
    from pyspark.sql import Column


@dataclass(frozen=True)
class Collect(Aggregate):
    """All values of a column in the order of time; nulls are left out, as in collect_list."""

    column: str

    def ordered(self, column: pa.DataType | None) -> bool:
        """No: values of the same time are sorted."""
        return False

    def state(self, column: pa.DataType | None) -> list[pa.DataType]:
        """Times and values."""
        value = plain_type(ordered_type(self.column, column))
        return [pa.list_(pa.int64()), pa.list_(value)]

    def result_type(self, column: pa.DataType | None) -> pa.DataType:
        """An array of the column's type."""
        return pa.list_(ordered_type(self.column, column))

    def partials(self, groups: Groups) -> Sequence[Partial]:
        """Collect the values of each group."""
        values = with_one_zero(plain(groups.column(self.column))).to_pylist()
        times = groups.times.tolist()
        found = []
        for start, end in zip(groups.starts.tolist(), groups.ends.tolist(), strict=True):
            pairs = zip(times[start:end], values[start:end], strict=True)
            found.append(_in_order([pair for pair in pairs if pair[1] is not None]))
        return found

    def merge(self, one: Partial, other: Partial) -> Partial:
        """Merge both lists in order."""
        return _in_order([*zip(*one, strict=True), *zip(*other, strict=True)])

    def result(self, partial: Partial) -> Any:
        """The values."""
        return list(partial[1])

    def native(self, time: str) -> Column | None:
        """Return Spark's collected list, sorted by time."""
        from pyspark.sql import functions as F

        pairs = F.array_sort(F.collect_list(_timed(time, self.column)))
        return F.transform(pairs, lambda pair: pair["value"])


@dataclass(frozen=True)
class Edge(Aggregate):
    """The first or last value of a column by time; nulls are ignored.

    If there are several values at that time, the first is the smallest and the last the largest.
    """

    column: str
    last: bool

    def ordered(self, column: pa.DataType | None) -> bool:
        """No: of values of the same time, the smallest or largest counts."""
        return False

    def state(self, column: pa.DataType | None) -> list[pa.DataType]:
        """The time and the value."""
        return [pa.int64(), plain_type(ordered_type(self.column, column))]

    def result_type(self, column: pa.DataType | None) -> pa.DataType:
        """The column's own."""
        return ordered_type(self.column, column)

    def partials(self, groups: Groups) -> Sequence[Partial]:
        """Find the row with the earliest or latest time in each group."""
        column = with_one_zero(plain(groups.column(self.column)))
        order = "descending" if self.last else "ascending"
        rows = best_rows(groups, column, [groups.times], order)
        values = column.take(rows).to_pylist()
        times = pa.array(groups.times).take(rows).to_pylist()
        return list(zip(times, values, strict=True))

    def merge(self, one: Partial, other: Partial) -> Partial:
        """Return the earlier or later one."""
        if one[0] is None or other[0] is None:
            return other if one[0] is None else one
        if one[0] != other[0]:
            return one if (one[0] < other[0]) is not self.last else other
        return one if before(one[1], other[1]) is not self.last else other

    def result(self, partial: Partial) -> Any:
        """The value."""
        return partial[1]

    def native(self, time: str) -> Column | None:
        """Return Spark's minimum or maximum of the pairs of time and value."""
        from pyspark.sql import functions as F

        pair = (F.max if self.last else F.min)(_timed(time, self.column))
        return pair["value"]


def _timed(time: str, column: str) -> Column:
    """Return a row's time and value; null where the value is null, which Spark's functions skip."""
    from pyspark.sql import functions as F

    value = column_of(column)
    pair = F.struct(column_of(time).alias("time"), value.alias("value"))
    return F.when(value.isNotNull(), pair)


def _in_order(pairs: list[tuple[int, Any]]) -> Partial:
    pairs.sort(key=lambda pair: (pair[0], pair[1] != pair[1], pair[1]))  # NaN comes last
    return [time for time, _ in pairs], [value for _, value in pairs]


def collect_of(column: str) -> Aggregate:
    """Collect the values of a column that are not null, in the order of time."""
    return Collect(column)


def first_of(column: str) -> Aggregate:
    """Return the value of a column, not null, with the earliest time."""
    return Edge(column, last=False)


def last_of(column: str) -> Aggregate:
    """Return the value of a column, not null, with the latest time."""
    return Edge(column, last=True)
