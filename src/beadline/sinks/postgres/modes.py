"""The SQL of the modes: what an epoch's staged rows do to the table."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from beadline.sinks.postgres.table import PostgresTable
from beadline.sinks.shared.sql.dialect import listed, quoted
from beadline.sinks.shared.sql.modes import added, largest, summed, union
from beadline.sinks.shared.sql.settings import TableSettings


def statements(
    settings: TableSettings, table: PostgresTable, columns: Sequence[str], stages: Sequence[str]
) -> Iterator[str]:
    """Yield what writes these staged rows into the table; in append, one statement per part."""
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
