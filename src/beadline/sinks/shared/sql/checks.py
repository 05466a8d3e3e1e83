"""Values that a column would refuse or change, found while nothing is decided, a column at a time.

At commit the epoch is decided, and a row that the database does not take would block it for good
(rule 23). So the rows of each column are compared with what the column can hold before they are
sent. Which checks a column needs is each dialect's business; how a check finds its rows is here.
"""

from __future__ import annotations

import decimal
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from beadline.sink import far_dates

if TYPE_CHECKING:
    import pyarrow as pa


@dataclass(frozen=True)
class Check:
    """What is wrong with some values of a column; ``find`` says with which, None if with none."""

    reason: str
    find: Callable[[Any], Any]


@dataclass(frozen=True)
class Fit:
    """How a column is sent: rows for which a check is true are refused, the others converted."""

    checks: tuple[Check, ...] = ()
    convert: Callable[[Any], Any] = lambda array: array


def deletes(batch: pa.RecordBatch, deleted: str | None) -> pa.Array | None:
    """Which rows only delete their key, by the column ``deleted``; None if none does."""
    import pyarrow.compute as pc

    if deleted is None or not batch.column(deleted).true_count:
        return None
    return pc.fill_null(batch.column(deleted), False)


def outside(type_: pa.DataType, low: int, high: int, reason: str) -> tuple[Check, ...]:
    """Integers below ``low`` or above ``high``; no check if the rows' type holds none."""
    import pyarrow as pa
    import pyarrow.compute as pc

    bits, signed = type_.bit_width, pa.types.is_signed_integer(type_)
    has = (-(2 ** (bits - 1)), 2 ** (bits - 1) - 1) if signed else (0, 2**bits - 1)
    least, most = max(low, has[0]), min(high, has[1])
    if (least, most) == has:
        return ()

    def find(array: Any) -> Any:
        bounds = pc.min_max(array)
        smallest, largest = bounds["min"].as_py(), bounds["max"].as_py()
        if smallest is None or (least <= smallest and largest <= most):
            return None
        small = pc.less(array, pa.scalar(least, array.type))
        return pc.or_(small, pc.greater(array, pa.scalar(most, array.type)))

    return (Check(reason, find),)


def negative(type_: pa.DataType, reason: str) -> Check:
    """Numbers below zero, for a column that is unsigned."""

    import pyarrow as pa

    zero = pa.scalar(decimal.Decimal(0) if pa.types.is_decimal(type_) else 0, type_)

    def find(array: Any) -> Any:
        import pyarrow.compute as pc

        return pc.less(array, zero)

    return Check(reason, find)


def too_many_digits(whole: int, reason: str) -> Check:
    """Decimals with more digits before the point than the column has."""

    def find(array: Any) -> Any:
        import pyarrow as pa
        import pyarrow.compute as pc

        if pa.types.is_integer(array.type):
            array = array.cast(pa.decimal128(20, 0))
        # The rows' type has more digits than the column's, so it holds the first that is too many.
        limit = pa.scalar(decimal.Decimal(10) ** whole, array.type)
        return pc.greater_equal(pc.abs(array), limit)

    return Check(reason, find)


def too_long(characters: int, reason: str) -> Check:
    """Texts with more characters than were declared."""

    def find(array: Any) -> Any:
        import pyarrow.compute as pc

        return pc.greater(pc.utf8_length(array), characters)

    return Check(reason, find)


def too_many_bytes(count: int, reason: str) -> Check:
    """Texts or bytes that would be cut."""

    def find(array: Any) -> Any:
        import pyarrow.compute as pc

        return pc.greater(pc.binary_length(array), count)

    return Check(reason, find)


def unknown_label(labels: Sequence[str], reason: str) -> Check:
    """Texts that are none of an enumeration's labels."""

    def find(array: Any) -> Any:
        import pyarrow as pa
        import pyarrow.compute as pc

        known = pc.is_in(array, pa.array(labels, array.type))
        return pc.and_(pc.is_valid(array), pc.invert(known))

    return Check(reason, find)


def outside_days(first: int, last: int, reason: str) -> Check:
    """Dates or timestamps before one day or after another, in days from 1970."""
    return Check(reason, lambda array: far_dates(array, first, last))
