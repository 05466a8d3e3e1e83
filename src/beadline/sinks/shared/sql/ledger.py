"""The ledger of a table: what its rows say of an epoch, whatever database they are read from.

Each database reads its own rows, in the transaction that writes; what they mean is the same. A row
of another incarnation comes first. Of a sink that has written nothing under its name, the rows of
the query's other sinks count: it may have been called otherwise, and what is lost they have lost
together. Of the epoch that is asked about, though, others' rows say nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from beadline.sink import EpochId, QueryId, Seen, holds


@dataclass(frozen=True)
class LedgerRows:
    """The rows of a query's name for one table, as sink and what it has seen, the newest first."""

    query: QueryId
    rows: Sequence[tuple[str, Seen]]

    def last_seen(self, *sinks: str) -> Seen | None:
        """Return what is there; ``sinks`` are the names of the rows of the sink that asks."""
        return self._stranger or self._newest(sinks)

    def seen(self, epoch: int, sink: str, *sinks: str) -> Seen | None:
        """Return what is there of an epoch, by this row, and of the ones before, by all rows."""
        own = next((seen for name, seen in self._ours if name == sink), None)
        if self._stranger is not None or (own is not None and own.epoch >= epoch):
            return self._stranger or own
        held = self._newest((sink, *sinks))
        return None if held is None else replace(held, epoch=min(held.epoch, epoch - 1))

    def hold(self, epoch: EpochId, where: str, sink: str, *sinks: str) -> bool:
        """Whether the epoch is there; raise if it must not be written here."""
        return holds(self.seen(epoch.number, sink, *sinks), epoch, where)

    @property
    def _ours(self) -> list[tuple[str, Seen]]:
        mine = self.query.incarnation
        return [(sink, seen) for sink, seen in self.rows if seen.incarnation == mine]

    @property
    def _stranger(self) -> Seen | None:
        mine = self.query.incarnation
        return next((seen for _, seen in self.rows if seen.incarnation != mine), None)

    def _newest(self, sinks: Sequence[str]) -> Seen | None:
        own = [seen for sink, seen in self._ours if sink in sinks]
        return next(iter(own or [seen for _, seen in self._ours]), None)
