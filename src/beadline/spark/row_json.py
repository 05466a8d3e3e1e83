"""Rows as JSON, whatever is in them: the form in which a refused row reaches its dead letter sink.

A row may have been refused because a value in it is odd, so nothing here may fail over one: dates
beyond the year 9999, which Python does not have, go through Arrow's own text, and bytes that are no
UTF-8 show as U+FFFD. The words are those of Spark's ``to_json`` where it has any: ``"NaN"`` and
``"Infinity"`` for what JSON has no number.
"""

from __future__ import annotations

import base64
import json
import math
from collections.abc import Callable, Mapping
from decimal import Decimal
from typing import Any

import pyarrow as pa
from pyarrow import types

_UNREADABLE = "<"  # how Arrow's text of a date that it cannot compute begins


def row_texts(rows: pa.RecordBatch) -> list[str]:
    """Return each row as one JSON object."""
    names = rows.schema.names
    columns = [_values(column) for column in rows.columns]
    return [
        json.dumps(dict(zip(names, values, strict=True)), ensure_ascii=False, allow_nan=False)
        for values in zip(*columns, strict=True)
    ]


def _values(column: pa.Array) -> list[Any]:
    # Without its zone first, which leaves UTC: with one, Arrow wraps dates that are too far away.
    text = column.cast(_changed(column.type, _unzoned)).cast(_changed(column.type, _textual))
    try:
        values = text.to_pylist()
    except UnicodeDecodeError:  # Spark casts bytes to a string without looking at them
        values = text.cast(_changed(text.type, _undecoded)).to_pylist()
    return [_plain(value, column.type) for value in values]


def _unzoned(kind: pa.DataType) -> pa.DataType:
    return pa.timestamp(kind.unit) if types.is_timestamp(kind) else kind


def _textual(kind: pa.DataType) -> pa.DataType:
    dated = types.is_timestamp(kind) or types.is_date(kind) or types.is_time(kind)
    return pa.string() if dated else kind


def _undecoded(kind: pa.DataType) -> pa.DataType:
    if types.is_large_string(kind):
        return pa.large_binary()
    return pa.binary() if types.is_string(kind) else kind


def _changed(kind: pa.DataType, leaf: Callable[[pa.DataType], pa.DataType]) -> pa.DataType:
    """Return a type with every type at the end of its branches changed."""
    if types.is_map(kind):
        return pa.map_(_changed(kind.key_type, leaf), _changed(kind.item_type, leaf))
    if types.is_struct(kind):
        return pa.struct([field.with_type(_changed(field.type, leaf)) for field in kind])
    if types.is_list(kind):
        return pa.list_(_changed(kind.value_type, leaf))
    return leaf(kind)


def _plain(value: Any, kind: pa.DataType) -> Any:
    """Return a value of a type as JSON has it."""
    if value is None or isinstance(value, bool | int):
        return value
    if types.is_map(kind):
        return {_key(key, kind.key_type): _plain(item, kind.item_type) for key, item in value}
    if types.is_struct(kind):
        return {field.name: _plain(value[field.name], field.type) for field in kind}
    if types.is_list(kind):
        return [_plain(item, kind.value_type) for item in value]
    if isinstance(value, bytes) and not _holds_bytes(kind):
        value = value.decode(errors="replace")
    if types.is_timestamp(kind):
        return _moment(value, kind.tz is not None)
    return _scalar(value)


def _holds_bytes(kind: pa.DataType) -> bool:
    return bool(
        types.is_binary(kind) or types.is_large_binary(kind) or types.is_fixed_size_binary(kind)
    )


def _scalar(value: Any) -> Any:
    if isinstance(value, float):
        return value if math.isfinite(value) else _NOT_NUMBERS[str(value)]
    if isinstance(value, bytes):
        return base64.b64encode(value).decode("ascii")
    if isinstance(value, Decimal):
        return format(value, "f")  # as text: a number would lose digits in most readers
    return value if isinstance(value, str) else str(value)


_NOT_NUMBERS: Mapping[str, str] = {"nan": "NaN", "inf": "Infinity", "-inf": "-Infinity"}


def _moment(text: str, zoned: bool) -> str:
    if text.startswith(_UNREADABLE):
        return text
    return text.replace(" ", "T", 1) + ("Z" if zoned else "")


def _key(key: Any, kind: pa.DataType) -> str:
    plain = _plain(key, kind)
    return plain if isinstance(plain, str) else json.dumps(plain, ensure_ascii=False)
