"""How Arrow columns become SQLite's values, made column by column, because rows are slow.

SQLite stores any value in any column, but bends it on the way in to what the column was declared
as: the text '007' becomes 7 in an INTEGER column, a decimal becomes a float in a DECIMAL one. So
each kind of value knows the declarations under which it stays what it is.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from beadline.errors import BadSink

if TYPE_CHECKING:
    import pyarrow as pa


@dataclass(frozen=True)
class Kind:
    """What SQLite is given for a column: how it is declared, and where it stays unbent."""

    name: str
    declared: str
    affinities: str
    adds: bool = False
    keys: bool = True

    def fits(self, declared: str, strict: bool) -> bool:
        """Whether a column declared like this keeps our values as they are."""
        declared = declared.upper()
        if strict:
            return {"INT": "INTEGER", "ANY": self.declared}.get(declared, declared) == self.declared
        return affinity(declared) in self.affinities.split()


INTEGER = Kind("an integer", "INTEGER", "INTEGER NUMERIC BLOB", adds=True)
FLOAT = Kind("a float", "REAL", "REAL NUMERIC BLOB", adds=True, keys=False)
BOOLEAN = Kind("a boolean", "INTEGER", "INTEGER NUMERIC BLOB")
TEXT = Kind("text", "TEXT", "TEXT BLOB")
DECIMAL = Kind("a decimal, kept as text", "TEXT", "TEXT BLOB", keys=False)
# ISO text never looks like a number, so a column declared DATE or TIMESTAMP keeps it.
DATE = Kind("a date, kept as text", "TEXT", "TEXT NUMERIC BLOB")
TIMESTAMP = Kind("a timestamp, kept as text", "TEXT", "TEXT NUMERIC BLOB")
BINARY = Kind("binary", "BLOB", "INTEGER REAL NUMERIC TEXT BLOB")


def quoted(name: str) -> str:
    """Return an identifier as SQL may hold it, whatever is in it.

    >>> quoted('5" nails')
    '"5"" nails"'
    """
    return '"' + name.replace('"', '""') + '"'


def folded(name: str) -> str:
    """Return the form in which SQLite compares identifiers: letters of ASCII have no case."""
    return "".join(char.lower() if char.isascii() else char for char in name)


def affinity(declared: str) -> str:
    """Return what SQLite makes of a column's declared type (its documentation, section 3.1)."""
    declared = declared.upper()
    if "INT" in declared:
        return "INTEGER"
    if any(word in declared for word in ("CHAR", "CLOB", "TEXT")):
        return "TEXT"
    if not declared or "BLOB" in declared:
        return "BLOB"
    return "REAL" if any(word in declared for word in ("REAL", "FLOA", "DOUB")) else "NUMERIC"


def kind_of(field: pa.Field) -> Kind | None:
    """Return how a column is stored, or None if SQLite has no place for it."""
    from pyarrow import types

    type_ = field.type
    if types.is_uint64(type_):
        return None  # its upper half does not fit into SQLite's 64 bits with a sign
    tests = (
        (types.is_integer, INTEGER),
        (types.is_floating, FLOAT),
        (types.is_boolean, BOOLEAN),
        (types.is_string, TEXT),
        (types.is_large_string, TEXT),
        (types.is_null, TEXT),
        (types.is_decimal, DECIMAL),
        (types.is_date, DATE),
        (types.is_timestamp, TIMESTAMP),
        (types.is_binary, BINARY),
        (types.is_large_binary, BINARY),
        (types.is_fixed_size_binary, BINARY),
    )
    return next((kind for test, kind in tests if test(type_)), None)


def kinds_of(schema: pa.Schema, where: str) -> dict[str, Kind]:
    """Return every column's kind by its name, or raise with the first that cannot be stored."""
    if not len(schema):
        raise BadSink(f"{where}: the rows have no columns. Nothing was written.")
    kinds: dict[str, Kind] = {}
    for field in schema:
        kind = kind_of(field)
        if kind is None:
            raise BadSink(
                f"{where}: column {field.name!r} is {field.type}, which SQLite cannot hold. Take "
                "it apart or cast it in rows=, to_json() for example. Nothing was written."
            )
        if "\0" in field.name or not field.name:
            raise BadSink(f"{where}: {field.name!r} cannot name a column. Nothing was written.")
        if folded(field.name) in map(folded, kinds):
            raise BadSink(
                f"{where}: two columns are called {field.name!r}: SQLite knows no upper and lower "
                "case there. Rename one in rows=. Nothing was written."
            )
        kinds[field.name] = kind
    return kinds


def values_of(batch: pa.RecordBatch, kinds: Sequence[Kind]) -> Iterator[tuple[Any, ...]]:
    """Return a batch's rows as SQLite takes them, made column by column."""
    columns = (_values(column, kind) for column, kind in zip(batch.columns, kinds, strict=True))
    return zip(*columns, strict=True)


def _values(column: Any, kind: Kind) -> list[Any]:
    import pyarrow as pa
    import pyarrow.compute as pc

    if kind is DATE:
        column = column.cast(pa.date32()).cast(pa.string())
    elif kind is TIMESTAMP:
        # A zone is only how it is shown: inside it is UTC. Without one, it is a wall clock's.
        utc = "Z" if column.type.tz is not None else ""
        text = column.cast(pa.timestamp(column.type.unit)).cast(pa.string())
        text = pc.replace_substring(text, " ", "T", max_replacements=1)
        column = pc.binary_join_element_wise(text, utc, "")
    values: list[Any] = column.to_pylist()
    if kind is DECIMAL:
        return [None if value is None else format(value, "f") for value in values]
    return values
