"""Commit of staged parts: the epoch's rows and its ledger row in one transaction, or nothing.

The ledger row is locked first, so two drivers that commit at once come one after the other, and the
second one finds the epoch in the ledger. Then the table is locked against being altered, as the
INSERT would do, so that what was checked is what is written to.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from beadline.sink import EpochId, Outcome, Prepared, reach
from beadline.sinks.postgres.columns import keeps
from beadline.sinks.postgres.connect import PostgresAddress, RunStatement, literal
from beadline.sinks.postgres.discard import DROPPED_AT_ONCE, drop, drop_within
from beadline.sinks.postgres.ledger import PostgresLedger
from beadline.sinks.postgres.part import NOT_KEPT, PostgresPart, PostgresParts
from beadline.sinks.postgres.plan import PostgresSettings
from beadline.sinks.postgres.problems import is_database_error, is_transient, said
from beadline.sinks.postgres.table import PostgresTable, read_table
from beadline.sinks.shared.sql.dialect import listed, quoted
from beadline.sinks.shared.sql.errors import (
    check_altered,
    check_staged,
    column_gone,
    key_twice_in_epoch,
    row_refused,
)
from beadline.sinks.shared.sql.modes import added, duplicates, largest, summed, union
from beadline.sinks.shared.sql.settings import TableSettings


@dataclass(frozen=True)
class _Column:
    """A column of a staging table or of the target: its type, and whether the target keeps it."""

    type: tuple[int, int, int]
    kept: bool


_Columns = dict[str, _Column]


def commit(
    run: RunStatement,
    server: PostgresAddress,
    settings: PostgresSettings,
    table: PostgresTable,
    epoch: EpochId,
    parts: PostgresParts,
) -> tuple[Outcome, str]:
    """Write all parts; return what became of them, and why. An error rolls everything back."""
    ledger = PostgresLedger(run, table.schema, table.target)
    name = parts[0].id.sink
    run("BEGIN")
    ledger.lock(epoch.query, name)
    if ledger.read(epoch.query).hold(epoch, settings.where, name):
        run("ROLLBACK")
        _drop(run, parts)
        return Outcome.ALREADY_COMMITTED, ""
    run(f"LOCK TABLE ONLY {table.target} IN ROW EXCLUSIVE MODE")
    ordered = sorted(parts, key=lambda part: part.id.partition)
    columns, now = _columns(run, ordered, table)
    gone = [part for part in ordered if not columns[part.committable.name]]
    if gone:
        # The ledger is behind, so nothing of the epoch is there: all parts are lost, not some.
        run("ROLLBACK")
        tables = ", ".join(part.committable.name for part in gone)
        return Outcome.LOST, f"staging tables {tables} of {settings.where} are gone"
    check_staged(settings, ordered)
    for part in ordered:
        _check_columns(run, settings, table, epoch, part, columns[part.committable.name], now)
    first = columns[ordered[0].committable.name]
    _write(run, server, settings, table, epoch, ordered, list(first))
    ledger.write(epoch, name, sum(part.rows for part in parts))
    few = len(parts) <= DROPPED_AT_ONCE
    if few:
        drop_within(run, _stages(ordered))  # which saves a wait for the disk
    reach("ledger.before")
    run("COMMIT")
    reach("ledger.after")
    if not few:
        _drop(run, ordered)
    return Outcome.COMMITTED, ""


def _stages(parts: PostgresParts) -> list[str]:
    return [quoted(part.committable.schema, part.committable.name) for part in parts]


def _drop(run: RunStatement, parts: PostgresParts) -> None:
    """Drop the tables of an epoch that the ledger has, if the server lets us; or a sweep does."""
    try:
        drop(run, _stages(parts))
    except Exception as error:
        if not is_database_error(error):
            raise


def _columns(
    run: RunStatement, parts: PostgresParts, table: PostgresTable
) -> tuple[dict[str, _Columns], _Columns]:
    """The columns of each staging table, none if it is gone; and those of the target as it is."""
    found: dict[str, _Columns] = {part.committable.name: {} for part in parts}
    now: _Columns = {}
    names = ", ".join(map(literal, found))
    schemas = ", ".join(sorted({literal(part.committable.schema) for part in parts}))
    target = f"{literal(table.target)}::regclass"
    rows = run(
        f"SELECT c.oid = {target}, c.relname, a.attname, d.description, a.atttypid::bigint, "
        "a.atttypmod, a.attcollation::bigint FROM pg_attribute a "
        "JOIN pg_class c ON c.oid = a.attrelid JOIN pg_namespace n ON n.oid = c.relnamespace "
        "LEFT JOIN pg_description d ON d.objoid = c.oid AND d.classoid = 'pg_class'::regclass "
        f"AND d.objsubid = a.attnum WHERE (c.oid = {target} OR n.nspname IN ({schemas}) "
        f"AND c.relname IN ({names})) AND a.attnum > 0 AND NOT a.attisdropped ORDER BY a.attnum"
    )
    for is_target, name, column, comment, *type_ in rows:
        columns = now if is_target else found[name]
        columns[column] = _Column(tuple(type_), comment != NOT_KEPT)
    return found, now


def _check_columns(
    run: RunStatement,
    settings: PostgresSettings,
    table: PostgresTable,
    epoch: EpochId,
    part: Prepared[PostgresPart],
    staged: _Columns,
    now: _Columns,
) -> None:
    """Raise if a column was dropped since the part was staged, or altered so that values change."""
    kept = [name for name, column in staged.items() if column.kept]
    gone = [name for name in kept if name not in now]
    if gone:
        raise column_gone(settings, epoch, part.id, gone[0])
    altered = [name for name in kept if staged[name].type != now[name].type]
    if altered:
        was = read_table(run, part.committable.schema, part.committable.name)
        is_ = read_table(run, table.schema, table.name)
        check_altered(settings, epoch, part.id, altered, was, is_, keeps)


def _write(
    run: RunStatement,
    server: PostgresAddress,
    settings: PostgresSettings,
    table: PostgresTable,
    epoch: EpochId,
    parts: PostgresParts,
    columns: Sequence[str],
) -> None:
    stages = _stages(parts)

    def refuse_duplicates() -> None:
        if run(duplicates(settings, stages)):
            raise key_twice_in_epoch(settings, epoch, parts[0].id.sink, stages)

    # Without deletes and an order, the database itself finds a key that comes twice.
    if settings.mode == "upsert" and (settings.order_by or settings.deleted):
        refuse_duplicates()
    for number, statement in enumerate(_statements(settings, table, columns, stages)):
        try:
            run(statement)
        except Exception as error:
            if not is_database_error(error) or is_transient(error):
                raise
            run("ROLLBACK")
            if settings.mode == "upsert":
                refuse_duplicates()
            fault = slice(number, number + 1) if settings.mode == "append" else slice(None)
            why = said(error, server.dsn)
            raise row_refused(settings, epoch, parts[fault], stages[fault], why) from None


def _statements(
    settings: TableSettings, table: PostgresTable, columns: Sequence[str], stages: Sequence[str]
) -> Iterator[str]:
    """Yield the statements of the mode for these staged rows; in append, one per part."""
    kept = [name for name in columns if name in table.columns]
    if settings.mode == "append":
        for stage in stages:
            yield f"{_insert(table, kept)} SELECT {listed(kept)} FROM {stage}"
        return
    source = union(settings.dialect, stages, columns)
    conflict = f"ON CONFLICT ({listed(settings.key)}) DO"
    values = [name for name in kept if name not in settings.key]
    if settings.mode == "add":
        sums = [summed(quoted(name), not_null=table.columns[name].not_null) for name in values]
        changes = [
            f"{quoted(name)} = {added(f'_beadline_target.{quoted(name)}', new)}"
            for name in values
            for new in (f"excluded.{quoted(name)}",)
        ]
        yield (
            f"{_insert(table, [*settings.key, *values])} "
            f"SELECT {', '.join([listed(settings.key), *sums])} FROM ({source}) staged "
            f"GROUP BY {listed(settings.key)} {conflict} UPDATE SET {', '.join(changes)}"
        )
        return
    rows = source
    if settings.order_by is not None:
        rows = largest(settings, "ROW_NUMBER", stages, columns)
    if settings.deleted is not None:
        deleted = quoted(settings.deleted)
        same = " AND ".join(
            f"_beadline_target.{quoted(name)} = gone.{quoted(name)}" for name in settings.key
        )
        yield (
            f"DELETE FROM {table.target} AS _beadline_target USING ({rows}) gone "
            f"WHERE gone.{deleted} AND {same}"
        )
        rows = f"SELECT * FROM ({rows}) counted WHERE {deleted} IS NOT TRUE"
    changes = [f"{quoted(name)} = excluded.{quoted(name)}" for name in values]
    act = f"UPDATE SET {', '.join(changes)}" if changes else "NOTHING"
    yield f"{_insert(table, kept)} SELECT {listed(kept)} FROM ({rows}) counted {conflict} {act}"


def _insert(table: PostgresTable, columns: Sequence[str]) -> str:
    return f"INSERT INTO {table.target} AS _beadline_target ({listed(columns)})"
