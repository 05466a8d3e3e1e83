"""Leftovers: finding the parts that are prepared and not visible, and throwing them away."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator

from beadline.ids import PartId, QueryId
from beadline.sink import Prepared
from beadline.sinks.postgres.connect import Run, is_database_error, sql_state
from beadline.sinks.postgres.names import literal, quoted
from beadline.sinks.postgres.part import PREPARED, STAGE_PREFIX, STAGED, PostgresPart, part_of

UNKNOWN_OBJECT = "42704"
_BUSY = "55000"
_BUSY_TIMEOUT_S = 10.0
_BUSY_PAUSE_S = 0.05


def discard(run: Run, parts: Iterable[PostgresPart]) -> None:
    """Drop and roll back; what is not there any more is no error."""
    for part in parts:
        if part.way == STAGED:
            run(f"DROP TABLE IF EXISTS {quoted(part.schema, part.name)}")
        else:
            _roll_back(run, part.name)


def _roll_back(run: Run, gid: str) -> None:
    deadline_s = time.monotonic() + _BUSY_TIMEOUT_S
    while True:
        try:
            run(f"ROLLBACK PREPARED {literal(gid)}")
            return
        except Exception as error:
            state = sql_state(error) if is_database_error(error) else None
            if state == UNKNOWN_OBJECT:
                return
            # Another sweeper may have it in its hands at this moment.
            if state != _BUSY or time.monotonic() > deadline_s:
                raise
        time.sleep(_BUSY_PAUSE_S)


def in_doubt(run: Run, schema: str | None, query: QueryId) -> Iterator[Prepared[PostgresPart]]:
    """Yield the parts of this query, staged in this schema or prepared in this database."""
    here = "" if schema is None else f" AND n.nspname = {literal(schema)}"
    tables = run(
        "SELECT n.nspname, c.relname, d.description FROM pg_class c "
        "JOIN pg_namespace n ON n.oid = c.relnamespace "
        "JOIN pg_description d ON d.objoid = c.oid AND d.classoid = 'pg_class'::regclass "
        f"WHERE d.objsubid = 0 AND c.relkind = 'r' AND starts_with(c.relname, "
        f"{literal(STAGE_PREFIX)}){here}"
    )
    for found, name, comment in tables:
        id_ = PartId.parse(comment)
        if id_ is not None and id_.belongs_to(query):
            yield Prepared(id_, 0, PostgresPart(STAGED, found, name))
    gids = run("SELECT gid FROM pg_prepared_xacts WHERE database = current_database()")
    for (gid,) in gids:
        id_ = part_of(gid, query)
        if id_ is not None:
            yield Prepared(id_, 0, PostgresPart(PREPARED, schema or "", gid))
