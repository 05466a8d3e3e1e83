"""How the rows of a query go into a table, column by column; or why they cannot.

Asked by ``check`` before the first row, and again by every part, because a table may be altered
while a query runs.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from beadline.errors import BadSink
from beadline.sink import Part, refuse
from beadline.sinks.postgres.columns import Fit, declared, fit
from beadline.sinks.postgres.names import NAME_BYTES_MAX, listed, quoted
from beadline.sinks.postgres.table import Column, Table

if TYPE_CHECKING:
    import pyarrow as pa

    from beadline.sinks.postgres.sink import PostgresSink

_NOTHING = "Nothing was written."
_ADDS = ("int2", "int4", "int8", "numeric", "float4", "float8")


@dataclass(frozen=True)
class Planned:
    """One column of the rows: how it is staged, sent, and whether the table has it.

    ``in_key`` says that also a row that only deletes needs a value in it; ``settles``, that such
    a row's value counts: besides the key that of the order, and the mark itself.
    """

    name: str
    definition: str
    fit: Fit
    in_table: bool
    in_key: bool
    settles: bool
    never_null: bool


@dataclass(frozen=True)
class Plan:
    """All columns, in the order of the rows.

    ``exact_key`` is the key where its values are equal for the server only if they are for us.
    """

    columns: tuple[Planned, ...]
    exact_key: tuple[str, ...]
    deleted: str | None
    checks: tuple[str, ...]

    def taken(self, batch: pa.RecordBatch, part: Part) -> pa.RecordBatch:
        """Refuse the rows that the table would not take; return the others as they are."""
        import pyarrow.compute as pc

        for column in self.columns:
            if column.never_null and batch.column(column.name).null_count:
                bad = pc.is_null(batch.column(column.name))
                if not column.in_key and (gone := self._gone(batch)) is not None:
                    bad = pc.and_not(bad, gone)
                reason = f"null in column {column.name!r}, which is part of the key or NOT NULL"
                batch = refuse(batch, bad, reason, part)
            for check in column.fit.checks:
                bad = check.find(self._values(batch, column))
                batch = refuse(batch, bad, f"column {column.name!r}: {check.reason}", part)
        return batch

    def sent(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Return rows in the form of the table's columns."""
        import pyarrow as pa

        arrays = [column.fit.convert(self._values(batch, column)) for column in self.columns]
        return pa.RecordBatch.from_arrays(arrays, names=[each.name for each in self.columns])

    def _values(self, batch: pa.RecordBatch, column: Planned) -> pa.Array:
        """What counts of a column: a row that only deletes needs no more than its key."""
        import pyarrow as pa
        import pyarrow.compute as pc

        array = batch.column(column.name)
        gone = None if column.settles else self._gone(batch)
        return array if gone is None else pc.if_else(gone, pa.scalar(None, array.type), array)

    def _gone(self, batch: pa.RecordBatch) -> pa.Array | None:
        """Which rows only delete; None if none does."""
        import pyarrow.compute as pc

        if self.deleted is None or not batch.column(self.deleted).true_count:
            return None
        return pc.fill_null(batch.column(self.deleted), False)


def plan_of(sink: PostgresSink, schema: pa.Schema, table: Table | None) -> Plan:
    """Return how rows of this schema are written; raise with the first thing that is wrong."""
    import pyarrow as pa

    where = sink.where
    _check_names(sink, schema)
    if table is None:
        raise BadSink(
            f"{where} does not exist, or this user may not see it. {_in_schema(sink)}Create it: "
            f"{create_statement(sink, schema)} {_NOTHING}"
        )
    if table.kind not in ("r", "p"):
        raise BadSink(
            f"{where} is not a table of this database, but a view or the like. {_NOTHING}"
        )
    if table.unlogged:
        raise BadSink(
            f"{where} or a partition of it is UNLOGGED: the server empties it after a crash, and "
            "rows that were committed would be gone. Run ALTER TABLE "
            f"{table.unlogged[0]} SET LOGGED. {_NOTHING}"
        )
    columns = tuple(_planned(sink, field, table) for field in schema)
    given = set(schema.names)
    for column in table.columns.values():
        if column.not_null and not column.has_default and column.name not in given:
            raise BadSink(
                f"{where}: the table wants a value in column {column.name!r}, and the rows have "
                f"none. Give it a default, or add it in rows=. {_NOTHING}"
            )
    if sink.key and frozenset(sink.key) not in table.keys:
        raise BadSink(
            f"{where}: nothing makes the key unique. Run CREATE UNIQUE INDEX ON {table.target} "
            f"({listed(sink.key)}). {_NOTHING}"
        )
    checks: tuple[str, ...] = ()
    if sink.mode != "add":
        only = "" if sink.deleted is None else f"{quoted(sink.deleted)} IS TRUE OR "
        checks = tuple(
            f"CONSTRAINT {quoted(check.name)} CHECK ({only}({check.condition}))"
            for check in table.checks
            if check.columns <= given
        )
    exact = all(
        table.columns[name].exact and not pa.types.is_date64(schema.field(name).type)
        for name in sink.key
    )
    return Plan(columns, tuple(sink.key) if exact else (), sink.deleted, checks)


def _in_schema(sink: PostgresSink) -> str:
    """A schema before the table's name is read as a part of the name."""
    schema, dot, name = sink.table.partition(".")
    if sink.schema is not None or not (schema and dot and name):
        return ""
    return f"Is it table {name!r} of schema {schema!r}? Then write {schema=}, table={name!r}. "


def _check_names(sink: PostgresSink, schema: pa.Schema) -> None:
    import pyarrow as pa

    if not len(schema):
        raise BadSink(f"{sink.where}: the rows have no columns. {_NOTHING}")
    for name in schema.names:
        if not name or "\0" in name or len(name.encode()) > NAME_BYTES_MAX:
            raise BadSink(f"{sink.where}: {name!r} cannot name a column. {_NOTHING}")
        if schema.names.count(name) > 1:
            raise BadSink(f"{sink.where}: two columns are called {name!r}. {_NOTHING}")
    asked = dict.fromkeys(sink.key, "key")
    asked |= {name: "order_by" for name in (sink.order_by,) if name is not None}
    asked |= {name: "deleted" for name in (sink.deleted,) if name is not None}
    for name, setting in asked.items():
        if name not in schema.names:
            raise BadSink(
                f"{sink.where}: column {name!r} of {setting}= is not in the rows, which have "
                f"{', '.join(schema.names)}. {_NOTHING}"
            )
    if sink.deleted is not None and not pa.types.is_boolean(schema.field(sink.deleted).type):
        kind = schema.field(sink.deleted).type
        raise BadSink(
            f"{sink.where}: column {sink.deleted!r} marks deletes, so it must be boolean, not "
            f"{kind}. {_NOTHING}"
        )
    if sink.mode == "add" and set(schema.names) <= set(sink.key):
        raise BadSink(f"{sink.where}: beside the key no column is left to add. {_NOTHING}")


def _planned(sink: PostgresSink, field: pa.Field, table: Table) -> Planned:
    where, name = sink.where, field.name
    column = table.columns.get(name)
    if column is None:
        if name in (sink.deleted, sink.order_by):
            return _beside(sink, field)
        raise BadSink(
            f"{where}: the table has no column {name!r}{_like(name, table)}. Add it, or leave it "
            f"out in rows=. {_NOTHING}"
        )
    if column.generated:
        raise BadSink(
            f"{where}: column {name!r} is generated by the database. Leave it out in rows=. "
            f"{_NOTHING}"
        )
    found = fit(field, column)
    if found is None:
        wanted = declared(field.type)
        advice = f"Declare it {wanted}, or cast" if wanted else "Cast it, with to_json() perhaps,"
        raise BadSink(
            f"{where}: column {name!r} is {column.declared}, but the rows hold {field.type}, which "
            f"it would change or refuse. {advice} in rows=. {_NOTHING}"
        )
    in_key = name in sink.key
    if sink.mode == "add" and not in_key and column.base not in _ADDS:
        raise BadSink(
            f"{where}: column {name!r} is {column.declared}, which cannot be added. Make it part "
            f"of the key, or leave it out in rows=. {_NOTHING}"
        )
    never_null = in_key or (column.not_null and sink.mode != "add")
    needed = in_key or not column.takes_null
    settles = needed or name in (sink.order_by, sink.deleted)
    return Planned(name, column.definition, found, True, needed, settles, never_null)


def _beside(sink: PostgresSink, field: pa.Field) -> Planned:
    """A column that settles something and is not kept: staged, and not in the table."""
    kind = declared(field.type)
    natural = None if kind is None else fit(field, _column_of(field.name, kind))
    if kind is None or natural is None:
        raise BadSink(
            f"{sink.where}: column {field.name!r} holds {field.type}, by which rows cannot be "
            f"ordered. {_NOTHING}"
        )
    return Planned(field.name, f"{quoted(field.name)} {kind}", natural, False, False, True, False)


_BASES = {
    "bigint": "int8",
    "integer": "int4",
    "smallint": "int2",
    "double precision": "float8",
    "real": "float4",
    "boolean": "bool",
}


def _column_of(name: str, kind: str) -> Column:
    base = "numeric" if kind.startswith("numeric") else _BASES.get(kind, kind)
    return Column(name, kind, base, -1, "b", "", (), False, True, False, False, "", False)


def _like(name: str, table: Table) -> str:
    same = [other for other in table.columns if other.lower() == name.lower()]
    return f", only {same[0]!r}" if same else ""


def create_statement(sink: PostgresSink, schema: pa.Schema) -> str:
    """Return the statement that would make a table for these rows."""

    def definitions() -> Iterator[str]:
        for field in schema:
            if field.name != sink.deleted:
                yield f"{quoted(field.name)} {declared(field.type) or 'text'}"
        if sink.key:
            yield f"PRIMARY KEY ({listed(sink.key)})"

    names: Any = (sink.table,) if sink.schema is None else (sink.schema, sink.table)
    return f"CREATE TABLE {quoted(*names)} ({', '.join(definitions())})."
