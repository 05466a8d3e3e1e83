"""What the server says of a table: its columns, its unique keys, and whether it has transactions.

Read at the start and again for every part: a table that was altered in between is noticed while
nothing is decided.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from typing import Any

from beadline.sinks.mysql.columns import MYSQL, MySqlColumn, quoted
from beadline.sinks.mysql.connection import Connection
from beadline.sinks.mysql.problems import code_of, library_errors

_TABLE = """SELECT TABLE_NAME, TABLE_TYPE, ENGINE FROM information_schema.TABLES
    WHERE TABLE_SCHEMA = DATABASE() AND TABLE_NAME = %s"""
_COLUMNS = """SELECT COLUMN_NAME, DATA_TYPE, COLUMN_TYPE, IS_NULLABLE, COLUMN_DEFAULT, EXTRA,
        CHARACTER_MAXIMUM_LENGTH, CHARACTER_OCTET_LENGTH, NUMERIC_PRECISION, NUMERIC_SCALE,
        DATETIME_PRECISION, CHARACTER_SET_NAME, COLLATION_NAME
    FROM information_schema.COLUMNS
    WHERE TABLE_SCHEMA = DATABASE() AND TABLE_NAME = %s ORDER BY ORDINAL_POSITION"""
_UNIQUE = """SELECT INDEX_NAME, COLUMN_NAME, SUB_PART FROM information_schema.STATISTICS
    WHERE TABLE_SCHEMA = DATABASE() AND TABLE_NAME = %s AND NON_UNIQUE = 0"""
# MariaDB's JSON is text with this check. MySQL has a type for it, and no such column here.
_JSON = """SELECT CHECK_CLAUSE FROM information_schema.CHECK_CONSTRAINTS
    WHERE CONSTRAINT_SCHEMA = DATABASE() AND TABLE_NAME = %s"""
_NO_SUCH_COLUMN = 1054
# A part of a column is no key, nor is an expression: such an index has a member of no name.
_NO_COLUMN = ""


@dataclass(frozen=True)
class MySqlTable:
    """A table as it is now; columns by folded name, unique keys by their folded columns."""

    name: str
    engine: str
    base: bool
    columns: dict[str, MySqlColumn]
    unique: dict[str, frozenset[str]]


def read_table(connection: Connection, name: str) -> MySqlTable | None:
    """Return the table, or None if there is none of this name."""
    found = connection.ask(_TABLE, (name,))
    if not found:
        return None
    exact, kind, engine = found[0]
    checks = _checks(connection, name)
    columns = [_column(row, checks) for row in connection.ask(_COLUMNS, (name,))]
    unique: dict[str, set[str]] = defaultdict(set)
    for index, column, length in connection.ask(_UNIQUE, (name,)):
        member = _NO_COLUMN if column is None or length is not None else MYSQL.fold(str(column))
        unique[str(index)].add(member)
    return MySqlTable(
        str(exact),
        str(engine or ""),
        kind == "BASE TABLE",
        {MYSQL.fold(column.name): column for column in columns},
        {index: frozenset(members) for index, members in unique.items()},
    )


def _checks(connection: Connection, name: str) -> set[str]:
    try:
        return {_text(clause).lower() for (clause,) in connection.ask(_JSON, (name,))}
    except library_errors() as error:
        if code_of(error) == _NO_SUCH_COLUMN:
            return set()
        raise


def _column(row: tuple[Any, ...], checks: set[str]) -> MySqlColumn:
    name, type_, declared, nullable, default, extra, *numbers, character_set, collation = row
    characters, octets, precision, scale, fraction = (
        None if number is None else int(number) for number in numbers
    )
    extra = str(extra).lower()
    increments = "auto_increment" in extra
    return MySqlColumn(
        name=str(name),
        type=str(type_).lower(),
        declared=_text(declared),
        nullable=nullable == "YES",
        has_default=nullable == "YES" or default is not None or increments,
        generated="generated" in extra.replace("default_generated", ""),
        auto_increment=increments,
        characters=characters,
        bytes=octets,
        precision=precision,
        scale=scale,
        fraction_digits=fraction or 0,
        character_set=character_set,
        collation=collation,
        json=f"json_valid({quoted(str(name))})".lower() in checks,
    )


def _text(value: Any) -> str:
    return value.decode() if isinstance(value, bytes) else str(value)
