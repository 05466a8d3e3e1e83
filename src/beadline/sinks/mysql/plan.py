"""How the rows of a query go into a table of MySQL, or why they cannot."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from beadline.sinks.mysql.columns import (
    DELETED_COLUMN,
    MYSQL,
    ORDER_COLUMN,
    MySqlColumn,
    own_column,
    quoted,
)
from beadline.sinks.mysql.table import MySqlTable
from beadline.sinks.shared.sql.plan import (
    PlannedColumn,
    TablePlan,
    check_required,
    check_unique,
    create_statement,
    match,
)
from beadline.sinks.shared.sql.settings import TableSettings

if TYPE_CHECKING:
    import pyarrow as pa

MySqlHow = Literal["auto", "staged", "xa"]


@dataclass(frozen=True)
class MySqlSettings(TableSettings):
    """And how parts are delivered."""

    how: MySqlHow = "auto"

    @property
    def xa(self) -> bool:
        """Whether a part is a prepared XA transaction, and not a staging table."""
        return self.how == "xa"


def make_plan(
    settings: MySqlSettings, schema: pa.Schema, table: MySqlTable | None
) -> TablePlan[MySqlColumn]:
    """Return how rows of this schema are written; raise with the first thing that is wrong."""
    settings.check_rows(schema)
    place = quoted(settings.table)
    if table is None:
        raise settings.bad(
            f"there is no such table. {_elsewhere(settings)}Run "
            f"{create_statement(settings, schema, place)} ENGINE = InnoDB."
        )
    if not table.base:
        raise settings.bad("it is a view, not a table.")
    if table.engine.lower() != "innodb":
        raise settings.bad(
            f"it is kept by {table.engine}, which has no transactions: rows could not be rolled "
            f"back. Run ALTER TABLE {place} ENGINE = InnoDB."
        )
    _check_unique(settings, schema, table)
    columns = tuple(_planned(settings, field, table) for field in schema)
    written = [each.name for each in columns if each.in_table]
    check_required(settings, written, table.columns)
    return TablePlan(columns, settings.deleted)


def _planned(
    settings: MySqlSettings, field: pa.Field, table: MySqlTable
) -> PlannedColumn[MySqlColumn]:
    fold, name = MYSQL.fold, field.name
    is_deleted, is_order = (
        setting is not None and fold(name) == fold(setting)
        for setting in (settings.deleted, settings.order_by)
    )
    in_table = not is_deleted and not (is_order and fold(name) not in table.columns)
    if in_table:
        column, found = match(settings, field, table.columns)
    else:
        own = own_column(name, field.type, DELETED_COLUMN if is_deleted else ORDER_COLUMN)
        column, found = match(settings, field, {fold(name): own})
    in_key = settings.is_key(name)
    not_null = not column.nullable and settings.mode != "add"  # there, a null adds nothing
    counts = in_key or is_order or is_deleted
    return PlannedColumn(
        name,
        column,
        found,
        in_table,
        never_null=in_key or is_deleted or not_null,
        in_deletes=counts,
        needed_in_deletes=counts,
    )


def _elsewhere(settings: MySqlSettings) -> str:
    """A database before the table's name is read as a part of the name."""
    database, dot, name = settings.table.partition(".")
    if not (database and dot and name):
        return ""
    return f"Is it table {name!r} of database {database!r}? Then name that one in the dsn. "


def _check_unique(settings: MySqlSettings, schema: pa.Schema, table: MySqlTable) -> None:
    """``ON DUPLICATE KEY`` goes by any unique key, so only the one that is meant may be there."""
    if not settings.key:
        return
    index = quoted(f"{settings.table[:50]}_key")
    check_unique(settings, quoted(settings.table), table.unique.values(), index)
    key = frozenset(map(MYSQL.fold, settings.key))
    given = set(map(MYSQL.fold, schema.names))
    for index, members in table.unique.items():
        numbered = any(
            member in table.columns and table.columns[member].auto_increment
            for member in members - given
        )
        if members != key and not numbered:
            raise settings.bad(
                f"the table has another unique index besides the key, {index!r}: a row that "
                "conflicts with it would update a row with a different key. Drop it, or use "
                "mode='append'."
            )
