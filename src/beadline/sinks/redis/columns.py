"""What the columns of a row are to a command, and how their values are written as text.

Redis knows bytes only: values are written as text (``shared/column_text``), but booleans as 1 and
0; strings in UTF-8, binary as it is.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from beadline.sink import NOTHING_WRITTEN, BadSink
from beadline.sinks.redis.ledger import MARK
from beadline.sinks.shared.column_text import has_text, is_bytes, text

if TYPE_CHECKING:
    import pyarrow as pa

FIELDS_MAX = 1000  # a script's stack holds some thousand values
EXPIRE_MAX_S = 10**12
# Commands that take one value; those that take every other column as a field.
ONE_VALUE = ("SET", "INCRBY", "INCRBYFLOAT", "LPUSH", "RPUSH")
WITH_FIELDS = ("HSET", "XADD")
_COMMANDS = (*ONE_VALUE, *WITH_FIELDS, "DEL")
DELETES = ("SET", "HSET")  # can have a column that says: delete it instead
ONE_KEY = ("LPUSH", "RPUSH", "XADD", "INCRBY", "INCRBYFLOAT")  # make sense with one key for all


@dataclass(frozen=True)
class Layout:
    """Which columns a command needs, by name.

    ``key`` is empty where all rows go ``into`` one key. ``expire`` is a column's name, or a number
    of seconds, or None.
    """

    command: str
    prefix: str = ""
    into: str = ""
    key: str = ""
    value: str = ""
    expire: str | int | None = None
    deleted: str = ""

    @property
    def special(self) -> tuple[str, ...]:
        """The columns that have a role of their own, in the order in which they are named."""
        expire = self.expire if isinstance(self.expire, str) else ""
        value = self.value if self.command in ONE_VALUE else ""
        named = (self.key, value, expire, self.deleted)
        return tuple(name for name in dict.fromkeys(named) if name)

    def fields(self, names: Sequence[str]) -> tuple[str, ...]:
        """Return the columns that become fields of a hash or an entry."""
        if self.command not in WITH_FIELDS:
            return ()
        return tuple(name for name in names if name not in self.special)


def check_layout(layout: Layout) -> None:
    """Raise if the settings make no sense together, whatever the columns are."""
    command, expire = layout.command, layout.expire
    if command not in _COMMANDS:
        raise BadSink(
            f"command {command!r} is not one of {', '.join(_COMMANDS)}. {NOTHING_WRITTEN}"
        )
    if layout.into and command not in ONE_KEY:
        raise BadSink(
            f"into={layout.into!r}: {command} on one key would leave the last row only. Name the "
            f"column of the keys in key=. {NOTHING_WRITTEN}"
        )
    if layout.deleted and command not in DELETES:
        raise BadSink(f"deleted= is for SET and HSET, not for {command}. {NOTHING_WRITTEN}")
    if MARK in layout.prefix + layout.into:
        raise BadSink(f"{MARK!r} in a key is Beadline's own. {NOTHING_WRITTEN}")
    if expire is None:
        return
    if command == "DEL":
        raise BadSink(f"expire= makes no sense with DEL. {NOTHING_WRITTEN}")
    if not isinstance(expire, str) and (
        isinstance(expire, bool) or not 1 <= expire <= EXPIRE_MAX_S or expire != int(expire)
    ):
        raise BadSink(
            f"expire={expire!r} is not a column, nor 1 to {EXPIRE_MAX_S:,} whole seconds. "
            f"{NOTHING_WRITTEN}"
        )


def check_columns(layout: Layout, schema: pa.Schema, where: str) -> None:
    """Raise with the first column that is missing, or not of a type that the command can use."""
    names = list(schema.names)
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise BadSink(
            f"{where}: two columns are called {twice[0]!r}. Rename one in rows=. {NOTHING_WRITTEN}"
        )
    for name in layout.special:
        if name not in names:
            raise BadSink(
                f"{where}: column {name!r} is not in the rows, which have {', '.join(names)}. Name "
                f"the column in key=, value=, expire= or deleted=, or make it in rows=. "
                f"{NOTHING_WRITTEN}"
            )
    fields = layout.fields(names)
    if layout.command in WITH_FIELDS and not 1 <= len(fields) <= FIELDS_MAX:
        raise BadSink(
            f"{where}: {layout.command} makes fields of the other columns, of which there are "
            f"{len(fields)}; it takes 1 to {FIELDS_MAX:,}. {NOTHING_WRITTEN}"
        )
    for name in (*layout.special, *fields):
        kind = schema.field(name).type
        problem = _problem(layout, name, kind)
        if problem:
            raise BadSink(f"{where}: column {name!r} is {kind}, {problem}. {NOTHING_WRITTEN}")


def _problem(layout: Layout, name: str, kind: pa.DataType) -> str:
    from pyarrow import types

    if name == layout.deleted and not types.is_boolean(kind):
        return "but deleted= takes a boolean"
    if name == layout.expire and not types.is_integer(kind):
        return "but expire= takes whole seconds"
    counted = name == layout.value
    if layout.command == "INCRBY" and counted and not types.is_integer(kind):
        return "but INCRBY adds integers; cast it in rows=, or use INCRBYFLOAT"
    number = types.is_integer(kind) or types.is_floating(kind) or types.is_decimal(kind)
    if layout.command == "INCRBYFLOAT" and counted and not number:
        return "but INCRBYFLOAT adds numbers; cast it in rows="
    if name == layout.key and (types.is_floating(kind) or types.is_decimal(kind)):
        return "which cannot be a key: equal values may be written differently. Cast it in rows="
    if not has_text(kind):
        return (
            "which has no text form in Redis. Take it apart or cast it in rows=, to_json() for "
            "example"
        )
    return ""


def binary(column: Any) -> Any:
    """Return an Arrow column as bytes, a whole column at a time; booleans as 1 and 0."""
    import pyarrow as pa

    kind = column.type
    if pa.types.is_binary(kind) or pa.types.is_large_binary(kind):
        return column
    if pa.types.is_fixed_size_binary(kind):
        return column.cast(pa.binary())
    if pa.types.is_boolean(kind):
        column = column.cast(pa.int8())
    strings = column if is_bytes(kind) else text(column)
    return strings.cast(pa.large_string()).cast(pa.large_binary())
