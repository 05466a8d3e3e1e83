"""What windows compute: count, sum, min, max, avg, and what else rows of a window are made into.

An aggregate turns the rows of an epoch into a *partial* per group, all groups at once; partials are
merged with what the state holds, and made into a result when the window fires. A partial is a tuple
of plain values, which Spark keeps in columns of their own. Merging must not depend on how rows fall
into epochs: the same rows give the same result, whatever crashed in between.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from beadline.errors import BadQuery

if TYPE_CHECKING:
    from pyspark.sql import Column

    from beadline.event_time.groups import Groups

Partial = tuple[Any, ...]
_LARGEST = 2**63 - 1


class Aggregate(ABC):
    """One result column of a window."""

    column: str | None  # what it is made of; None for what needs no column

    @abstractmethod
    def state(self, column: pa.DataType | None) -> list[pa.DataType]:
        """Return the types of a partial's values; raise `BadQuery` for a column it is not for."""

    @abstractmethod
    def result_type(self, column: pa.DataType | None) -> pa.DataType:
        """Return the type of the result."""

    @abstractmethod
    def partials(self, groups: Groups) -> Sequence[Partial]:
        """Return a partial per group of rows."""

    @abstractmethod
    def merge(self, one: Partial, other: Partial) -> Partial:
        """Put two partials together, in any order."""

    def checked(self, partial: Partial) -> Partial:
        """Return a partial that the state can hold, or raise."""
        return partial

    def result(self, partial: Partial) -> Any:
        """Return what is shown of a partial."""
        return partial[0]

    def native(self) -> Column | None:
        """Return Spark's own expression of it, if there is one with the same answer."""
        return None


@dataclass(frozen=True)
class Count(Aggregate):
    """How many rows, or how many in which a column is not null."""

    column: str | None = None

    def state(self, column: pa.DataType | None) -> list[pa.DataType]:
        """One number."""
        return [pa.int64()]

    def result_type(self, column: pa.DataType | None) -> pa.DataType:
        """A bigint, as Spark's."""
        return pa.int64()

    def partials(self, groups: Groups) -> Sequence[Partial]:
        """Count the rows."""
        if self.column is None:
            counts = groups.ends - groups.starts
        else:
            there = groups.column(self.column).is_valid().to_numpy(zero_copy_only=False)
            counts = np.add.reduceat(there.astype(np.int64), groups.starts)
        return [(count,) for count in counts.tolist()]

    def merge(self, one: Partial, other: Partial) -> Partial:
        """Add."""
        return (one[0] + other[0],)

    def native(self) -> Column | None:
        """The same."""
        from pyspark.sql import functions as F

        return F.count(F.lit(1) if self.column is None else self.column)


@dataclass(frozen=True)
class Sum(Aggregate):
    """The sum of a column; null if nothing in the window is there, as in SQL."""

    column: str

    def state(self, column: pa.DataType | None) -> list[pa.DataType]:
        """The sum so far."""
        return [self.result_type(column)]

    def result_type(self, column: pa.DataType | None) -> pa.DataType:
        """As Spark's: bigint of integers, double of floats, ten digits more of decimals."""
        assert column is not None
        if pa.types.is_integer(column):
            return pa.int64()
        if pa.types.is_floating(column):
            return pa.float64()
        if pa.types.is_decimal(column):
            return pa.decimal128(min(column.precision + 10, 38), column.scale)
        raise BadQuery(f"sum({self.column!r}): {column} cannot be added up")

    def partials(self, groups: Groups) -> Sequence[Partial]:
        """Add up every group; integers exactly, whatever their size."""
        column = groups.column(self.column)
        there = column.is_valid().to_numpy(zero_copy_only=False)
        some = np.add.reduceat(there.astype(np.int64), groups.starts) > 0
        if pa.types.is_decimal(column.type):
            wide = column.cast(pa.decimal128(38, column.type.scale))
            slices = zip(groups.starts.tolist(), groups.ends.tolist(), strict=True)
            sums = [pc.sum(wide.slice(start, end - start)).as_py() for start, end in slices]
        elif pa.types.is_integer(column.type):
            values = pc.fill_null(column.cast(pa.int64()), 0).to_numpy()
            sums = np.add.reduceat(values, groups.starts).tolist()
            # A sum of 64 bits that has wrapped round is far from the sum of the same floats.
            rough = np.add.reduceat(values.astype(np.float64), groups.starts)
            for at in np.flatnonzero(np.abs(rough) > 2.0**62).tolist():
                sums[at] = sum(values[groups.starts[at] : groups.ends[at]].tolist())
        else:
            values = pc.fill_null(column.cast(pa.float64()), 0.0).to_numpy()
            sums = np.add.reduceat(values, groups.starts).tolist()
        return [(one if known else None,) for one, known in zip(sums, some.tolist(), strict=True)]

    def merge(self, one: Partial, other: Partial) -> Partial:
        """Add; null is nothing."""
        if one[0] is None or other[0] is None:
            return other if one[0] is None else one
        return (one[0] + other[0],)

    def checked(self, partial: Partial) -> Partial:
        """Refuse a sum that a bigint cannot hold: it must not wrap round."""
        if isinstance(partial[0], int) and not -_LARGEST - 1 <= partial[0] <= _LARGEST:
            raise ArithmeticError(
                f"sum({self.column!r}) of a window is beyond 64 bits. Sum a decimal instead: "
                f"cast({self.column} as decimal(38, 0))"
            )
        return partial

    def native(self) -> Column | None:
        """The same."""
        from pyspark.sql import functions as F

        return F.sum(self.column)


@dataclass(frozen=True)
class Extreme(Aggregate):
    """The smallest or largest value of a column; nulls do not count, NaN is the largest number."""

    column: str
    largest: bool

    def state(self, column: pa.DataType | None) -> list[pa.DataType]:
        """The value."""
        return [self.result_type(column)]

    def result_type(self, column: pa.DataType | None) -> pa.DataType:
        """The column's own."""
        assert column is not None
        if pa.types.is_nested(column):
            raise BadQuery(f"{self._name}({self.column!r}): {column} has no order")
        return column

    @property
    def _name(self) -> str:
        return "max" if self.largest else "min"

    def partials(self, groups: Groups) -> Sequence[Partial]:
        """Take the first of each group's sorted values."""
        column = groups.column(self.column)
        numbers = np.repeat(np.arange(len(groups)), groups.ends - groups.starts)
        table = pa.table({"group": numbers, "value": column})
        order = pc.sort_indices(
            table,
            sort_keys=[
                ("group", "ascending"),
                ("value", "descending" if self.largest else "ascending"),
            ],
        )  # nulls come last
        firsts = order.take(pa.array(groups.starts))
        values = column.take(firsts).to_pylist()
        if pa.types.is_floating(column.type) and self.largest:
            nans = pc.fill_null(pc.is_nan(column), False).to_numpy(zero_copy_only=False)
            has_nan = np.logical_or.reduceat(nans, groups.starts).tolist()
            values = [float("nan") if n else v for v, n in zip(values, has_nan, strict=True)]
        return [(value,) for value in values]

    def merge(self, one: Partial, other: Partial) -> Partial:
        """Take the one that is farther out."""
        if one[0] is None or other[0] is None:
            return other if one[0] is None else one
        if _is_nan(one[0]) or _is_nan(other[0]):
            return one if _is_nan(one[0]) is self.largest else other
        return one if (one[0] > other[0]) is self.largest else other

    def native(self) -> Column | None:
        """The same."""
        from pyspark.sql import functions as F

        return F.max(self.column) if self.largest else F.min(self.column)


def _is_nan(value: Any) -> bool:
    return isinstance(value, float) and value != value


@dataclass(frozen=True)
class Average(Aggregate):
    """The mean of a column; null if nothing in the window is there."""

    column: str

    def state(self, column: pa.DataType | None) -> list[pa.DataType]:
        """The sum, exact where the column is, and how many."""
        assert column is not None
        if pa.types.is_integer(column):
            return [pa.decimal128(38, 0), pa.int64()]
        return [*Sum(self.column).state(column), pa.int64()]

    def result_type(self, column: pa.DataType | None) -> pa.DataType:
        """A double; of decimals a decimal with four digits more, as Spark's."""
        assert column is not None
        if pa.types.is_decimal(column):
            return pa.decimal128(min(column.precision + 4, 38), min(column.scale + 4, 38))
        Sum(self.column).result_type(column)
        return pa.float64()

    def partials(self, groups: Groups) -> Sequence[Partial]:
        """Add up and count."""
        sums = Sum(self.column).partials(groups)
        counts = Count(self.column).partials(groups)
        whole = pa.types.is_integer(groups.column(self.column).type)
        return [
            (Decimal(one) if whole and one is not None else one, count)
            for (one,), (count,) in zip(sums, counts, strict=True)
        ]

    def merge(self, one: Partial, other: Partial) -> Partial:
        """Add both."""
        if one[0] is None or other[0] is None:
            return other if one[0] is None else one
        return (one[0] + other[0], one[1] + other[1])

    def result(self, partial: Partial) -> Any:
        """Divide."""
        total, count = partial
        if not count:
            return None
        if isinstance(total, Decimal) and total.as_tuple().exponent == 0:
            return int(total) / count
        return total / count

    def native(self) -> Column | None:
        """The same."""
        from pyspark.sql import functions as F

        return F.avg(self.column)


def count(column: str | None = None) -> Aggregate:
    """How many rows, or how many in which a column is not null."""
    return Count(column)


def sum_of(column: str) -> Aggregate:
    """The sum of a column; null if all of it is."""
    return Sum(column)


def min_of(column: str) -> Aggregate:
    """The smallest value of a column."""
    return Extreme(column, largest=False)


def max_of(column: str) -> Aggregate:
    """The largest value of a column."""
    return Extreme(column, largest=True)


def avg_of(column: str) -> Aggregate:
    """The mean of a column."""
    return Average(column)
