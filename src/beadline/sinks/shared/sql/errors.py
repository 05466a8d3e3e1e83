"""The errors of a decided epoch that a table does not take, and of a key that comes twice.

They are worded alike for every database: which query, epoch and part, that nothing of it is
visible, where its rows are, and how to resolve it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Protocol

from beadline.sink import (
    CommitFailed,
    EpochId,
    PartId,
    Prepared,
    PrepareFailed,
    check_settings,
    way_out,
)
from beadline.sinks.shared.sql.modes import key_twice, key_twice_advice
from beadline.sinks.shared.sql.settings import TableSettings

Parts = Sequence[Prepared[Any]]


class HasColumns(Protocol):
    """What was read of a table."""

    @property
    def columns(self) -> Mapping[str, Any]:
        """Its columns, by folded name."""


_SHOWN_MAX = 3


def key_twice_in_part(settings: TableSettings, id_: PartId) -> PrepareFailed:
    """A part itself holds a key twice, and nothing says which row counts."""
    return PrepareFailed(
        f"query {id_.query!r}, epoch {id_.epoch}, part {id_.partition}: {settings.where} is given "
        f"{key_twice(settings)}. Nothing of the epoch was decided. {key_twice_advice(settings)} "
        "Or keep only one of them in rows=."
    )


def key_twice_in_epoch(
    settings: TableSettings, epoch: EpochId, sink: str, tables: Sequence[str]
) -> CommitFailed:
    """Two parts hold one key, which neither of them could know."""
    return CommitFailed(
        f"query {epoch.query.name!r}, epoch {epoch.number}: {settings.where} is given "
        f"{key_twice(settings)}, by two of its parts. The epoch is decided and none of it is "
        f"visible; its rows are in {_shown(tables)}. {key_twice_advice(settings)} The next start "
        "finishes the epoch with the new setting; its rows are staged already, so that "
        f"another rows= helps later epochs only. {way_out(sink, epoch.number)}"
    )


def row_refused(
    settings: TableSettings, epoch: EpochId, parts: Parts, tables: Sequence[str], said: str
) -> CommitFailed:
    """The table does not take a row: a constraint that only it knows, or one added since."""
    every = ", ".join(str(part.id.partition) for part in parts)
    return CommitFailed(
        f"query {epoch.query.name!r}, epoch {epoch.number}, part {every}: {settings.where} refuses "
        f"a row: {said}. The epoch is decided and none of it is visible; its rows are in "
        f"{_shown(tables)}. Remove the constraint or the conflicting row, or widen the column; the "
        f"next start finishes the epoch. {way_out(parts[0].id.sink, epoch.number)}"
    )


def check_altered(
    settings: TableSettings,
    epoch: EpochId,
    id_: PartId,
    altered: Iterable[str],
    was: HasColumns | None,
    is_: HasColumns | None,
    keeps: Callable[[Any, Any], bool],
) -> None:
    """Raise if a column was altered since a part was staged, so that values could be changed.

    ``was`` is its staging table, ``is_`` the target, ``altered`` the columns that differ in them.
    """
    assert was is not None
    assert is_ is not None
    for name in altered:
        before, after = was.columns[name], is_.columns[name]
        if not keeps(before, after):
            raise CommitFailed(
                f"query {epoch.query.name!r}, epoch {epoch.number}: {settings.where}: column "
                f"{name!r} is {after.declared} now, and was {before.declared} when part "
                f"{id_.partition} was staged: values could be changed by that, so nothing was "
                "written. The epoch is decided and none of it is visible. Alter the column back, "
                f"and the next start finishes the epoch. {way_out(id_.sink, epoch.number)}"
            )


def check_staged(settings: TableSettings, parts: Parts) -> None:
    """Raise if parts were staged under other settings; those of an older version do not say."""
    for part in parts:
        staged = part.committable
        if staged.mode:
            before = replace(
                settings, mode=staged.mode, key=staged.key, deleted=staged.deleted
            ).staged
            check_settings(part.id, settings.where, before, settings.staged)


def column_gone(settings: TableSettings, epoch: EpochId, id_: PartId, column: str) -> CommitFailed:
    """A column was dropped since a part was staged, and the rows have values for it."""
    return CommitFailed(
        f"query {epoch.query.name!r}, epoch {epoch.number}: {settings.where} no longer has column "
        f"{column!r}, for which the rows have values. The epoch is decided and none "
        "of it is visible. Restore the column, by ADD COLUMN or RENAME, and the next start "
        f"finishes the epoch. {way_out(id_.sink, epoch.number)}"
    )


def _shown(tables: Sequence[str]) -> str:
    """Name the staging tables, where a person can look: values of rows do not belong in a log."""
    more = f" and {len(tables) - _SHOWN_MAX} more" if len(tables) > _SHOWN_MAX else ""
    return ", ".join(tables[:_SHOWN_MAX]) + more
