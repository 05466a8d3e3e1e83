"""Commit of staged parts: all rows and the ledger row in one transaction, or nothing.

The table is read from before its columns are looked at: while this transaction goes on, nobody can
alter it then, and what was looked at is what is written to.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import Any

from beadline.errors import CommitFailed
from beadline.ids import EpochId
from beadline.points import reach
from beadline.sink import CommitResult, Outcome, Prepared, holds, way_out
from beadline.sinks.mysql.columns import DELETED, folded, keeps, quoted
from beadline.sinks.mysql.connection import Connection
from beadline.sinks.mysql.ledger import Ledger
from beadline.sinks.mysql.merge import Merge, twice_query, twice_said
from beadline.sinks.mysql.part import MySqlPart
from beadline.sinks.mysql.plan import ROW, Wish
from beadline.sinks.mysql.problems import BAD_VALUE, CONSTRAINT, code_of, library_errors, said
from beadline.sinks.mysql.server import Server
from beadline.sinks.mysql.table import read_table

_SHOWN_MAX = 3  # staging tables, where a person can look: values of rows are not for a log
Parts = Sequence[Prepared[MySqlPart]]
Columns = dict[str, dict[str, str]]  # of each staging table: its columns, and their use
_COLUMNS = """SELECT TABLE_NAME, COLUMN_NAME, COLUMN_COMMENT FROM information_schema.COLUMNS
    WHERE TABLE_SCHEMA = DATABASE() AND TABLE_NAME IN ({}) ORDER BY ORDINAL_POSITION"""
_TYPES = """SELECT TABLE_NAME, COLUMN_NAME, COLUMN_TYPE, CHARACTER_SET_NAME
    FROM information_schema.COLUMNS WHERE TABLE_SCHEMA = DATABASE() AND TABLE_NAME IN ({})"""


def commit_staged(
    server: Server, connection: Connection, epoch: EpochId, parts: Parts, wish: Wish, where: str
) -> CommitResult:
    """Closing the connection with the transaction open takes everything back."""
    parts = sorted(parts, key=lambda part: part.id.partition)
    ledger = Ledger(connection, epoch.query, wish.table, parts[0].id.sink)
    connection.run("START TRANSACTION")
    if holds(ledger.lock(epoch.number), epoch, where):
        connection.run("ROLLBACK")
        return CommitResult.all(parts, Outcome.ALREADY_COMMITTED)
    columns = _columns(connection, [part.committable.name for part in parts])
    damage = _damage(connection, parts, columns, count=wish.mode != "append")
    if not damage:
        _check_marks(epoch, columns, wish, where)
        _check_types(connection, epoch, parts, columns, wish, where)
        _check_twice(connection, epoch, parts, wish, where)
        merge = Merge(wish, _written(columns), _never_null(connection, wish))
        damage = _merge(server, connection, epoch, parts, merge, where)
    if damage:
        # The ledger is behind, so no part of the epoch is there: all are lost, not some.
        connection.run("ROLLBACK")
        return CommitResult(CommitResult.all(parts, Outcome.LOST).outcomes, damage)
    ledger.write(epoch, sum(part.committable.rows for part in parts))
    reach("ledger.before")
    connection.commit()
    reach("ledger.after")
    return CommitResult.all(parts, Outcome.COMMITTED)


def _columns(connection: Connection, stages: Sequence[str]) -> Columns:
    """The columns of staging tables, and what else than writing they are for; empty if gone."""
    marks = ", ".join(["%s"] * len(stages))
    found: Columns = defaultdict(dict)
    for stage, column, use in connection.ask(_COLUMNS.format(marks), stages):
        if column != ROW:
            found[str(stage)][str(column)] = str(use)
    return found


def _damage(connection: Connection, parts: Parts, columns: Columns, *, count: bool) -> str:
    """Say which parts are gone or not as they were staged; empty if none is."""
    problems = []
    for part in parts:
        if part.committable.name not in columns:
            problems.append(_gone(part, "is gone"))
        elif count:
            ((there,),) = connection.ask(f"SELECT COUNT(*) FROM {quoted(part.committable.name)}")
            if there != part.committable.rows:
                problems.append(_gone(part, f"has {there} rows of {part.committable.rows}"))
    return "; ".join(problems)


def _gone(part: Prepared[MySqlPart], what: str) -> str:
    return f"part {part.id.partition}: staging table {part.committable.name} {what}"


def _written(columns: Columns) -> tuple[str, ...]:
    """Everything that was staged to be written, whatever the table looks like now.

    A column that it has lost since is an error of the server's: its values must not vanish.
    """
    names = [name for staged in columns.values() for name, use in staged.items() if not use]
    return tuple(dict.fromkeys(names))


def _never_null(connection: Connection, wish: Wish) -> frozenset[str]:
    if wish.mode != "add":
        return frozenset()
    columns = connection.ask(f"SHOW COLUMNS FROM {quoted(wish.table)}")
    return frozenset(folded(str(name)) for name, _, nullable, *_ in columns if nullable == "NO")


def _check_marks(epoch: EpochId, columns: Columns, wish: Wish, where: str) -> None:
    """A row was staged as deleted by one setting: by another it would come back as a row."""
    now = [wish.deleted] if wish.deleted else []
    for staged in columns.values():
        then = [name for name, use in staged.items() if use == DELETED]
        if list(map(folded, then)) != list(map(folded, now)):
            was, is_ = (name[0] if name else None for name in (then, now))
            raise CommitFailed(
                f"query {epoch.query.name!r}, epoch {epoch.number}: {where}: it was staged with "
                f"deleted={was!r}, and now the sink has deleted={is_!r}. Start again with the "
                "former, which finishes the epoch. It is decided, and none of it is visible."
            )


def _check_types(
    connection: Connection, epoch: EpochId, parts: Parts, columns: Columns, wish: Wish, where: str
) -> None:
    """A column that was altered since a part was staged must still take its values as they are."""
    connection.ask(f"SELECT 1 FROM {quoted(wish.table)} LIMIT 0")  # from here on it stays as it is
    stages = {part.committable.name: part for part in parts}
    now = {column: type_ for _, column, type_ in _types(connection, [wish.table])}
    for stage, column, type_ in _types(connection, list(stages)):
        kept = any(folded(name) == column and not use for name, use in columns[stage].items())
        if not kept or now.get(column, type_) == type_:  # of a column that is gone the server tells
            continue
        was, is_ = (read_table(connection, name) for name in (stage, wish.table))
        assert was is not None
        assert is_ is not None
        if not keeps(was.columns[column], is_.columns[column]):
            raise CommitFailed(
                f"query {epoch.query.name!r}, epoch {epoch.number}: {where}: column {column!r} is "
                f"{is_.columns[column].declared} now, and was {was.columns[column].declared} when "
                f"part {stages[stage].id.partition} was staged: values could be changed by that, "
                "so nothing was written. The epoch is decided and none of it is visible. Alter "
                "the column back, and the next start finishes the epoch. "
                f"{way_out(parts[0].id.sink)}"
            )


def _types(connection: Connection, tables: Sequence[str]) -> list[tuple[str, str, tuple[str, str]]]:
    """Table, column and type of all columns of these tables."""
    marks = ", ".join(["%s"] * len(tables))
    return [
        (str(table), folded(str(column)), (_text(type_), _text(character_set)))
        for table, column, type_, character_set in connection.ask(_TYPES.format(marks), tables)
    ]


def _text(value: Any) -> str:
    return value.decode() if isinstance(value, bytes) else str(value)


def _check_twice(
    connection: Connection, epoch: EpochId, parts: Parts, wish: Wish, where: str
) -> None:
    """Two parts may hold one key, which neither of them could know."""
    if wish.mode != "upsert":
        return
    # Of one part too: it may have been staged with another order_by.
    found = connection.ask(twice_query([part.committable.name for part in parts], wish))
    if found:
        raise CommitFailed(
            f"query {epoch.query.name!r}, epoch {epoch.number}: {where}: "
            f"{twice_said(wish)}, and start again, which finishes the epoch with the "
            "rows as they were staged: another rows= helps later epochs only. "
            f"{way_out(parts[0].id.sink)} It is decided, and none of it is visible."
        )


def _merge(
    server: Server,
    connection: Connection,
    epoch: EpochId,
    parts: Parts,
    merge: Merge,
    where: str,
) -> str:
    """Run the statements; what is appended is counted by that, and a wrong count is returned."""
    by_stage = {part.committable.name: part for part in parts}
    for statement, stages in merge.statements(list(by_stage)):
        try:
            taken = connection.run(statement)
        except library_errors() as error:
            if code_of(error) not in CONSTRAINT | BAD_VALUE:
                raise
            which = ", ".join(str(by_stage[stage].id.partition) for stage in stages)
            raise CommitFailed(
                f"query {epoch.query.name!r}, epoch {epoch.number}, part {which}: {where} refuses "
                f"a row: {said(error, server.address)}. The epoch is decided and none of it is "
                f"visible; its rows are in {', '.join(stages[:_SHOWN_MAX])}. Remove the constraint "
                "or the row in its way; the next start finishes the epoch. "
                f"{way_out(parts[0].id.sink)}"
            ) from None
        part = by_stage[stages[0]]
        if merge.wish.mode == "append" and taken != part.committable.rows:
            return _gone(part, f"has {taken} rows of {part.committable.rows}")
    return ""
