"""Rows that a table would refuse, found while nothing is decided, a whole column at once.

At commit the epoch is decided, and a row that the database will not take would hold it up for good.
And COPY stops at the first bad row without saying which others there are.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from beadline.sink import PER_DAY

if TYPE_CHECKING:
    pass

# From 4714 BC on, as PostgreSQL counts; its last day is after the last that Arrow's dates reach.
_FIRST_DAY, _LAST_DAY = -2_440_588, 2_145_042_905
_UUID = r"^[0-9a-fA-F]{8}-?[0-9a-fA-F]{4}-?[0-9a-fA-F]{4}-?[0-9a-fA-F]{4}-?[0-9a-fA-F]{12}$"


@dataclass(frozen=True)
class Check:
    """What is wrong with some values of a column; ``find`` says with which, None if with none."""

    reason: str
    find: Callable[[Any], Any]


def outside(low: int, high: int, declared: str) -> Check:
    """Integers that the column has no bits for."""

    def find(array: Any) -> Any:
        import pyarrow as pa
        import pyarrow.compute as pc

        bounds = pc.min_max(array)
        smallest, largest = bounds["min"].as_py(), bounds["max"].as_py()
        if smallest is None or (low <= smallest and largest <= high):
            return None
        above = pc.greater(array, pa.scalar(high, array.type))
        if smallest >= low:  # an unsigned column cannot even hold the lower bound
            return above
        return pc.or_(above, pc.less(array, pa.scalar(low, array.type)))

    return Check(f"outside of {declared}, {low} to {high}", find)


def too_many_digits(whole: int, declared: str) -> Check:
    """Decimals with more digits before the point than the column has."""

    def find(array: Any) -> Any:
        import decimal

        import pyarrow as pa
        import pyarrow.compute as pc

        if pa.types.is_integer(array.type):
            array = array.cast(pa.decimal128(20, 0))
        # The rows' type has more digits than the column's, so it holds the first that is too many.
        limit = pa.scalar(decimal.Decimal(10) ** whole, array.type)
        return pc.greater_equal(pc.abs(array), limit)

    return Check(f"too many digits for {declared}", find)


def nul_bytes() -> Check:
    """Texts with a NUL, which PostgreSQL cannot keep."""

    def find(array: Any) -> Any:
        import pyarrow.compute as pc

        return pc.match_substring(array, "\0")

    return Check("text with a NUL byte, which PostgreSQL cannot keep", find)


def too_long(characters: int, declared: str) -> Check:
    """Texts with more characters than were declared."""

    def find(array: Any) -> Any:
        import pyarrow.compute as pc

        return pc.greater(pc.utf8_length(array), characters)

    return Check(f"longer than {declared}", find)


def too_many_bytes(count: int, declared: str) -> Check:
    """Texts that would be cut."""

    def find(array: Any) -> Any:
        import pyarrow.compute as pc

        return pc.greater(pc.binary_length(array), count)

    return Check(f"longer than {declared}", find)


def unknown_label(labels: Sequence[str], declared: str) -> Check:
    """Texts that are none of an enumeration's labels."""

    def find(array: Any) -> Any:
        import pyarrow as pa
        import pyarrow.compute as pc

        known = pc.is_in(array, pa.array(labels, array.type))
        return pc.and_(pc.is_valid(array), pc.invert(known))

    return Check(f"no label of {declared}", find)


def no_uuid() -> Check:
    """Texts that are no UUID."""

    def find(array: Any) -> Any:
        import pyarrow.compute as pc

        return pc.invert(pc.match_substring_regex(array, _UUID))

    return Check("not a UUID", find)


def far_date() -> Check:
    """Dates that PostgreSQL does not reach."""

    def find(array: Any) -> Any:
        import pyarrow as pa
        import pyarrow.compute as pc

        if pa.types.is_date64(array.type):
            days = pc.divide(array.cast(pa.int64()), PER_DAY["ms"])
        else:
            days = array.cast(pa.int32()).cast(pa.int64())
        return pc.or_(pc.less(days, _FIRST_DAY), pc.greater(days, _LAST_DAY))

    return Check("a date outside of 4714 BC to 5874897 AD", find)


def far_timestamp() -> Check:
    """Moments that PostgreSQL does not reach, or that have no microseconds in 64 bits."""

    def find(array: Any) -> Any:
        import pyarrow as pa
        import pyarrow.compute as pc

        per_day = PER_DAY[array.type.unit]
        most = (2**63 - 1) // (PER_DAY["us"] // per_day)
        numbers = array.cast(pa.int64())
        bounds = pc.min_max(numbers)
        smallest, largest = bounds["min"].as_py(), bounds["max"].as_py()
        if smallest is None or (_FIRST_DAY * per_day <= smallest and largest <= most):
            return None
        early = pc.less(numbers, _FIRST_DAY * per_day)
        return pc.or_(early, pc.greater(numbers, most))

    return Check("a time outside of 4714 BC to 294276 AD", find)
