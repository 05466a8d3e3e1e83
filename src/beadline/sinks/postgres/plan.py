"""How the rows of a query go into a table, prepared or staged; or why they cannot.

A part is a prepared transaction, or a staging table that one transaction per epoch reads. A
prepared transaction keeps its locks until it is committed. Two parts of one epoch that meet in a
unique index would wait for each other, one of them for ever. So they are only used where two parts
cannot meet: for plain appends into a table without unique indexes, triggers and the like.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from beadline.sinks.postgres.columns import declared, fit
from beadline.sinks.postgres.table import PostgresColumn, PostgresTable
from beadline.sinks.shared.sql.dialect import quoted
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

PostgresHow = Literal["auto", "staged", "prepared"]

# How many free slots are left to others, and to parts that begin at the same moment.
_FREE_MIN = 4


@dataclass(frozen=True)
class PostgresSettings(TableSettings):
    """And the table's schema, and whether parts are prepared transactions or staged."""

    schema: str | None = None
    how: PostgresHow = "auto"


def why_not_prepared(settings: PostgresSettings, table: PostgresTable) -> str | None:
    """Return why this table, on this server, cannot take prepared transactions; None if it can."""
    if settings.mode != "append":
        return f"mode {settings.mode!r} needs all parts at once"
    if table.in_the_way:
        return table.in_the_way[0]
    if table.max_prepared == 0:
        return "max_prepared_transactions is 0 on this server"
    return None


def why_staged(settings: PostgresSettings, table: PostgresTable, used: int = 0) -> str | None:
    """Return why a part is staged; None if it is a prepared transaction.

    ``used`` is how many prepared transactions there are now, of all clients.
    """
    if settings.how == "staged":
        return "how='staged'"
    reason = why_not_prepared(settings, table)
    if reason is None and settings.how == "auto" and table.max_prepared - used < _FREE_MIN:
        return f"max_prepared_transactions is {table.max_prepared}, and {used} are in use"
    return reason


def plan_of(
    settings: PostgresSettings, schema: pa.Schema, table: PostgresTable | None
) -> tuple[PostgresTable, TablePlan[PostgresColumn]]:
    """Return how rows of this schema are written; raise with the first thing that is wrong."""
    settings.check_rows(schema)
    if table is None:
        place = filter(None, (settings.schema, settings.table))
        raise settings.bad(
            f"it does not exist, or this user may not see it. {_in_schema(settings)}Create it: "
            f"{create_statement(settings, schema, quoted(*place))}."
        )
    if table.kind not in ("r", "p"):
        raise settings.bad("it is not a table of this database, but a view or the like.")
    if table.unlogged:
        raise settings.bad(
            "it or a partition of it is UNLOGGED: the server empties it after a crash, and rows "
            f"that were committed would be gone. Run ALTER TABLE {table.unlogged[0]} SET LOGGED."
        )
    columns = tuple(_planned(settings, field, table) for field in schema)
    check_required(settings, schema.names, table.columns)
    check_unique(settings, table.target, table.keys)
    return table, TablePlan(columns, settings.deleted)


def _in_schema(settings: PostgresSettings) -> str:
    """A schema before the table's name is read as a part of the name."""
    schema, dot, name = settings.table.partition(".")
    if settings.schema is not None or not (schema and dot and name):
        return ""
    return f"Is it table {name!r} of schema {schema!r}? Then write {schema=}, table={name!r}. "


def _planned(
    settings: PostgresSettings, field: pa.Field, table: PostgresTable
) -> PlannedColumn[PostgresColumn]:
    name = field.name
    if name not in table.columns and name in (settings.deleted, settings.order_by):
        return _beside(settings, field)
    column, found = match(settings, field, table.columns)
    in_key = name in settings.key
    needed = in_key or not column.takes_null
    return PlannedColumn(
        name,
        column,
        found,
        never_null=in_key or (column.not_null and settings.mode != "add"),
        in_deletes=needed or name in (settings.order_by, settings.deleted),
        needed_in_deletes=needed,
    )


def _beside(settings: PostgresSettings, field: pa.Field) -> PlannedColumn[PostgresColumn]:
    """A column that orders or deletes and is not kept: staged, and not in the table."""
    kind = declared(field.type)
    column = None if kind is None else PostgresColumn.of_type(field.name, kind)
    natural = None if column is None else fit(field, column)
    if column is None or natural is None:
        raise settings.bad(
            f"column {field.name!r} holds {field.type}, by which rows cannot be ordered."
        )
    return PlannedColumn(field.name, column, natural, in_table=False, in_deletes=True)


def staged_checks(
    settings: PostgresSettings, schema: pa.Schema, table: PostgresTable
) -> tuple[str, ...]:
    """The table's own CHECKs that a staging table can make as well, so that bad rows are found."""
    if settings.mode == "add":
        return ()
    only = "" if settings.deleted is None else f"{quoted(settings.deleted)} IS TRUE OR "
    return tuple(
        f"CONSTRAINT {quoted(check.name)} CHECK ({only}({check.condition}))"
        for check in table.checks
        if check.columns <= set(schema.names)
    )


def exact_key(
    settings: PostgresSettings, schema: pa.Schema, table: PostgresTable
) -> tuple[str, ...]:
    """The key where its values are equal for the server only if they are for us; else none."""
    exact = all(
        table.columns[name].exact and str(schema.field(name).type) != "date64[ms]"
        for name in settings.key
    )
    return settings.key if exact else ()
