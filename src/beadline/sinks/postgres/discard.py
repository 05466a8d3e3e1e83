"""Leftovers: finding the parts that are prepared and not visible, and discarding them.

Staging tables go a few at a time, because the server keeps about six locks for each until the
transaction ends, in a table of locks of a fixed size. One of another user may stay, as it holds
nothing up. A prepared transaction of another user does, so that one is an error, which says who can
end it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from beadline.sink import CommitFailed, PartId, Prepared, QueryId, Verdict, retry
from beadline.sinks.postgres.connect import RunStatement, literal
from beadline.sinks.postgres.part import PREPARED, STAGE_PREFIX, STAGED, PostgresPart, part_of
from beadline.sinks.postgres.problems import (
    IN_USE,
    INSUFFICIENT_PRIVILEGE,
    LOCK_NOT_AVAILABLE,
    UNKNOWN_OBJECT,
    is_database_error,
    sql_state,
)
from beadline.sinks.shared.sql.dialect import quoted
from beadline.sinks.shared.sql.stages import WhyKept, drop_stages

DROPPED_AT_ONCE = 50
_LOCK_TIMEOUT_MS = 100
_BUSY_TIMEOUT_S = 10.0


def discard(run: RunStatement, parts: Iterable[PostgresPart]) -> None:
    """Drop and roll back; what is not there any more is no error."""
    tables, denied = [], []
    for part in parts:
        if part.how == STAGED:
            tables.append(quoted(part.schema, part.name))
        elif not _rolled_back(run, part.name):
            denied.append(part.name)
    drop(run, tables)
    if denied:
        raise _not_ours(run, denied)


def drop(run: RunStatement, tables: Sequence[str]) -> None:
    """Drop staging tables, those that exist and are not being read."""

    def drop_all(some: Sequence[str]) -> WhyKept | None:
        try:
            run(
                f"BEGIN; SET LOCAL lock_timeout = {_LOCK_TIMEOUT_MS}; "
                f"DROP TABLE IF EXISTS {', '.join(some)}; COMMIT"
            )
        except Exception as error:
            state = sql_state(error) if is_database_error(error) else None
            if state not in (LOCK_NOT_AVAILABLE, INSUFFICIENT_PRIVILEGE):
                raise
            run("ROLLBACK")
            return "denied" if state == INSUFFICIENT_PRIVILEGE else "locked"
        return None

    drop_stages(tables, drop_all, DROPPED_AT_ONCE)


def drop_within(run: RunStatement, tables: Sequence[str]) -> None:
    """Drop a few staging tables in the current transaction, just before its end."""
    try:
        run(
            f"SAVEPOINT dropping; SET LOCAL lock_timeout = {_LOCK_TIMEOUT_MS}; "
            f"DROP TABLE {', '.join(tables)}"
        )
    except Exception as error:
        if not is_database_error(error) or sql_state(error) != LOCK_NOT_AVAILABLE:
            raise
        run("ROLLBACK TO SAVEPOINT dropping")


def _rolled_back(run: RunStatement, gid: str) -> bool:
    """Roll back a prepared transaction that is there; False if this user may not."""

    def act() -> bool:
        try:
            run(f"ROLLBACK PREPARED {literal(gid)}")
        except Exception as error:
            state = sql_state(error) if is_database_error(error) else None
            if state not in (UNKNOWN_OBJECT, INSUFFICIENT_PRIVILEGE):
                raise
            return state != INSUFFICIENT_PRIVILEGE
        return True

    # Another sweeper may be at work on it at this moment.
    return retry(act, _judge_roll_back, {Verdict.BUSY: _BUSY_TIMEOUT_S})


def _not_ours(run: RunStatement, gids: Sequence[str]) -> CommitFailed:
    """Return the error: transactions of another user are in the way, and who can end them."""
    listed = ", ".join(map(literal, gids))
    found = run(
        "SELECT gid, owner, current_user, current_database() FROM pg_prepared_xacts "
        f"WHERE gid IN ({listed}) ORDER BY gid"
    )
    whose = "; ".join(f"ROLLBACK PREPARED {literal(gid)} as {owner!r}" for gid, owner, *_ in found)
    user, database = found[0][2:] if found else ("this user", "its database")
    return CommitFailed(
        f"{len(gids)} prepared transaction(s) that a crash left belong to another user than "
        f"{user!r}, who may not roll them back. No decision names them and none of their rows "
        "show, but they hold locks. In database "
        f"{database!r} run {whose} (or as a superuser), and start again."
    )


def _judge_roll_back(error: Exception) -> Verdict:
    busy = is_database_error(error) and sql_state(error) == IN_USE
    return Verdict.BUSY if busy else Verdict.FINAL


def in_doubt(run: RunStatement, query: QueryId) -> Iterator[Prepared[PostgresPart]]:
    """Yield the parts of this query in this database, whatever sink and schema they were for."""
    tables = run(
        "SELECT n.nspname, c.relname, d.description FROM pg_class c "
        "JOIN pg_namespace n ON n.oid = c.relnamespace "
        "JOIN pg_description d ON d.objoid = c.oid AND d.classoid = 'pg_class'::regclass "
        "WHERE d.objsubid = 0 AND c.relkind = 'r' "
        f"AND starts_with(c.relname, {literal(STAGE_PREFIX)})"
    )
    for schema, name, comment in tables:
        id_ = PartId.parse(comment)
        if id_ is not None and id_.belongs_to(query):
            yield Prepared(id_, 0, PostgresPart(STAGED, schema, name))
    gids = run("SELECT gid FROM pg_prepared_xacts WHERE database = current_database()")
    for (gid,) in gids:
        id_ = part_of(gid, query)
        if id_ is not None:
            yield Prepared(id_, 0, PostgresPart(PREPARED, "", gid))
