"""Arrow columns as the text that a person would type, for stores that know bytes only.

Integers in decimal, floats by the shortest text that reads back the same, booleans as true and
false, decimals with all their digits, dates and timestamps in ISO form: timestamps in UTC, with a
Z, unless they are a wall clock's.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import pyarrow as pa


def is_bytes(kind: pa.DataType) -> bool:
    """Whether values of this type are bytes as they are."""
    from pyarrow import types

    tests = (
        types.is_string,
        types.is_large_string,
        types.is_binary,
        types.is_large_binary,
        types.is_fixed_size_binary,
    )
    return any(test(kind) for test in tests)


def has_text(kind: pa.DataType) -> bool:
    """Whether values of this type are bytes, or have a text here; nested ones do not."""
    from pyarrow import types

    tests = (
        types.is_integer,
        types.is_floating,
        types.is_boolean,
        types.is_null,
        types.is_decimal,
        types.is_date,
        types.is_timestamp,
    )
    return is_bytes(kind) or any(test(kind) for test in tests)


def text(column: Any) -> Any:
    """Return a column that is not bytes as strings, a whole column at a time; null stays null."""
    import pyarrow as pa
    import pyarrow.compute as pc

    kind = column.type
    if pa.types.is_decimal(kind):
        # Arrow would write 1E-10; Python's "f" writes all digits.
        digits = [None if value is None else format(value, "f") for value in column.to_pylist()]
        return pa.array(digits, pa.string())
    if pa.types.is_date(kind):
        return column.cast(pa.date32()).cast(pa.string())
    if pa.types.is_timestamp(kind):
        # A zone is only how it is shown: inside it is UTC. Without one, it is a wall clock's.
        utc = "Z" if kind.tz is not None else ""
        plain = column.cast(pa.timestamp(kind.unit)).cast(pa.string())
        plain = pc.replace_substring(plain, " ", "T", max_replacements=1)
        return pc.binary_join_element_wise(plain, utc, "")
    return column.cast(pa.string())
