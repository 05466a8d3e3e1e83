"""What becomes of the rows' columns: which are written, which only staged, which are the key.

Everything that the rows and the table together decide is settled here, once at the start and again
for each part, and every reason to refuse is a ``BadSink`` that says what to do.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from beadline.errors import BadSink
from beadline.sinks.mysql.columns import (
    DELETED,
    ORDER,
    Column,
    can_be_added,
    can_be_key,
    can_be_ordered,
    declaration,
    family_of,
    folded,
    misfit,
    own_column,
    quoted,
)
from beadline.sinks.mysql.table import Table

if TYPE_CHECKING:
    import pyarrow as pa

ROW = "_beadline_row"  # numbers the rows of a part in its staging table
PLACE = "_beadline_place"  # of a row among those of its key
NOTHING = "Nothing was written."


@dataclass(frozen=True)
class Wish:
    """The settings of the sink that say what is to become of rows."""

    table: str
    mode: str
    key: tuple[str, ...]
    order_by: str | None
    deleted: str | None


@dataclass(frozen=True)
class Plan:
    """Rows and table, brought together. Names of sets are folded."""

    columns: tuple[Column, ...]
    written: tuple[str, ...]
    never_null: frozenset[str]
    always: frozenset[str]
    deleted: str | None


def make_plan(schema: pa.Schema, table: Table | None, wish: Wish, where: str) -> Plan:
    """Return the plan, or raise with the first thing that does not fit."""
    _check_names(schema, where)
    _check_wish(schema, wish, where)
    if table is None:
        raise BadSink(
            f"{where}: there is no such table. {_elsewhere(wish)}Run {_create(schema, wish)}. "
            f"{NOTHING}"
        )
    if not table.base:
        raise BadSink(f"{where} is a view, not a table. {NOTHING}")
    if table.engine.lower() != "innodb":
        raise BadSink(
            f"{where} is kept by {table.engine}, which has no transactions: rows could not be "
            f"taken back. Run ALTER TABLE {quoted(wish.table)} ENGINE = InnoDB. {NOTHING}"
        )
    _check_unique(table, schema, wish, where)
    apart = {folded(name) for name in (wish.order_by, wish.deleted) if name}
    columns, written = [], []
    for field in schema:
        column = table.columns.get(folded(field.name))
        mark = wish.deleted is not None and folded(field.name) == folded(wish.deleted)
        if mark or (column is None and folded(field.name) in apart):
            columns.append(own_column(field.name, field.type, DELETED if mark else ORDER))
            continue
        columns.append(_checked(field, column, where))
        written.append(columns[-1].name)
    _check_required(table, written, where)
    key = frozenset(map(folded, wish.key))
    strict = {folded(column.name) for column in columns if not column.nullable}
    if wish.mode == "add":
        strict = set()  # a null adds nothing, also where the table takes none
    marks = frozenset({folded(wish.deleted)} if wish.deleted else ())
    return Plan(
        tuple(columns), tuple(written), key | strict | marks, key | apart | marks, wish.deleted
    )


def _elsewhere(wish: Wish) -> str:
    """A database before the table's name is read as a part of the name."""
    database, dot, name = wish.table.partition(".")
    if not (database and dot and name):
        return ""
    return f"Is it table {name!r} of database {database!r}? Then name that one in the dsn. "


def _check_names(schema: pa.Schema, where: str) -> None:
    if not len(schema):
        raise BadSink(f"{where}: the rows have no columns. {NOTHING}")
    seen = {ROW, PLACE}
    for field in schema:
        if folded(field.name) in seen:
            raise BadSink(
                f"{where}: column {field.name!r} is there twice, or is a name that Beadline uses: "
                f"MySQL knows no upper and lower case there. Rename it in rows=. {NOTHING}"
            )
        seen.add(folded(field.name))
        if family_of(field.type) is None:
            raise BadSink(
                f"{where}: column {field.name!r} is {field.type}, which MySQL cannot hold. Take it "
                f"apart or cast it in rows=, to_json() for example. {NOTHING}"
            )


def _check_wish(schema: pa.Schema, wish: Wish, where: str) -> None:
    families = {field.name: family_of(field.type) for field in schema}
    for name in filter(None, (*wish.key, wish.order_by, wish.deleted)):
        if name not in families:
            has = ", ".join(families)
            raise BadSink(
                f"{where}: column {name!r} is not in the rows, which have {has}. {NOTHING}"
            )
    for name in wish.key:
        if not can_be_key(families[name] or "null"):
            raise BadSink(
                f"{where}: column {name!r} holds {families[name]}s, which cannot be a key: equal "
                f"values may be written differently. {NOTHING}"
            )
    if wish.order_by and not can_be_ordered(families[wish.order_by] or "null"):
        raise BadSink(
            f"{where}: order_by column {wish.order_by!r} must hold numbers, dates or timestamps. "
            f"{NOTHING}"
        )
    if wish.deleted and families[wish.deleted] != "boolean":
        raise BadSink(f"{where}: deleted column {wish.deleted!r} must be boolean. {NOTHING}")
    values = [name for name in families if name not in wish.key]
    if wish.mode == "add" and not values:
        raise BadSink(f"{where}: beside the key no column is left to add. {NOTHING}")
    for name in values:
        if wish.mode == "add" and not can_be_added(families[name] or "null"):
            raise BadSink(
                f"{where}: column {name!r} holds {families[name]}s, which cannot be added. Make it "
                f"part of the key, or leave it out in rows=. {NOTHING}"
            )


def _checked(field: pa.Field, column: Column | None, where: str) -> Column:
    if column is None:
        raise BadSink(
            f"{where}: the table has no column {field.name!r}. Add it, or leave it out in rows=. "
            f"{NOTHING}"
        )
    if column.generated:
        raise BadSink(f"{where}: column {field.name!r} is generated by the server. {NOTHING}")
    why = misfit(field.type, column)
    if why:
        raise BadSink(
            f"{where}: column {field.name!r} is declared {column.declared}, but the rows hold "
            f"{field.type}: {why}. Declare it {declaration(field.type)}, or cast it in rows=. "
            f"{NOTHING}"
        )
    return column


def _check_required(table: Table, written: Sequence[str], where: str) -> None:
    given = set(map(folded, written))
    for name, column in table.columns.items():
        if name not in given and not column.has_default and not column.generated:
            raise BadSink(
                f"{where}: the table wants a value in column {column.name!r}, and the rows have "
                f"none. Give it a default, or add it in rows=. {NOTHING}"
            )


def _check_unique(table: Table, schema: pa.Schema, wish: Wish, where: str) -> None:
    """``ON DUPLICATE KEY`` goes by any unique key: only the one that is meant may be there."""
    if not wish.key:
        return
    key = frozenset(map(folded, wish.key))
    if key not in table.unique.values():
        name = quoted(f"{wish.table[:50]}_key")
        columns = ", ".join(map(quoted, wish.key))
        raise BadSink(
            f"{where}: nothing makes the key unique. Run CREATE UNIQUE INDEX {name} ON "
            f"{quoted(wish.table)} ({columns}). {NOTHING}"
        )
    given = {folded(field.name) for field in schema}
    for index, members in table.unique.items():
        numbered = any(
            member in table.columns and table.columns[member].auto_increment
            for member in members - given
        )
        if members != key and not numbered:
            raise BadSink(
                f"{where}: beside the key there is another unique index, {index!r}: a row that "
                f"meets that one would change a row of another key. Drop it, or use mode='append'. "
                f"{NOTHING}"
            )


def _create(schema: pa.Schema, wish: Wish) -> str:
    """The statement that makes the table."""
    lines = [
        f"{quoted(field.name)} {declaration(field.type, field.name in wish.key)}"
        f"{' NOT NULL' if field.name in wish.key else ''}"
        for field in schema
        if field.name != wish.deleted
    ]
    if wish.key:
        lines.append(f"PRIMARY KEY ({', '.join(map(quoted, wish.key))})")
    return f"CREATE TABLE {quoted(wish.table)} ({', '.join(lines)}) ENGINE = InnoDB"
