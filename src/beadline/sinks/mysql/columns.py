"""Which Arrow types go into which columns, and the columns as the server describes them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    import pyarrow as pa

Family = Literal[
    "integer", "float", "decimal", "boolean", "text", "binary", "date", "timestamp", "null"
]

ORDER, DELETED = "order", "deleted"  # the uses of columns that are only staged

INTEGER_BITS = {"tinyint": 8, "smallint": 16, "mediumint": 24, "int": 32, "bigint": 64}
# Characters for (VAR)CHAR come from the server; of these, bytes.
TEXT_BYTES = {
    "tinytext": 2**8 - 1,
    "text": 2**16 - 1,
    "mediumtext": 2**24 - 1,
    "longtext": 2**32 - 1,
    "json": 2**32 - 1,
}
BINARY_BYTES = {
    "tinyblob": 2**8 - 1,
    "blob": 2**16 - 1,
    "mediumblob": 2**24 - 1,
    "longblob": 2**32 - 1,
}
_KEYS: tuple[Family, ...] = ("integer", "decimal", "boolean", "text", "binary", "date", "timestamp")
_NUMBERS: tuple[Family, ...] = ("integer", "float", "decimal")
_ORDERS: tuple[Family, ...] = (*_NUMBERS, "date", "timestamp")
_EXACT_INTEGERS = {"float": 16, "double": 32}  # bits that always fit, as Arrow cuts them


@dataclass(frozen=True)
class Column:
    """A column of the table."""

    name: str
    type: str
    declared: str
    nullable: bool = True
    has_default: bool = True
    generated: bool = False
    auto_increment: bool = False
    characters: int | None = None
    bytes: int | None = None
    precision: int | None = None
    scale: int | None = None
    fraction_digits: int = 0
    character_set: str | None = None
    collation: str | None = None
    json: bool = False
    use: str = ""  # of a column that the target does not get: what it is staged for

    @property
    def unsigned(self) -> bool:
        """Whether it takes no negative number."""
        return "unsigned" in self.declared

    @property
    def definition(self) -> str:
        """The column as a staging table has it: the same type, so that what fits there fits here.

        It takes null: nulls are looked for before, and a TIMESTAMP would turn one into a time.
        """
        text = f"{quoted(self.name)} {self.declared}"
        if self.character_set:
            text += f" CHARACTER SET {self.character_set} COLLATE {self.collation}"
        text += f" NULL DEFAULT NULL COMMENT '{self.use}'"
        return f"{text} CHECK (json_valid({quoted(self.name)}))" if self.json else text


def quoted(name: str) -> str:
    """A name as SQL, whatever is in it.

    >>> quoted("it`s")
    '`it``s`'
    """
    return "`" + name.replace("`", "``") + "`"


def folded(name: str) -> str:
    """Names of columns know no upper and lower case."""
    return name.casefold()


def family_of(type_: pa.DataType) -> Family | None:
    """How values of an Arrow type are written; None if MySQL has no place for them."""
    from pyarrow import types

    if types.is_decimal(type_):
        return "decimal" if type_.precision <= 65 and type_.scale >= 0 else None
    tests: tuple[tuple[Callable[[pa.DataType], bool], Family], ...] = (
        (types.is_integer, "integer"),
        (types.is_float32, "float"),
        (types.is_float64, "float"),
        (types.is_boolean, "boolean"),
        (types.is_string, "text"),
        (types.is_large_string, "text"),
        (types.is_binary, "binary"),
        (types.is_large_binary, "binary"),
        (types.is_fixed_size_binary, "binary"),
        (types.is_date, "date"),
        (types.is_timestamp, "timestamp"),
        (types.is_null, "null"),
    )
    return next((family for test, family in tests if test(type_)), None)


def can_be_key(family: Family) -> bool:
    """Equal values are written alike; floats are not."""
    return family in _KEYS


def can_be_added(family: Family) -> bool:
    """Whether values can be summed."""
    return family in _NUMBERS


def can_be_ordered(family: Family) -> bool:
    """Whether every client and server agrees on which of two values is larger."""
    return family in _ORDERS


def declaration(type_: pa.DataType, key: bool = False) -> str:
    """The column type that holds every value of an Arrow type."""
    family = family_of(type_)
    if family == "integer":
        name = {8: "TINYINT", 16: "SMALLINT", 32: "INT", 64: "BIGINT"}[type_.bit_width]
        return f"{name} UNSIGNED" if str(type_).startswith("u") else name
    if family == "decimal":
        return f"DECIMAL({type_.precision},{type_.scale})"
    return {
        "float": "FLOAT" if str(type_) == "float" else "DOUBLE",
        "boolean": "BOOLEAN",
        "text": "VARCHAR(255) CHARACTER SET utf8mb4" if key else "LONGTEXT CHARACTER SET utf8mb4",
        "binary": "VARBINARY(255)" if key else "LONGBLOB",
        "date": "DATE",
        "timestamp": "DATETIME(6)",
        "null": "VARCHAR(255)",
    }[family or "null"]


def own_column(name: str, type_: pa.DataType, use: str) -> Column:
    """A column that only the staging table has: an order, a mark. It says so in its comment."""
    fraction = 6 if family_of(type_) == "timestamp" else 0
    declared = declaration(type_)
    kind = declared.split("(")[0].split(" ")[0].lower()
    precision, scale = (
        (type_.precision, type_.scale) if family_of(type_) == "decimal" else (None, None)
    )
    return Column(
        name,
        "tinyint" if kind == "boolean" else kind,
        declared.lower(),
        precision=precision,
        scale=scale,
        fraction_digits=fraction,
        use=use,
    )


def misfit(type_: pa.DataType, column: Column) -> str:
    """Say why no value of this type may go into the column; empty if they may, one by one.

    What depends on the value, a range, a length, is looked at row by row.
    """
    family = family_of(type_)
    kind = column.type
    wider = "it would be rounded"
    if family == "null":
        return "" if column.nullable else "the column takes no null"
    if family == "integer" and kind in _EXACT_INTEGERS:
        return "" if type_.bit_width <= _EXACT_INTEGERS[kind] else wider
    if family == "decimal" and kind == "decimal":
        return "" if (column.scale or 0) >= type_.scale else wider
    if family == "float" and kind in ("float", "double"):
        narrow = kind == "float" and str(type_) == "double"
        return wider if narrow or "(" in column.declared else ""
    if family == "timestamp" and kind == "timestamp" and type_.tz is None:
        return "a time without a zone has no place in a TIMESTAMP, which has one"
    taken = {
        "integer": (*INTEGER_BITS, "decimal"),
        "boolean": tuple(INTEGER_BITS),
        "text": ("char", "varchar", "enum", *TEXT_BYTES),
        "binary": ("binary", "varbinary", *BINARY_BYTES),
        "date": ("date",),
        "timestamp": ("datetime", "timestamp"),
    }
    return "" if kind in taken.get(family or "", ()) else "it holds something else"


def keeps(was: Column, now: Column) -> bool:
    """Whether a column that was altered still takes every value as it is, or refuses it aloud.

    A double would be rounded by an integer, in silence; an integer is not changed by a bigint, and
    one that is out of range is an error.
    """
    if (was.declared, was.character_set) == (now.declared, now.character_set):
        return True
    kind, other = was.type, now.type
    if kind in INTEGER_BITS:
        if other in _EXACT_INTEGERS:
            return INTEGER_BITS[kind] <= _EXACT_INTEGERS[other]
        return other in INTEGER_BITS or other == "decimal"
    if kind in ("float", "double"):
        return other in (kind, "double") and "(" not in now.declared
    if kind == "decimal":
        return other == kind and (now.scale or 0) >= (was.scale or 0)
    if kind in ("datetime", "timestamp"):
        return other == kind and now.fraction_digits >= was.fraction_digits
    for plain, long in (("varchar", TEXT_BYTES), ("varbinary", BINARY_BYTES)):
        if kind == plain or (kind in long and kind != "json"):
            same = other == kind == plain
            longer = now.characters if same else long.get(other)
            return longer is not None and longer >= ((was.characters if same else was.bytes) or 0)
    return False
