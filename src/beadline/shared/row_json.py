"""Rows as JSON, for dead-letter records and HTTP bodies: every value has a form, always the same.

Binary values are base64, decimals and dates are text (timestamps in UTC), maps are objects. The
words are those of Spark's ``to_json`` where it has any: ``"NaN"``, ``"Infinity"`` and
``"-Infinity"`` for what JSON has no number.

A dead-letter record may hold any value, since an odd one may be why the row was refused. So
``row_texts`` fails over none: dates beyond the year 9999, which Python does not have, go through
Arrow's own text, and bytes that are not UTF-8 show as U+FFFD. ``plain_rows`` is for rows that
Python can hold.
"""

from __future__ import annotations

import base64
import json
import math
from collections.abc import Callable
from datetime import date, datetime, timezone
from decimal import Decimal
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import pyarrow as pa

_NOT_NUMBERS = {"nan": "NaN", "inf": "Infinity", "-inf": "-Infinity"}
_UNREADABLE = "<"  # how Arrow's text of a date that it cannot compute begins
Text = Callable[[object], str]


def row_texts(rows: pa.RecordBatch) -> list[str]:
    """Return each row as one JSON object, whatever is in it."""
    names = rows.schema.names
    columns = [_readable(column) for column in rows.columns]
    return [_spaced(dict(zip(names, values, strict=True))) for values in zip(*columns, strict=True)]


def plain_rows(table: pa.Table) -> list[dict[str, Any]]:
    """Return each row as what JSON can hold."""
    columns = [
        [_plain(value, column.type, to_json) for value in column.to_pylist()]
        for column in table.columns
    ]
    names = table.schema.names
    return [dict(zip(names, values, strict=True)) for values in zip(*columns, strict=True)]


def to_json(value: object) -> str:
    """Return compact JSON; a number that JSON does not have is an error."""
    return json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":"))


def _spaced(value: object) -> str:
    return json.dumps(value, ensure_ascii=False, allow_nan=False)


def _readable(column: pa.Array) -> list[Any]:
    # Without its zone first, which leaves UTC: with one, Arrow wraps dates that are too far away.
    text = column.cast(_changed(column.type, _unzoned)).cast(_changed(column.type, _textual))
    try:
        values = text.to_pylist()
    except UnicodeDecodeError:  # Spark casts bytes to a string without looking at them
        values = text.cast(_changed(text.type, _undecoded)).to_pylist()
    return [_plain(value, column.type, _spaced) for value in values]


def _unzoned(kind: pa.DataType) -> pa.DataType:
    import pyarrow as pa

    return pa.timestamp(kind.unit) if pa.types.is_timestamp(kind) else kind


def _textual(kind: pa.DataType) -> pa.DataType:
    import pyarrow as pa
    from pyarrow import types

    dated = types.is_timestamp(kind) or types.is_date(kind) or types.is_time(kind)
    return pa.string() if dated else kind


def _undecoded(kind: pa.DataType) -> pa.DataType:
    import pyarrow as pa

    if pa.types.is_large_string(kind):
        return pa.large_binary()
    return pa.binary() if pa.types.is_string(kind) else kind


def _changed(kind: pa.DataType, leaf: Callable[[pa.DataType], pa.DataType]) -> pa.DataType:
    """Return a type with every type at the end of its branches changed."""
    import pyarrow as pa
    from pyarrow import types

    if types.is_map(kind):
        return pa.map_(_changed(kind.key_type, leaf), _changed(kind.item_type, leaf))
    if types.is_struct(kind):
        return pa.struct([field.with_type(_changed(field.type, leaf)) for field in kind])
    if types.is_list(kind):
        return pa.list_(_changed(kind.value_type, leaf))
    return leaf(kind)


def _plain(value: Any, kind: pa.DataType, text: Text) -> Any:
    """Return a value of an Arrow type as JSON has it; ``text`` makes keys of what is no text."""
    from pyarrow import types

    if value is None or isinstance(value, bool | int):
        return value
    if types.is_map(kind):
        key_type, item_type = kind.key_type, kind.item_type
        return {_key(key, key_type, text): _plain(item, item_type, text) for key, item in value}
    if types.is_struct(kind):
        return {field.name: _plain(value[field.name], field.type, text) for field in kind}
    if types.is_nested(kind):
        return [_plain(item, kind.value_type, text) for item in value]
    if isinstance(value, bytes) and not _holds_bytes(kind):
        value = value.decode(errors="replace")
    if isinstance(value, str) and types.is_timestamp(kind) and not value.startswith(_UNREADABLE):
        return value.replace(" ", "T", 1) + ("Z" if kind.tz is not None else "")
    return _scalar(value)


def _holds_bytes(kind: pa.DataType) -> bool:
    from pyarrow import types

    return bool(
        types.is_binary(kind) or types.is_large_binary(kind) or types.is_fixed_size_binary(kind)
    )


def _scalar(value: Any) -> Any:
    if isinstance(value, str):
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else _NOT_NUMBERS[str(value)]
    if isinstance(value, bytes):
        return base64.b64encode(value).decode("ascii")
    if isinstance(value, Decimal):
        return format(value, "f")  # as text: a number would lose digits in most readers
    if isinstance(value, datetime) and value.tzinfo is not None:
        return value.astimezone(timezone.utc).replace(tzinfo=None).isoformat() + "Z"
    return value.isoformat() if isinstance(value, date) else str(value)


def _key(key: Any, kind: pa.DataType, text: Text) -> str:
    plain = _plain(key, kind, text)
    return plain if isinstance(plain, str) else text(plain)
