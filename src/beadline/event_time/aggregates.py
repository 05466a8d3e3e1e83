"""Aggregates of windows: count, sum, min, max, avg, and the base class of all aggregates.

An aggregate turns the rows of an epoch into a *partial* per group, for all groups at once; partials
are merged with those in the state, and converted to a result when the window fires. A partial is a
tuple of plain values, which Spark stores in separate columns. Merging must not depend on how rows
are divided into epochs: the same rows give the same result, whatever crashed in between. (Sums of
doubles may differ in the last digits between other epochs; within one, `Aggregate.ordered` gives
them a fixed order.)

Each aggregate gives the same result as Spark's function of the same name, and is that function
where windows are Spark's own. See also ``ordered`` (collect, first, last), ``sketches``
(approximate aggregates) and ``custom`` (user-defined ones).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, fields, is_dataclass
from decimal import ROUND_HALF_UP, Context, Decimal
from typing import TYPE_CHECKING, Any, ClassVar
from zlib import crc32

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from beadline.errors import NOTHING_WRITTEN, BadQuery
from beadline.event_time.columns import column_of
from beadline.event_time.groups import Groups, Ints, plain, plain_type

if TYPE_CHECKING:
    from pyspark.sql import Column

Partial = tuple[Any, ...]
# Python's own context rounds to 28 digits, and Spark's decimals have 38.
EXACT = Context(prec=100, rounding=ROUND_HALF_UP)


class Aggregate(ABC):
    """One result column of a window."""

    column: str | None  # the column to aggregate; None if it needs none
    shown_by: ClassVar[tuple[str, ...]] = ()  # fields that affect the result but not the partials

    @property
    def kind(self) -> str:
        """A text that identifies the partials, used in the names of the state's columns.

        So the state of one aggregate is never read as that of another with the same types: code
        that was changed from a sum to a count fails before its first epoch.
        """
        kind = type(self).__name__.lower() + (f"_{self.column}" if self.column else "")
        names: list[str] = [one.name for one in fields(self)] if is_dataclass(self) else []
        more = [
            (name, _fixed(f"{type(self).__name__}.{name}", getattr(self, name)))
            for name in names
            if name != "column" and name not in self.shown_by
        ]
        return f"{kind}_{crc32(repr(more).encode()):08x}" if more else kind

    @abstractmethod
    def state(self, column: pa.DataType | None) -> list[pa.DataType]:
        """Return the types of a partial's values; raise `BadQuery` for an unsuitable column."""

    @abstractmethod
    def result_type(self, column: pa.DataType | None) -> pa.DataType:
        """Return the type of the result."""

    def ordered(self, column: pa.DataType | None) -> bool:
        """Whether a partial depends on the order of rows of the same time.

        They are then sorted by their content, which costs some time.
        """
        return True

    @abstractmethod
    def partials(self, groups: Groups) -> Sequence[Partial]:
        """Return a partial for each group of rows."""

    @abstractmethod
    def merge(self, one: Partial, other: Partial) -> Partial:
        """Merge two partials; the order must not matter."""

    def result(self, partial: Partial) -> Any:
        """Return the result of a partial."""
        return partial[0]

    def native(self, time: str) -> Column | None:
        """Return the equivalent Spark expression, if there is one with the same result.

        ``time`` is the time column of the windows.
        """
        return None


def held_as(value: Any, type_: pa.DataType) -> Any:
    """Return a value in the type of the state's column; Spark would store null for a wrong type.

    Raises ``OverflowError`` for a number that is too large.
    """
    if isinstance(value, np.generic):
        value = value.item()
    if value is None:
        return None
    if pa.types.is_floating(type_) and isinstance(value, int | float | Decimal):
        return float(value)
    if pa.types.is_integer(type_) and isinstance(value, int):
        bits = int(type_.bit_width) - 1
        if not -(2**bits) <= value < 2**bits:
            raise OverflowError
        return int(value)
    if pa.types.is_decimal(type_) and isinstance(value, int | Decimal):
        value = Decimal(value)
        if value and value.adjusted() >= int(type_.precision - type_.scale):
            raise OverflowError
        return value
    if pa.types.is_list(type_) and isinstance(value, list | tuple | np.ndarray):
        return [held_as(one, type_.value_type) for one in value]
    if not isinstance(value, _CLASSES.get(type_.id, object)):
        raise TypeError(f"a value of type {type(value).__name__} where the state has {type_}")
    return value


_CLASSES: dict[int, type | tuple[type, ...]] = {
    **{type_.id: () for type_ in (pa.float32(), pa.float64(), pa.decimal128(1, 0))},
    **{type_.id: () for type_ in (pa.int8(), pa.int16(), pa.int32(), pa.int64())},
    pa.bool_().id: bool,
    pa.string().id: str,
    pa.binary().id: (bytes, bytearray),
}


@dataclass(frozen=True)
class Count(Aggregate):
    """The number of rows, or of those in which a column is not null."""

    column: str | None = None

    def ordered(self, column: pa.DataType | None) -> bool:
        """No."""
        return False

    def state(self, column: pa.DataType | None) -> list[pa.DataType]:
        """One number."""
        return [pa.int64()]

    def result_type(self, column: pa.DataType | None) -> pa.DataType:
        """A bigint, as in Spark."""
        return pa.int64()

    def partials(self, groups: Groups) -> Sequence[Partial]:
        """Count the rows."""
        if self.column is None:
            counts = groups.ends - groups.starts
        else:
            counts = _not_null(groups, groups.column(self.column))
        return [(count,) for count in counts.tolist()]

    def merge(self, one: Partial, other: Partial) -> Partial:
        """Add."""
        return (one[0] + other[0],)

    def native(self, time: str) -> Column | None:
        """The same."""
        from pyspark.sql import functions as F

        return F.count(F.lit(1) if self.column is None else column_of(self.column))


@dataclass(frozen=True)
class Sum(Aggregate):
    """The sum of a column; null if all values in the window are null, as in SQL."""

    column: str

    def ordered(self, column: pa.DataType | None) -> bool:
        """Floats are rounded at each step; others are added exactly."""
        return column is not None and pa.types.is_floating(column)

    def state(self, column: pa.DataType | None) -> list[pa.DataType]:
        """The sum so far."""
        return [self.result_type(column)]

    def result_type(self, column: pa.DataType | None) -> pa.DataType:
        """As in Spark: bigint for integers, double for floats, ten more digits for decimals."""
        assert column is not None
        if pa.types.is_integer(column):
            return pa.int64()
        if pa.types.is_floating(column):
            return pa.float64()
        if pa.types.is_decimal(column):
            return pa.decimal128(min(column.precision + 10, 38), column.scale)
        raise BadQuery(
            f"column {self.column!r} is of type {column}, and cannot be added up. Cast it to a "
            f"number. {NOTHING_WRITTEN}"
        )

    def partials(self, groups: Groups) -> Sequence[Partial]:
        """Sum each group; integers and decimals exactly, whatever their size."""
        column = groups.column(self.column)
        if pa.types.is_decimal(column.type):
            sums = _decimal_sums(groups, column)
        elif pa.types.is_integer(column.type):
            values = pc.fill_null(column.cast(pa.int64()), 0).to_numpy(zero_copy_only=False)
            sums = np.add.reduceat(values, groups.starts).tolist()
            # A 64-bit sum that has overflowed is far from the sum of the same numbers as floats.
            rough = np.add.reduceat(values.astype(np.float64), groups.starts)
            for at in np.flatnonzero(np.abs(rough) > 2.0**62).tolist():
                sums[at] = sum(values[groups.starts[at] : groups.ends[at]].tolist())
        else:
            values = pc.fill_null(column.cast(pa.float64()), 0.0).to_numpy(zero_copy_only=False)
            sums = np.add.reduceat(values, groups.starts).tolist()
        some = (_not_null(groups, column) > 0).tolist()
        return [(one if known else None,) for one, known in zip(sums, some, strict=True)]

    def merge(self, one: Partial, other: Partial) -> Partial:
        """Add; a null counts as nothing."""
        if one[0] is None or other[0] is None:
            return other if one[0] is None else one
        return (_plus(one[0], other[0]),)

    def native(self, time: str) -> Column | None:
        """The same."""
        from pyspark.sql import functions as F

        return F.sum(column_of(self.column))


@dataclass(frozen=True)
class Average(Aggregate):
    """The mean of a column; null if all values in the window are null."""

    column: str

    def ordered(self, column: pa.DataType | None) -> bool:
        """As for its sum."""
        return Sum(self.column).ordered(column)

    def state(self, column: pa.DataType | None) -> list[pa.DataType]:
        """The sum, exact if the column's type is, and the count."""
        assert column is not None
        if pa.types.is_integer(column):
            return [pa.decimal128(38, 0), pa.int64()]
        return [*Sum(self.column).state(column), pa.int64()]

    def result_type(self, column: pa.DataType | None) -> pa.DataType:
        """A double; for decimals a decimal with four more digits, as in Spark."""
        assert column is not None
        if pa.types.is_decimal(column):
            return pa.decimal128(min(column.precision + 4, 38), min(column.scale + 4, 38))
        Sum(self.column).result_type(column)
        return pa.float64()

    def partials(self, groups: Groups) -> Sequence[Partial]:
        """Sum and count each group."""
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
        return (_plus(one[0], other[0]), one[1] + other[1])

    def result(self, partial: Partial) -> Any:
        """Divide."""
        total, count = partial
        if not count:
            return None
        return EXACT.divide(total, Decimal(count)) if isinstance(total, Decimal) else total / count

    def native(self, time: str) -> Column | None:
        """The same."""
        from pyspark.sql import functions as F

        return F.avg(column_of(self.column))


@dataclass(frozen=True)
class Extreme(Aggregate):
    """The smallest or largest value of a column; nulls are ignored, NaN is the largest number."""

    column: str
    largest: bool

    def ordered(self, column: pa.DataType | None) -> bool:
        """No: equal values are the same."""
        return False

    def state(self, column: pa.DataType | None) -> list[pa.DataType]:
        """The value."""
        return [plain_type(self.result_type(column))]

    def result_type(self, column: pa.DataType | None) -> pa.DataType:
        """The column's type."""
        return ordered_type(self.column, column)

    def partials(self, groups: Groups) -> Sequence[Partial]:
        """Find the smallest or largest value of each group."""
        column = with_one_zero(plain(groups.column(self.column)))
        if pa.types.is_integer(column.type) or pa.types.is_float64(column.type):
            found = self._of_numbers(groups, column)
        else:
            order = "descending" if self.largest else "ascending"
            found = column.take(best_rows(groups, column, [], order)).to_pylist()
        return [(value,) for value in found]

    def _of_numbers(self, groups: Groups, column: pa.Array) -> list[Any]:
        """Find them without sorting, for numbers."""
        if pa.types.is_integer(column.type):
            bits = column.type.bit_width - 1
            nothing: Any = -(2**bits) if self.largest else 2**bits - 1
            smallest: np.ufunc = np.minimum
        else:  # maximum() returns NaN if there is one, fmin() only if all values are NaN
            nothing = float("-inf") if self.largest else float("nan")
            smallest = np.fmin
        values = pc.fill_null(column, nothing).to_numpy(zero_copy_only=False)
        take = np.maximum if self.largest else smallest
        found = take.reduceat(values, groups.starts).tolist()
        some = (_not_null(groups, column) > 0).tolist()
        return [one if known else None for one, known in zip(found, some, strict=True)]

    def merge(self, one: Partial, other: Partial) -> Partial:
        """Return the smaller or larger one."""
        if one[0] is None or other[0] is None:
            return other if one[0] is None else one
        return one if before(one[0], other[0]) is not self.largest else other

    def native(self, time: str) -> Column | None:
        """The same."""
        from pyspark.sql import functions as F

        return (F.max if self.largest else F.min)(column_of(self.column))


# -- shared functions


def _fixed(what: str, value: Any) -> Any:
    """Return a value whose text is the same in every process, or raise."""
    if isinstance(value, set | frozenset):
        value = sorted(map(repr, value))
    if " at 0x" in repr(value):
        raise BadQuery(
            f"{what} is a {type(value).__name__} whose repr() is another one in each process, so "
            "the state could not be told from that of another aggregate: make it no field of the "
            f"dataclass, or give its class a __repr__ with what it is made of. {NOTHING_WRITTEN}"
        )
    return value


def ordered_type(name: str, column: pa.DataType | None) -> pa.DataType:
    """Return the type of a column whose values have an order, or raise."""
    assert column is not None
    if pa.types.is_nested(column):
        raise BadQuery(
            f"column {name!r} is of type {column}, and its values have no order. Use one of its "
            f"fields, or its to_json(). {NOTHING_WRITTEN}"
        )
    return column


def before(one: Any, other: Any) -> bool:
    """Return whether a value comes before another one in Spark's order: NaN comes last."""
    if one != one or other != other:
        return bool(one == one)
    return bool(one < other)


def with_one_zero(column: pa.Array) -> pa.Array:
    """Return a column with -0.0 as 0.0: they are equal, and which came first must not matter."""
    if not pa.types.is_floating(column.type):
        return column
    return pc.add(column, pa.scalar(0.0, column.type))


def best_rows(groups: Groups, column: pa.Array, times: Sequence[Ints], order: str) -> pa.Array:
    """Return the row of each group that comes first by the times, then by the value.

    It is null where the column is null in the whole group. ``order`` applies to times and value.
    """
    valid = np.flatnonzero(column.is_valid().to_numpy(zero_copy_only=False))
    columns = {"group": groups.numbers[valid]}
    columns |= {f"time_{at}": each[valid] for at, each in enumerate(times)}
    keys = [(name, order) for name in columns]
    if pa.types.is_floating(column.type):  # Arrow sorts NaN last in either order
        columns["nan"] = np.isnan(column.take(pa.array(valid)).to_numpy(zero_copy_only=False)) * 1
        keys.append(("nan", order))
    keys[0] = ("group", "ascending")
    table = pa.table({**columns, "value": column.take(pa.array(valid))})
    sorted_rows = pc.sort_indices(table, sort_keys=[*keys, ("value", order)]).to_numpy()
    found, first = np.unique(columns["group"][sorted_rows], return_index=True)
    rows = np.zeros(len(groups), dtype=np.int64)
    rows[found] = valid[sorted_rows[first]]
    missing = np.ones(len(groups), dtype=bool)
    missing[found] = False
    return pa.array(rows, mask=missing)


def _not_null(groups: Groups, column: pa.Array) -> Ints:
    """Return how many values of each group are not null."""
    valid = column.is_valid().to_numpy(zero_copy_only=False)
    return np.asarray(np.add.reduceat(valid.astype(np.int64), groups.starts), dtype=np.int64)


def _decimal_sums(groups: Groups, column: pa.Array) -> list[Any]:
    wide = column.cast(pa.decimal256(76, column.type.scale))  # room for any number of rows
    table = pa.table({"group": groups.numbers, "value": wide})
    summed = table.group_by("group", use_threads=False).aggregate([("value", "sum")])
    return list(summed["value_sum"].to_pylist())


def _plus(one: Any, other: Any) -> Any:
    return EXACT.add(one, other) if isinstance(one, Decimal) else one + other


# -- public functions


def count(column: str | None = None) -> Aggregate:
    """Count the rows, or those in which a column is not null."""
    return Count(column)


def sum_of(column: str) -> Aggregate:
    """Return the sum of a column; null if all its values are null."""
    return Sum(column)


def min_of(column: str) -> Aggregate:
    """Return the smallest value of a column."""
    return Extreme(column, largest=False)


def max_of(column: str) -> Aggregate:
    """Return the largest value of a column."""
    return Extreme(column, largest=True)


def avg_of(column: str) -> Aggregate:
    """Return the mean of a column."""
    return Average(column)
