"""How Arrow columns become SQLite's values, made column by column, because rows are slow.

SQLite stores any value in any column, but converts it on the way in to what the column was declared
as: the text '007' becomes 7 in an INTEGER column, a decimal becomes a float in a DECIMAL one. So
each kind of value knows the declarations under which it stays what it is.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from beadline.sinks.shared.column_text import text
from beadline.sinks.shared.sql.checks import Fit
from beadline.sinks.shared.sql.dialect import Dialect

if TYPE_CHECKING:
    import pyarrow as pa


@dataclass(frozen=True)
class SqliteType:
    """What SQLite is given for a column: how it is declared, and where it stays as it is."""

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


INTEGER = SqliteType("an integer", "INTEGER", "INTEGER NUMERIC BLOB", adds=True)
FLOAT = SqliteType("a float", "REAL", "REAL NUMERIC BLOB", adds=True, keys=False)
BOOLEAN = SqliteType("a boolean", "INTEGER", "INTEGER NUMERIC BLOB")
TEXT = SqliteType("text", "TEXT", "TEXT BLOB")
DECIMAL = SqliteType("a decimal, kept as text", "TEXT", "TEXT BLOB", keys=False)
# ISO text never looks like a number, so a column declared DATE or TIMESTAMP keeps it.
DATE = SqliteType("a date, kept as text", "TEXT", "TEXT NUMERIC BLOB")
_TIMESTAMP = SqliteType("a timestamp, kept as text", "TEXT", "TEXT NUMERIC BLOB")
BINARY = SqliteType("binary", "BLOB", "INTEGER REAL NUMERIC TEXT BLOB")


@dataclass(frozen=True)
class SqliteColumn:
    """A column that an existing table has; ``strict`` says that its table is declared STRICT."""

    name: str
    declared: str
    required: bool
    generated: bool
    strict: bool


class Sqlite(Dialect[SqliteColumn]):
    """What the shared core must know of SQLite."""

    name = "SQLite"
    has_case = False

    def fold(self, name: str) -> str:
        """Return the form in which SQLite compares identifiers: letters of ASCII have no case."""
        return "".join(char.lower() if char.isascii() else char for char in name)

    def holds(self, type_: pa.DataType) -> bool:
        """Whether any column could hold values of this type."""
        return kind_of(type_) is not None

    def described(self, type_: pa.DataType) -> str:
        """Return what a column of the rows holds, for people."""
        kind = kind_of(type_)
        return str(type_) if kind is None else kind.name

    def declare(self, type_: pa.DataType, *, key: bool = False) -> str | None:
        """Return the column type that keeps every value of an Arrow type."""
        kind = kind_of(type_)
        return None if kind is None else kind.declared

    def fit(self, field: pa.Field, column: SqliteColumn) -> Fit | str:
        """Rows that do not fit are found by ``refused``, also where there is no table yet."""
        kind = kind_of(field.type)
        fits = kind is not None and kind.fits(column.declared, column.strict)
        return Fit() if fits else "it would change or refuse them"

    def can_be_key(self, type_: pa.DataType) -> bool:
        """Whether equal values are always written alike."""
        kind = kind_of(type_)
        return kind is not None and kind.keys

    def can_be_added(self, type_: pa.DataType, column: SqliteColumn | None) -> bool:
        """Whether values can be summed."""
        kind = kind_of(type_)
        return kind is not None and kind.adds


SQLITE = Sqlite()
folded = SQLITE.fold


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


def kind_of(type_: pa.DataType) -> SqliteType | None:
    """Return how a column is stored, or None if SQLite cannot hold it."""
    from pyarrow import types

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
        (types.is_timestamp, _TIMESTAMP),
        (types.is_binary, BINARY),
        (types.is_large_binary, BINARY),
        (types.is_fixed_size_binary, BINARY),
    )
    return next((kind for test, kind in tests if test(type_)), None)


def values_of(batch: pa.RecordBatch) -> Iterator[tuple[Any, ...]]:
    """Return a batch's rows as SQLite takes them, made column by column."""
    return zip(*map(_values, batch.columns), strict=True)


def _values(column: Any) -> list[Any]:
    kept_as_text = kind_of(column.type) in (DATE, _TIMESTAMP, DECIMAL)
    values: list[Any] = (text(column) if kept_as_text else column).to_pylist()
    return values
