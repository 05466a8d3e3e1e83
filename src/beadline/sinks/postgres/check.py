"""What ``PostgresSink`` asks before the first row: is the server there, does the table fit?

Nothing is made: a start that is refused leaves no trace.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from beadline.sink import LEDGER, Capabilities, Guarantee, QueryId, retry, starting
from beadline.sinks.postgres.connect import PostgresAddress, RunStatement, literal
from beadline.sinks.postgres.ledger import MARKERS
from beadline.sinks.postgres.plan import PostgresSettings, plan_of, why_not_prepared, why_staged
from beadline.sinks.postgres.problems import is_database_error, said, verdict
from beadline.sinks.postgres.table import PostgresTable, read_table
from beadline.sinks.shared.sql.dialect import quoted

if TYPE_CHECKING:
    import pyarrow as pa

_OLDEST = 120_000
_NEEDS = {
    "append": ("INSERT",),
    "upsert": ("INSERT", "SELECT", "UPDATE"),
    "add": ("INSERT", "SELECT", "UPDATE"),
}


def check(
    server: PostgresAddress, settings: PostgresSettings, schema: pa.Schema, query: QueryId
) -> Capabilities:
    """Return what the sink promises on this server and table, or raise with what to do."""

    def once() -> Capabilities:
        with server.connected() as run:
            _check_server(run, settings)
            found = read_table(run, settings.schema, settings.table)
            table, _plan = plan_of(settings, schema, found)
            _check_privileges(run, settings, table)
            _check_published(run, settings, table)
            return _capabilities(run, settings, table, query)

    try:
        return retry(once, verdict, starting(server.timeout_s))
    except Exception as error:
        if not is_database_error(error):
            raise
        raise settings.bad(
            f"it cannot be used: {said(error, server.dsn)}. Is the server up, and are "
            f"address, user and password right?"
        ) from None


def _check_server(run: RunStatement, settings: PostgresSettings) -> None:
    ((version, standby, read_only),) = run(
        "SELECT current_setting('server_version_num')::int, pg_is_in_recovery(), "
        "current_setting('transaction_read_only')"
    )
    if version < _OLDEST:
        raise settings.bad("PostgreSQL 12 is the oldest that can be used.")
    if standby or read_only == "on":
        raise settings.bad(
            "the server is a standby or read only. Give the primary, or "
            "target_session_attrs=read-write in the dsn."
        )


def _check_privileges(run: RunStatement, settings: PostgresSettings, table: PostgresTable) -> None:
    needs = {*_NEEDS[settings.mode], *(("DELETE",) if settings.deleted is not None else ())}
    missing = sorted(name for name in needs if not table.privileges[name])
    ((user,),) = run("SELECT current_user::text")
    if missing:
        raise settings.bad(
            f"user {user!r} may not {', '.join(missing)}. Run GRANT "
            f"{', '.join(missing)} ON {table.target} TO {quoted(user)}."
        )
    kept = [quoted(table.schema, name) for name in (LEDGER, MARKERS)]
    made = run(f"SELECT {', '.join(f'to_regclass({literal(name)})' for name in kept)}")[0]
    # Where slots for prepared transactions run out, parts are staged; unless that is not wanted.
    if not table.privileges["CREATE"] and (settings.how != "prepared" or None in made):
        raise settings.bad(
            f"user {user!r} may not make tables in schema {table.schema!r}, where "
            f"the ledger and staged rows are kept. Run GRANT CREATE ON SCHEMA "
            f"{quoted(table.schema)} TO {quoted(user)}."
        )
    for name, oid in zip(kept, made, strict=True):
        rights = "SELECT, INSERT, UPDATE, DELETE"
        each = " AND ".join(
            f"has_table_privilege({literal(name)}, {literal(right)})"
            for right in rights.split(", ")
        )
        if oid is not None and run(f"SELECT {each}") != [(True,)]:
            raise settings.bad(
                f"user {user!r} may not use {name}, which another user made. Run "
                f"GRANT {rights} ON {name} TO {quoted(user)}."
            )


def _check_published(run: RunStatement, settings: PostgresSettings, table: PostgresTable) -> None:
    """Subscribers must know a row that is changed or deleted, or the server refuses the change."""
    if settings.mode == "append":
        return
    unknown = run(_UNKNOWN_TO_SUBSCRIBERS.replace("%TABLE%", literal(table.target)))
    for publication, name in unknown:
        raise settings.bad(
            f"publication {publication!r} publishes changes, and rows of {name} have "
            "no identity for its subscribers. Give it a primary key, or run ALTER TABLE "
            f"{name} REPLICA IDENTITY FULL."
        )


# A table's identity is its primary key unless something else is said; partitions have their own.
_UNKNOWN_TO_SUBSCRIBERS = """
WITH tree AS (SELECT c.* FROM pg_class c WHERE c.oid IN (
    SELECT %TABLE%::regclass::oid UNION ALL SELECT relid FROM pg_partition_tree(%TABLE%::regclass)))
SELECT p.pubname, bare.oid::regclass::text
FROM pg_publication p JOIN pg_publication_tables t ON t.pubname = p.pubname
JOIN tree ON tree.relname = t.tablename AND tree.relnamespace = to_regnamespace(
    quote_ident(t.schemaname))::oid
CROSS JOIN (SELECT c.oid FROM tree c WHERE c.relkind = 'r' AND c.relreplident <> 'f'
    AND NOT EXISTS (SELECT FROM pg_index i WHERE i.indrelid = c.oid AND CASE c.relreplident
    WHEN 'd' THEN i.indisprimary AND i.indimmediate WHEN 'i' THEN i.indisreplident END)) bare
WHERE p.pubupdate OR p.pubdelete LIMIT 1"""


def _capabilities(
    run: RunStatement, settings: PostgresSettings, table: PostgresTable, query: QueryId
) -> Capabilities:
    reason = why_staged(settings, table)
    if settings.how == "prepared" and reason is not None:
        why = why_not_prepared(settings, table)
        raise settings.bad(f"it cannot take prepared transactions: {why}.")
    if reason is None:
        sentence = (
            "Each row shows once: every part is a prepared transaction, committed after the "
            "decision."
        )
    else:
        sentence = (
            "Each row takes effect once: an epoch's rows and its ledger row are one transaction "
            f"(staged, because {reason})."
        )
    if run("SELECT current_setting('fsync')") == [("off",)]:
        sentence += " The server runs with fsync=off: a power cut may lose what it has confirmed."
    for (name,) in run("SELECT pubname FROM pg_publication WHERE puballtables LIMIT 1"):
        sentence += (
            f" Publication {name!r} publishes all tables, including Beadline's own, which come and "
            "go: a subscriber that lacks one of them stops. Name the tables in it instead."
        )
    return Capabilities(
        guarantee=Guarantee.EXACTLY_ONCE,
        sentence=sentence,
        target=f"postgres:{_database(run)}/{table.target}",
        atomic=reason is not None,
        holds_up=reason is None,
        start_over=_start_over(table, query),
        remembers=True,
    )


def _start_over(table: PostgresTable, query: QueryId) -> str:
    forget = "; ".join(
        f"DELETE FROM {quoted(table.schema, name)} WHERE query = {literal(query.name)}"
        for name in (LEDGER, MARKERS)
    )
    prepared = (
        "SELECT format('ROLLBACK PREPARED %L', gid) FROM pg_prepared_xacts WHERE database = "
        f"current_database() AND starts_with(gid, {literal(f'beadline~{query.name}~')})"
    )
    return f"run what this lists: {prepared}; empty the table; and run {forget}"


def _database(run: RunStatement) -> str:
    """What stays the same wherever the server moves: its system identifier and the database."""
    ((name, oid, may),) = run(
        "SELECT current_database()::text, (SELECT oid::bigint FROM pg_database "
        "WHERE datname = current_database()), "
        "has_function_privilege('pg_control_system()', 'EXECUTE')"
    )
    if may:
        ((identifier,),) = run("SELECT system_identifier::text FROM pg_control_system()")
        return f"{identifier}/{name}"
    return f"database-{oid}/{name}"
