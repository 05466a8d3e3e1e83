"""Commit of staged parts: the epoch's rows and its ledger row in one transaction, or nothing.

The ledger row is locked first, so two drivers that commit at once come one after the other, and the
second one finds the epoch in the ledger. Then the table is locked against being altered, as the
INSERT would do, so that what is looked at is what is written to.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from beadline.errors import CommitFailed
from beadline.ids import EpochId
from beadline.points import reach
from beadline.sink import Outcome, Prepared, way_out
from beadline.sinks.postgres.columns import keeps
from beadline.sinks.postgres.connect import Run
from beadline.sinks.postgres.discard import DROPPED_AT_ONCE, drop, drop_within
from beadline.sinks.postgres.ledger import Ledger
from beadline.sinks.postgres.names import literal, quoted
from beadline.sinks.postgres.part import NOT_KEPT, PostgresPart
from beadline.sinks.postgres.problems import is_database_error, is_transient, said
from beadline.sinks.postgres.settle import advice, find_duplicate, statements, union
from beadline.sinks.postgres.table import Table, read_table

if TYPE_CHECKING:
    from beadline.sinks.postgres.sink import PostgresSink

Parts = Sequence[Prepared[PostgresPart]]


@dataclass(frozen=True)
class _Column:
    """A column of a staging table or of the target: its type, and whether the target keeps it."""

    type: tuple[int, int, int]
    kept: bool


_Columns = dict[str, _Column]
_SHOWN_MAX = 3


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
    run(f"LOCK TABLE ONLY {table.target} IN ROW EXCLUSIVE MODE")
    ordered = sorted(parts, key=lambda part: part.id.partition)
    columns, now = _columns(run, ordered, table)
    gone = [part for part in ordered if not columns[part.committable.name]]
    if gone:
        # The ledger is behind, so nothing of the epoch is there: all parts are lost, not some.
        run("ROLLBACK")
        tables = ", ".join(part.committable.name for part in gone)
        return Outcome.LOST, f"staging tables {tables} of {sink.where} are gone"
    for part in ordered:
        _check_columns(run, sink, table, epoch, part, columns[part.committable.name], now)
    first = columns[ordered[0].committable.name]
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


def _columns(run: Run, parts: Parts, table: Table) -> tuple[dict[str, _Columns], _Columns]:
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
    run: Run,
    sink: PostgresSink,
    table: Table,
    epoch: EpochId,
    part: Prepared[PostgresPart],
    staged: _Columns,
    now: _Columns,
) -> None:
    """Raise if a column was dropped since the part was staged, or altered so that values change."""
    kept = [name for name, column in staged.items() if column.kept]
    what = f"query {epoch.query.name!r}, epoch {epoch.number}: {sink.where}"
    whole = "The epoch is decided and none of it is visible."
    gone = [name for name in kept if name not in now]
    if gone:
        raise CommitFailed(
            f"{what} has no column {gone[0]!r} any more, for which the rows have values. {whole} "
            "Bring the column back, by ADD COLUMN or RENAME, and the next start finishes the epoch."
        )
    altered = [name for name in kept if staged[name].type != now[name].type]
    if not altered:
        return
    was = read_table(run, part.committable.schema, part.committable.name)
    is_ = read_table(run, table.schema, table.name)
    assert was is not None
    assert is_ is not None
    for name in altered:
        if not keeps(was.columns[name], is_.columns[name]):
            raise CommitFailed(
                f"{what}: column {name!r} is {is_.columns[name].declared} now, and was "
                f"{was.columns[name].declared} when part {part.id.partition} was staged: values "
                f"could be changed by that, so nothing was written. {whole} Alter the column back, "
                f"and the next start finishes the epoch. {way_out(part.id.sink)}"
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
        _refuse_duplicate(run, sink, epoch, parts, union(stages, columns))
    for number, statement in enumerate(statements(sink, table, columns, stages)):
        try:
            run(statement)
        except Exception as error:
            if not is_database_error(error) or is_transient(error):
                raise
            run("ROLLBACK")
            if sink.mode == "upsert":
                _refuse_duplicate(run, sink, epoch, parts, union(stages, columns))
            at_fault = parts[number : number + 1] if sink.mode == "append" else parts
            every = ", ".join(str(part.id.partition) for part in at_fault)
            raise CommitFailed(
                f"query {epoch.query.name!r}, epoch {epoch.number}, part {every}: "
                f"{sink.where} refuses a row: {said(error, sink.dsn)}. The epoch is decided and "
                f"none of it is visible; its rows are in {_shown(at_fault)}. Remove the constraint "
                "or the row in its way, or widen the column; the next start finishes the epoch. "
                f"{way_out(name)}"
            ) from None


def _shown(parts: Parts) -> str:
    """Name the staging tables, where a person can look: values of rows are not for a log."""
    stages = _stages(parts)
    more = f" and {len(stages) - _SHOWN_MAX} more" if len(stages) > _SHOWN_MAX else ""
    return ", ".join(stages[:_SHOWN_MAX]) + more


def _refuse_duplicate(
    run: Run, sink: PostgresSink, epoch: EpochId, parts: Parts, source: str
) -> None:
    found = find_duplicate(run, sink, source)
    if found:
        raise CommitFailed(
            f"query {epoch.query.name!r}, epoch {epoch.number}: {sink.where} is given {found}, by "
            "two of its parts. The epoch is decided and none of it is visible; its rows are in "
            f"{_shown(parts)}. {advice(sink)} The next start finishes the epoch with the new "
            "setting; its rows are staged as they were, so that another rows= helps later epochs "
            f"only. {way_out(parts[0].id.sink)}"
        )
