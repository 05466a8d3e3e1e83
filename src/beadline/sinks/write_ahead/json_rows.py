"""Rows as JSON, for receivers that speak it: every value has a form, and it is always the same.

The forms are those of dead letters: binary values are base64, decimals and dates are text
(timestamps in UTC), maps are objects, and what JSON has no number for is "NaN", "Infinity" or
"-Infinity".
"""

from __future__ import annotations

import base64
import json
import math
from datetime import date, datetime, timezone
from decimal import Decimal
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import pyarrow as pa

_NOT_NUMBERS = {"nan": "NaN", "inf": "Infinity", "-inf": "-Infinity"}


def to_json(value: object) -> str:
    """Return compact JSON; a number that JSON does not have is an error."""
    return json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":"))


def plain_rows(table: pa.Table) -> list[dict[str, Any]]:
    """Return each row as what JSON can hold."""
    columns = [
        [plain(value, column.type) for value in column.to_pylist()] for column in table.columns
    ]
    names = table.schema.names
    return [dict(zip(names, values, strict=True)) for values in zip(*columns, strict=True)]


def plain(value: Any, kind: pa.DataType) -> Any:
    """Return a value of an Arrow type as JSON has it."""
    from pyarrow import types

    if value is None or isinstance(value, bool | int | str):
        return value
    if types.is_map(kind):
        return {_key(key, kind.key_type): plain(item, kind.item_type) for key, item in value}
    if types.is_struct(kind):
        return {field.name: plain(value[field.name], field.type) for field in kind}
    if types.is_nested(kind):
        return [plain(item, kind.value_type) for item in value]
    return _scalar(value)


def _scalar(value: Any) -> Any:
    if isinstance(value, float):
        return value if math.isfinite(value) else _NOT_NUMBERS[str(value)]
    if isinstance(value, bytes):
        return base64.b64encode(value).decode("ascii")
    if isinstance(value, Decimal):
        return format(value, "f")  # as text: a number would lose digits in most readers
    if isinstance(value, datetime) and value.tzinfo is not None:
        return value.astimezone(timezone.utc).replace(tzinfo=None).isoformat() + "Z"
    return value.isoformat() if isinstance(value, date) else str(value)


def _key(key: Any, kind: pa.DataType) -> str:
    found = plain(key, kind)
    return found if isinstance(found, str) else to_json(found)
