"""Which Arrow column fits which column of a table, and what has to be done to it on the way.

Binary COPY has no casts: what is sent must be in the form of the column's own type. So integers
are brought to its width, whole numbers to decimals, and JSON and UUIDs to their binary form. What
would be rounded, cut or guessed does not fit.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from beadline.sink import PER_DAY
from beadline.sinks.postgres.table import PostgresColumn
from beadline.sinks.shared.sql import checks
from beadline.sinks.shared.sql.checks import Check, Fit
from beadline.sinks.shared.sql.dialect import Dialect
from beadline.sinks.shared.sql.modes import PLACE

if TYPE_CHECKING:
    import pyarrow as pa

_TEXTS = ("text", "varchar", "bpchar", "citext", "name")
_PLAIN = ("int2", "int4", "int8", "float4", "float8", "numeric", "text", "varchar")
_NUMBERS = ("int2", "int4", "int8", "numeric", "float4", "float8")
IDENTIFIER_BYTES_MAX = 63
# From 4714 BC on, as PostgreSQL counts; its last day is after the last that Arrow's dates reach.
_FIRST_DAY, _LAST_DAY = -2_440_588, 2_145_042_905
_UUID = r"^[0-9a-fA-F]{8}-?[0-9a-fA-F]{4}-?[0-9a-fA-F]{4}-?[0-9a-fA-F]{4}-?[0-9a-fA-F]{12}$"
_HEADER_BYTES = 4  # PostgreSQL keeps lengths and precisions with this added


class Postgres(Dialect[PostgresColumn]):
    """What the shared core must know of PostgreSQL."""

    name = "PostgreSQL"
    descending = "DESC NULLS LAST"
    reserved = (PLACE,)

    def name_fits(self, name: str) -> bool:
        """Longer ones are silently cut off by the server."""
        return super().name_fits(name) and len(name.encode()) <= IDENTIFIER_BYTES_MAX

    def declare(self, type_: pa.DataType, *, key: bool = False) -> str | None:
        """Return the column type that takes every value of an Arrow type."""
        return declared(type_)

    def fit(self, field: pa.Field, column: PostgresColumn) -> Fit | str:
        """Return how a column of the rows goes into one of the table, or why it does not."""
        return fit(field, column) or "it would change or refuse them"

    def can_be_added(self, type_: pa.DataType, column: PostgresColumn | None) -> bool:
        """Whether the column holds numbers; money and intervals are not tried."""
        return column is None or column.base in _NUMBERS


POSTGRES = Postgres()


def fit(field: pa.Field, column: PostgresColumn) -> Fit | None:
    """Return how a column of the rows goes into a column of the table; None if it does not."""
    from pyarrow import types

    if types.is_null(field.type):
        return Fit()
    if column.kind == "e":
        return _text_fit(field.type, column)
    if column.element:
        return _list_fit(field.type, column.element)
    return next((found for test in _FITS if (found := test(field.type, column)) is not None), None)


def keeps(was: PostgresColumn, now: PostgresColumn) -> bool:
    """Whether an altered column still takes every value as it is, or refuses it with an error.

    The question that is asked of rows before they are sent, asked of a staged column: a double
    would silently be rounded by an integer; an integer is not changed by a bigint.
    """
    same = (was.declared, was.base, was.modifier) == (now.declared, now.base, now.modifier)
    if same or was.kind != "b" or was.element:
        return same  # another collation compares differently, and stores the same
    type_ = _arrow_of(was)
    if type_ is None or now.base not in _PLAIN:
        return False
    if now.base in _TEXTS and (now.base == "bpchar" or not _is_longer(was, now)):
        return False  # blanks at the end would be added or cut off silently
    import pyarrow as pa

    return fit(pa.field(was.name, type_), now) is not None


def _is_longer(was: PostgresColumn, now: PostgresColumn) -> bool:
    return now.modifier < 0 or 0 <= was.modifier <= now.modifier


def _arrow_of(column: PostgresColumn) -> pa.DataType | None:
    """The rows' type that a column holds; None where its values tell more than the type does."""
    import pyarrow as pa

    if column.base == "numeric" and column.modifier >= 0:
        modifier = column.modifier - _HEADER_BYTES
        return pa.decimal256(max(1, modifier >> 16 & 0xFFFF), modifier & 0x7FF)
    return {
        "int2": pa.int16(),
        "int4": pa.int32(),
        "int8": pa.int64(),
        "float4": pa.float32(),
        "float8": pa.float64(),
        "text": pa.string(),
        "varchar": pa.string(),
    }.get(column.base)


def declared(type_: pa.DataType) -> str | None:
    """Return the PostgreSQL type that a column of the rows would be given; None if there is none.

    >>> import pyarrow as pa
    >>> declared(pa.decimal128(12, 2))
    'numeric(12, 2)'
    """
    from pyarrow import types

    if types.is_decimal(type_):
        return f"numeric({type_.precision}, {type_.scale})"
    if types.is_timestamp(type_):
        return "timestamptz" if type_.tz is not None else "timestamp"
    if types.is_list(type_) or types.is_large_list(type_):
        element = declared(type_.value_type)
        return f"{element}[]" if element else None
    tests = (
        (types.is_uint64, "numeric(20, 0)"),
        (lambda t: types.is_int64(t) or types.is_uint32(t), "bigint"),
        (lambda t: types.is_int32(t) or types.is_uint16(t), "integer"),
        (types.is_integer, "smallint"),
        (types.is_float64, "double precision"),
        (types.is_floating, "real"),
        (types.is_boolean, "boolean"),
        (lambda t: types.is_null(t) or _is_text(t), "text"),
        (_is_binary, "bytea"),
        (types.is_date, "date"),
        (types.is_time, "time"),
    )
    return next((name for test, name in tests if test(type_)), None)


def _is_text(type_: pa.DataType) -> bool:
    from pyarrow import types

    return bool(types.is_string(type_) or types.is_large_string(type_))


def _is_binary(type_: pa.DataType) -> bool:
    from pyarrow import types

    return bool(
        types.is_binary(type_) or types.is_large_binary(type_) or types.is_fixed_size_binary(type_)
    )


def _integer_fit(type_: pa.DataType, column: PostgresColumn) -> Fit | None:
    import pyarrow as pa

    bits = {"int2": 16, "int4": 32, "int8": 64}.get(column.base)
    if bits is None or not pa.types.is_integer(type_):
        return None
    wanted = {16: pa.int16(), 32: pa.int32(), 64: pa.int64()}[bits]
    if type_ == wanted:
        return Fit()
    low, high = -(2 ** (bits - 1)), 2 ** (bits - 1) - 1
    reason = f"outside of {column.declared}, {low} to {high}"
    return Fit(checks.outside(type_, low, high, reason), lambda array: array.cast(wanted))


def _float_fit(type_: pa.DataType, column: PostgresColumn) -> Fit | None:
    """Only what no float changes: a double would be rounded in a real, a long in a double."""
    import pyarrow as pa

    if column.base not in ("float4", "float8"):
        return None
    exact = 24 if column.base == "float4" else 53
    wanted = pa.float32() if column.base == "float4" else pa.float64()
    floats = pa.types.is_floating(type_) and type_.bit_width <= wanted.bit_width
    if floats or (pa.types.is_integer(type_) and type_.bit_width < exact):
        return Fit((), lambda array: array if array.type == wanted else array.cast(wanted))
    return None


def _numeric_fit(type_: pa.DataType, column: PostgresColumn) -> Fit | None:
    import pyarrow as pa

    if column.base != "numeric":
        return None
    if pa.types.is_integer(type_):
        digits, scale = 20, 0
    elif pa.types.is_decimal(type_):
        digits, scale = type_.precision, type_.scale
    else:
        return None
    found: tuple[Check, ...] = ()
    if column.modifier >= 0:
        modifier = column.modifier - _HEADER_BYTES
        # The scale is kept with 11 bits and a sign, since PostgreSQL 15.
        kept = (modifier & 0x7FF ^ 1024) - 1024
        if scale > max(kept, 0) or kept < 0:
            return None
        whole = (modifier >> 16 & 0xFFFF) - kept
        if digits - scale > whole:
            reason = f"too many digits for {column.declared}"
            found = (checks.too_many_digits(whole, reason),)
    if pa.types.is_integer(type_):
        return Fit(found, lambda array: array.cast(pa.decimal128(20, 0)))
    return Fit(found)


def _text_fit(type_: pa.DataType, column: PostgresColumn) -> Fit | None:
    if not _is_text(type_):
        return None
    if column.kind == "e":
        return Fit((checks.unknown_label(column.labels, f"no label of {column.declared}"),))
    if column.base in ("json", "jsonb"):
        return Fit((_NUL_BYTES,), _jsonb if column.base == "jsonb" else lambda a: a)
    if column.base == "uuid":
        return Fit((_NO_UUID,), _uuid)
    if column.base not in _TEXTS:
        return None
    found, reason = [_NUL_BYTES], f"longer than {column.declared}"
    if column.base in ("varchar", "bpchar") and column.modifier >= 0:
        found.append(checks.too_long(column.modifier - _HEADER_BYTES, reason))
    if column.base == "name":
        found.append(checks.too_many_bytes(IDENTIFIER_BYTES_MAX, reason))
    return Fit(tuple(found))


def _binary_fit(type_: pa.DataType, column: PostgresColumn) -> Fit | None:
    import pyarrow as pa

    if column.base == "uuid":
        return Fit() if type_ == pa.binary(16) else None
    return Fit() if column.base == "bytea" and _is_binary(type_) else None


def _time_fit(type_: pa.DataType, column: PostgresColumn) -> Fit | None:
    import pyarrow as pa

    types = pa.types
    if column.base == "date" and types.is_date(type_):
        return Fit((_FAR_DATE,), lambda array: array.cast(pa.date32()))
    if column.base == "time" and types.is_time(type_) and type_.unit != "ns":
        return Fit((), lambda array: array.cast(pa.time64("us")))
    zoned = {"timestamp": False, "timestamptz": True}.get(column.base)
    if zoned is None or not types.is_timestamp(type_) or type_.unit == "ns":
        return None
    if column.modifier >= 0 or zoned != (type_.tz is not None):
        return None  # timestamp(3) would round; a wall clock's time is no moment without a zone
    return Fit((_FAR_TIMESTAMP,), lambda array: array.cast(pa.timestamp("us", tz=type_.tz)))


def _boolean_fit(type_: pa.DataType, column: PostgresColumn) -> Fit | None:
    import pyarrow as pa

    return Fit() if column.base == "bool" and pa.types.is_boolean(type_) else None


def _list_fit(type_: pa.DataType, element: str) -> Fit | None:
    """Lists whose elements need no change; what is wrong inside one fails the part."""
    import pyarrow as pa

    if not (pa.types.is_list(type_) or pa.types.is_large_list(type_)):
        return None
    same = {
        "int2": pa.int16(),
        "int4": pa.int32(),
        "int8": pa.int64(),
        "float4": pa.float32(),
        "float8": pa.float64(),
        "bool": pa.bool_(),
        "text": pa.string(),
    }
    if type_.value_type != same.get(element):
        return None
    return Fit((), lambda array: array.cast(pa.list_(type_.value_type)))


_FITS = (
    _integer_fit,
    _float_fit,
    _numeric_fit,
    _text_fit,
    _binary_fit,
    _time_fit,
    _boolean_fit,
)


def _has_nul(array: Any) -> Any:
    import pyarrow.compute as pc

    return pc.match_substring(array, "\0")


def _is_no_uuid(array: Any) -> Any:
    import pyarrow.compute as pc

    return pc.invert(pc.match_substring_regex(array, _UUID))


def _is_far(array: Any) -> Any:
    """Which moments PostgreSQL does not reach, or have no microseconds in 64 bits."""
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


_NUL_BYTES = Check("text with a NUL byte, which PostgreSQL cannot keep", _has_nul)
_NO_UUID = Check("not a UUID", _is_no_uuid)
_FAR_DATE = checks.outside_days(_FIRST_DAY, _LAST_DAY, "a date outside of 4714 BC to 5874897 AD")
_FAR_TIMESTAMP = Check("a time outside of 4714 BC to 294276 AD", _is_far)


def _jsonb(array: Any) -> Any:
    """Binary jsonb is its text after a version number."""
    import pyarrow as pa
    import pyarrow.compute as pc

    texts = array.cast(pa.string())
    return pc.binary_join_element_wise(pa.scalar("\x01"), texts, pa.scalar(""))


def _uuid(array: Any) -> Any:
    """Sixteen bytes for thirty-two digits, for a whole column at once."""
    import numpy as np
    import pyarrow as pa
    import pyarrow.compute as pc

    digits = pc.replace_substring(array.cast(pa.string()), "-", "")
    text = "".join(pc.fill_null(digits, "0" * 32).to_pylist())
    data = np.frombuffer(bytes.fromhex(text), dtype=np.uint8)
    values = pa.Array.from_buffers(pa.binary(16), len(array), [None, pa.py_buffer(data)])
    return pc.if_else(pc.is_valid(digits), values, pa.scalar(None, pa.binary(16)))
