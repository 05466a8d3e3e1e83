"""Commit of staged parts: the epoch's rows and its ledger row in one transaction, or nothing.

The ledger row is locked first, so two drivers that commit at once come one after the other, and the
second one finds the epoch in the ledger.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from beadline.chaos.points import reach
from beadline.errors import CommitFailed
from beadline.ids import EpochId
from beadline.sink import Outcome, Prepared
from beadline.sinks._ledger import way_out
from beadline.sinks.postgres.connect import Run
from beadline.sinks.postgres.discard import DROPPED_AT_ONCE, drop, drop_within
from beadline.sinks.postgres.ledger import Ledger
from beadline.sinks.postgres.names import literal, quoted
from beadline.sinks.postgres.part import NOT_KEPT, PostgresPart
from beadline.sinks.postgres.problems import is_database_error, is_transient, said
from beadline.sinks.postgres.settle import advice, find_duplicate, statements, union
from beadline.sinks.postgres.table import Table

if TYPE_CHECKING:
    from beadline.sinks.postgres.sink import PostgresSink

Parts = Sequence[Prepared[PostgresPart]]


def commit(
    run: Run, sink: PostgresSink, table: Table, epoch: EpochId, parts: Parts
) -> tuple[Outcome, str]:
    """Write all of the parts; return what became of them, and why. An error takes all back."""
    ledger = Ledger(run, table.schema, table.target)
    name = parts[0].id.sink
    run("BEGIN")
    ledger.lock(epoch.query, name)
    if ledger.holds(epoch, name, sink.where):
        run("ROLLBACK")
        _drop(run, parts)
        return Outcome.ALREADY_COMMITTED, ""
    ordered = sorted(parts, key=lambda part: part.id.partition)
    columns = _columns(run, ordered)
    gone = [part for part in ordered if not columns[part.committable.name]]
    if gone:
        # The ledger is behind, so nothing of the epoch is there: all parts are lost, not some.
        run("ROLLBACK")
        tables = ", ".join(part.committable.name for part in gone)
        return Outcome.LOST, f"staging tables {tables} of {sink.where} are gone"
    first = columns[ordered[0].committable.name]
    _check_columns(sink, table, epoch, first)
    _write(run, sink, table, epoch, ordered, list(first))
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


def _stages(parts: Parts) -> list[str]:
    return [quoted(part.committable.schema, part.committable.name) for part in parts]


def _drop(run: Run, parts: Parts) -> None:
    """Drop the tables of an epoch that the ledger has, if the server lets us; or a sweep does."""
    try:
        drop(run, _stages(parts))
    except Exception as error:
        if not is_database_error(error):
            raise


def _columns(run: Run, parts: Parts) -> dict[str, dict[str, bool]]:
    """The columns of each staging table, and whether the table is to keep them; none if gone."""
    found: dict[str, dict[str, bool]] = {part.committable.name: {} for part in parts}
    names = ", ".join(map(literal, found))
    schemas = ", ".join(sorted({literal(part.committable.schema) for part in parts}))
    rows = run(
        "SELECT c.relname, a.attname, d.description FROM pg_attribute a "
        "JOIN pg_class c ON c.oid = a.attrelid JOIN pg_namespace n ON n.oid = c.relnamespace "
        "LEFT JOIN pg_description d ON d.objoid = c.oid AND d.classoid = 'pg_class'::regclass "
        f"AND d.objsubid = a.attnum WHERE n.nspname IN ({schemas}) "
        f"AND c.relname IN ({names}) AND a.attnum > 0 AND NOT a.attisdropped ORDER BY a.attnum"
    )
    for name, column, comment in rows:
        found[name][column] = comment != NOT_KEPT
    return found


def _check_columns(
    sink: PostgresSink, table: Table, epoch: EpochId, columns: Mapping[str, bool]
) -> None:
    """A column that was there at prepare and is gone now takes its values with it."""
    gone = [name for name, kept in columns.items() if kept and name not in table.columns]
    if gone:
        raise CommitFailed(
            f"query {epoch.query.name!r}, epoch {epoch.number}: {sink.where} has no column "
            f"{gone[0]!r} any more, for which the rows have values. The epoch is decided and none "
            "of it is visible. Bring the column back, by ADD COLUMN or RENAME, and the next start "
            "finishes the epoch."
        )


def _write(
    run: Run,
    sink: PostgresSink,
    table: Table,
    epoch: EpochId,
    parts: Parts,
    columns: Sequence[str],
) -> None:
    stages = _stages(parts)
    name = parts[0].id.sink
    # Without deletes and an order, the database itself finds a key that comes twice.
    if sink.mode == "upsert" and (sink.order_by is not None or sink.deleted is not None):
        _refuse_duplicate(run, sink, epoch, name, union(stages, columns))
    for number, statement in enumerate(statements(sink, table, columns, stages)):
        try:
            run(statement)
        except Exception as error:
            if not is_database_error(error) or is_transient(error):
                raise
            run("ROLLBACK")
            if sink.mode == "upsert":
                _refuse_duplicate(run, sink, epoch, name, union(stages, columns))
            one = str(parts[number].id.partition) if sink.mode == "append" else ""
            every = ", ".join(str(part.id.partition) for part in parts)
            raise CommitFailed(
                f"query {epoch.query.name!r}, epoch {epoch.number}, part {one or every}: "
                f"{sink.where} refuses a row: {said(error, sink.dsn)}. The epoch is decided and "
                "none of it is visible. Remove the constraint or the row in its way, or widen the "
                f"column; the next start finishes the epoch. {way_out(name)}"
            ) from None


def _refuse_duplicate(run: Run, sink: PostgresSink, epoch: EpochId, name: str, source: str) -> None:
    found = find_duplicate(run, sink, source)
    if found:
        raise CommitFailed(
            f"query {epoch.query.name!r}, epoch {epoch.number}: {sink.where} is given {found}, by "
            "two of its parts. The epoch is decided and none of it is visible. "
            f"{advice(sink)} The next start finishes the epoch with the new setting; its rows are "
            f"staged as they were, so that another rows= helps later epochs only. {way_out(name)}"
        )
