"""The SQL of the modes: what an epoch's staged rows do to the table.

The same key twice in an epoch is settled by ``order_by``, or is an error: never by chance. Within
a part that is found while nothing is decided; across parts only when all are there, at commit.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from beadline.errors import PrepareFailed
from beadline.ids import PartId
from beadline.sinks.postgres.connect import Run
from beadline.sinks.postgres.names import listed, quoted
from beadline.sinks.postgres.table import Table

if TYPE_CHECKING:
    from beadline.sinks.postgres.sink import PostgresSink


def duplicate_in_part(run: Run, sink: PostgresSink, id_: PartId, stage: str) -> None:
    """Raise if a part itself holds a key twice and nothing settles which row counts."""
    found = find_duplicate(run, sink, f"TABLE {stage}")
    if found:
        raise PrepareFailed(
            f"query {id_.query!r}, epoch {id_.epoch}, part {id_.partition}: {sink.where} is given "
            f"{found}. Nothing of the epoch was decided. {advice(sink)} Or leave one in rows=."
        )


def advice(sink: PostgresSink) -> str:
    """Say what settles a key that comes twice, also of rows that are staged already."""
    if sink.order_by is None:
        return "Say which row counts with order_by=, the largest wins."
    return f"Order by a column in which no two rows of a key are the same, not {sink.order_by!r}."


def find_duplicate(run: Run, sink: PostgresSink, source: str) -> str:
    """Say that a key comes twice and nothing settles it; empty if none does.

    Not which: values of rows are not for a log.
    """
    keys = listed(sink.key)
    if sink.order_by is None:
        select = f"SELECT {keys} FROM ({source}) rows"
        what = "twice"
    else:
        rank = f"rank() OVER (PARTITION BY {keys} ORDER BY {_newest_first(sink)})"
        ranked = f"SELECT {keys}, {rank} AS _beadline_rank FROM ({source}) rows"
        select = f"SELECT {keys} FROM ({ranked}) ranked WHERE _beadline_rank = 1"
        what = f"twice with the same {sink.order_by!r}"
    found = run(f"SELECT 1 FROM ({select}) twice GROUP BY {keys} HAVING count(*) > 1 LIMIT 1")
    return f"a key ({', '.join(sink.key)}) {what} in one epoch" if found else ""


def _newest_first(sink: PostgresSink) -> str:
    assert sink.order_by is not None
    return f"{quoted(sink.order_by)} DESC NULLS LAST"


def union(stages: Sequence[str], columns: Sequence[str]) -> str:
    """Return a query for the rows of all these tables."""
    return " UNION ALL ".join(f"SELECT {listed(columns)} FROM {stage}" for stage in stages)


def statements(
    sink: PostgresSink, table: Table, columns: Sequence[str], stages: Sequence[str]
) -> Iterator[str]:
    """Yield what writes these staged rows into the table; in append, one statement per part."""
    kept = [name for name in columns if name in table.columns]
    insert = f"INSERT INTO {table.target} AS _beadline_target ({listed(kept)})"
    if sink.mode == "append":
        yield from (f"{insert} SELECT {listed(kept)} FROM {stage}" for stage in stages)
        return
    conflict = f"ON CONFLICT ({listed(sink.key)}) DO"
    values = [name for name in kept if name not in sink.key]
    if sink.mode == "add":
        sums = [_sum(name, table) for name in values]
        chosen = ", ".join([listed(sink.key), *sums])
        into = f"INSERT INTO {table.target} AS _beadline_target ({listed([*sink.key, *values])})"
        changes = ", ".join(_added(quoted(name)) for name in values)
        yield (
            f"{into} SELECT {chosen} FROM ({union(stages, columns)}) rows "
            f"GROUP BY {listed(sink.key)} {conflict} UPDATE SET {changes}"
        )
        return
    rows = _winners(sink, union(stages, columns))
    if sink.deleted is not None:
        deleted = quoted(sink.deleted)
        same = " AND ".join(
            f"_beadline_target.{quoted(name)} = gone.{quoted(name)}" for name in sink.key
        )
        yield (
            f"DELETE FROM {table.target} AS _beadline_target USING ({rows}) gone "
            f"WHERE gone.{deleted} AND {same}"
        )
        rows = f"SELECT * FROM ({rows}) winners WHERE {deleted} IS NOT TRUE"
    changes = ", ".join(f"{quoted(name)} = excluded.{quoted(name)}" for name in values)
    act = f"UPDATE SET {changes}" if changes else "NOTHING"
    yield f"{insert} SELECT {listed(kept)} FROM ({rows}) winners {conflict} {act}"


def _winners(sink: PostgresSink, source: str) -> str:
    if sink.order_by is None:
        return source
    keys = listed(sink.key)
    order = f"ORDER BY {keys}, {_newest_first(sink)}"
    return f"SELECT DISTINCT ON ({keys}) * FROM ({source}) rows {order}"


def _sum(name: str, table: Table) -> str:
    total = f"sum({quoted(name)})"
    # Nulls add nothing, also where the table takes none.
    return f"coalesce({total}, 0)" if table.columns[name].not_null else total


def _added(column: str) -> str:
    # A sum with null is null, which would wipe out the total: then the one that is there.
    total = f"_beadline_target.{column} + excluded.{column}"
    return f"{column} = coalesce({total}, _beadline_target.{column}, excluded.{column})"
