"""Which Arrow types go into which columns, and which values of those: what MySQL takes unchanged.

The staging table has the target's own column types, so a value that is not thought of here is still
found at prepare, by the server; only more slowly.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from beadline.sinks.shared.sql import checks
from beadline.sinks.shared.sql.checks import Check, Fit
from beadline.sinks.shared.sql.dialect import Dialect
from beadline.sinks.shared.sql.modes import PLACE

if TYPE_CHECKING:
    import pyarrow as pa

Family = Literal[
    "integer", "float", "decimal", "boolean", "text", "binary", "date", "timestamp", "null"
]

ROW = "_beadline_row"  # numbers the rows of a part in its staging table
ORDER_COLUMN, DELETED_COLUMN = "order", "deleted"  # the uses of columns that are only staged

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


_FIRST_DAY, _LAST_DAY = -719_162, 2_932_896  # the years 1 to 9999
_DAY_S = 86_400
_FIRST_S, _LAST_S = 1, 2**31 - 1  # of a TIMESTAMP
_PER_SECOND = {"s": 1, "ms": 10**3, "us": 10**6, "ns": 10**9}
_UTF8 = ("utf8mb4", "utf8mb3", "utf8")
_LABELS = re.compile(r"'((?:[^']|'')*)'")
_BEYOND_UTF8MB3 = "[\U00010000-\U0010ffff]"


@dataclass(frozen=True)
class MySqlColumn:
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
    def required(self) -> bool:
        """Whether every row must give a value."""
        return not self.has_default

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


def family_of(type_: pa.DataType) -> Family | None:
    """How values of an Arrow type are written; None if MySQL cannot hold them."""
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


def own_column(name: str, type_: pa.DataType, use: str) -> MySqlColumn:
    """A column that only the staging table has, to order or delete by; its comment says so."""
    fraction = 6 if family_of(type_) == "timestamp" else 0
    declared = declaration(type_)
    kind = declared.split("(")[0].split(" ")[0].lower()
    precision, scale = (
        (type_.precision, type_.scale) if family_of(type_) == "decimal" else (None, None)
    )
    return MySqlColumn(
        name,
        "tinyint" if kind == "boolean" else kind,
        declared.lower(),
        precision=precision,
        scale=scale,
        fraction_digits=fraction,
        use=use,
    )


def misfit(type_: pa.DataType, column: MySqlColumn) -> str:
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
        return "a timestamp without time zone cannot be stored in a TIMESTAMP column"
    taken = {
        "integer": (*INTEGER_BITS, "decimal"),
        "boolean": tuple(INTEGER_BITS),
        "text": ("char", "varchar", "enum", *TEXT_BYTES),
        "binary": ("binary", "varbinary", *BINARY_BYTES),
        "date": ("date",),
        "timestamp": ("datetime", "timestamp"),
    }
    return "" if kind in taken.get(family or "", ()) else "it holds something else"


def keeps(was: MySqlColumn, now: MySqlColumn) -> bool:
    """Whether an altered column still takes every value as it is, or refuses it with an error.

    A double would silently be rounded by an integer; an integer is not changed by a bigint, and
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


class MySql(Dialect[MySqlColumn]):
    """What the shared core must know of MySQL and MariaDB."""

    name = "MySQL"
    quote = "`"
    has_case = False
    reserved = (ROW, PLACE)

    def fold(self, name: str) -> str:
        """Names of columns know no upper and lower case."""
        return name.casefold()

    def holds(self, type_: pa.DataType) -> bool:
        """Whether any column could hold values of this type."""
        return family_of(type_) is not None

    def declare(self, type_: pa.DataType, *, key: bool = False) -> str:
        """Return the column type that takes every value of an Arrow type."""
        return declaration(type_, key)

    def fit(self, field: pa.Field, column: MySqlColumn) -> Fit | str:
        """Return the checks of a column's values, or why none of them may go in."""
        why = misfit(field.type, column)
        find = _CHECKS.get(family_of(field.type) or "null")
        return why or Fit(tuple(find(field.type, column)) if find else ())

    def can_be_key(self, type_: pa.DataType) -> bool:
        """Equal values are written alike; floats are not."""
        return family_of(type_) in _KEYS

    def can_be_ordered(self, type_: pa.DataType) -> bool:
        """Text is ordered by a collation, which the client does not know."""
        return family_of(type_) in _ORDERS

    def can_be_added(self, type_: pa.DataType, column: MySqlColumn | None) -> bool:
        """Whether values can be summed."""
        return family_of(type_) in _NUMBERS


MYSQL = MySql()
quoted = MYSQL.quoted


def _integers(type_: pa.DataType, column: MySqlColumn) -> list[Check]:
    least, most = 0 if column.unsigned else -(2**63), 2**64
    if column.type in INTEGER_BITS:
        bits = INTEGER_BITS[column.type]
        least, most = -(2 ** (bits - 1)), 2 ** (bits - 1) - 1
        if column.unsigned:
            least, most = 0, 2**bits - 1
    elif column.type == "decimal":
        most = 10 ** ((column.precision or 0) - (column.scale or 0)) - 1
        least = 0 if column.unsigned else -most
    return [*checks.outside(type_, least, most, _out_of_range(column))]


def _out_of_range(column: MySqlColumn) -> str:
    return f"out of the range of {column.declared}"


def _floats(type_: pa.DataType, column: MySqlColumn) -> list[Check]:
    import pyarrow.compute as pc

    found = [Check("NaN or infinite, which MySQL lacks", lambda a: pc.invert(pc.is_finite(a)))]
    return [*found, *_unsigned(type_, column)]


def _unsigned(type_: pa.DataType, column: MySqlColumn) -> list[Check]:
    return [checks.negative(type_, _out_of_range(column))] if column.unsigned else []


def _decimals(type_: pa.DataType, column: MySqlColumn) -> list[Check]:
    digits = (column.precision or 0) - (column.scale or 0)
    wide = type_.precision - type_.scale > digits
    found = [checks.too_many_digits(digits, _out_of_range(column))] if wide else []
    return [*found, *_unsigned(type_, column)]


def _texts(type_: pa.DataType, column: MySqlColumn) -> list[Check]:
    import pyarrow.compute as pc

    found = []
    if column.type in ("char", "varchar"):
        most = column.characters or 0
        found.append(checks.too_long(most, f"longer than {most} characters"))
    elif column.type in TEXT_BYTES and (column.character_set or _UTF8[0]) in _UTF8:
        most = TEXT_BYTES[column.type]
        found.append(checks.too_many_bytes(most, f"longer than {most} bytes"))
    if column.type == "enum":
        # The server would take '1' for the first of them.
        labels = [label.replace("''", "'") for label in _LABELS.findall(column.declared)]
        found.append(checks.unknown_label(labels, f"not one of {column.declared}"))
    if column.type == "char":
        reason = "ends with a space, which CHAR drops"
        found.append(Check(reason, lambda array: pc.ends_with(array, " ")))
    if column.character_set in _UTF8[1:]:
        reason = f"characters beyond {column.character_set}; declare it utf8mb4"
        found.append(Check(reason, lambda a: pc.match_substring_regex(a, pattern=_BEYOND_UTF8MB3)))
    return found


def _binaries(type_: pa.DataType, column: MySqlColumn) -> list[Check]:
    import pyarrow.compute as pc

    if column.type == "binary":
        reason = f"not {column.bytes} bytes long, to which BINARY would pad it"
        return [Check(reason, lambda a: pc.not_equal(pc.binary_length(a), column.bytes or 0))]
    most = BINARY_BYTES.get(column.type, column.bytes or 0)
    return [checks.too_many_bytes(most, f"longer than {most} bytes")]


def _dates(type_: pa.DataType, column: MySqlColumn) -> list[Check]:
    return [checks.outside_days(_FIRST_DAY, _LAST_DAY, "outside the years 1 to 9999")]


def _timestamps(type_: pa.DataType, column: MySqlColumn) -> list[Check]:
    import pyarrow as pa
    import pyarrow.compute as pc

    per_second = _PER_SECOND[type_.unit]
    first_s, last_s, years = (
        _FIRST_DAY * _DAY_S,
        (_LAST_DAY + 1) * _DAY_S - 1,
        "the years 1 to 9999",
    )
    if column.type == "timestamp":
        first_s, last_s, years = _FIRST_S, _LAST_S, "1970 to 2038, which is what TIMESTAMP can hold"
    step = per_second // 10**column.fraction_digits

    def is_far(array: Any) -> Any:
        numbers = array.cast(pa.int64())
        early = pc.less(numbers, first_s * per_second)
        return pc.or_(early, pc.greater_equal(numbers, (last_s + 1) * per_second))

    def is_finer(array: Any) -> Any:
        numbers = array.cast(pa.int64())
        return pc.not_equal(pc.multiply(pc.divide(numbers, step), step), numbers)

    found = []
    if type_.unit != "ns" or column.type == "timestamp":  # nanoseconds do not reach that far
        found.append(Check(f"outside {years}", is_far))
    if step > 1:
        found.append(Check(f"finer than {column.declared}, which would round it", is_finer))
    return found


_CHECKS: dict[str, Callable[[Any, MySqlColumn], list[Check]]] = {
    "integer": _integers,
    "float": _floats,
    "decimal": _decimals,
    "text": _texts,
    "binary": _binaries,
    "date": _dates,
    "timestamp": _timestamps,
}
