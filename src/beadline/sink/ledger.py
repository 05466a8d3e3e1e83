"""The ledger: what a target itself remembers of a query, so that a late commit has no effect.

A sink that writes at commit time keeps one row per query in the same system, and reads and writes
it in the same transaction as the rows (rule 10). Each sink reads its own rows; what they mean is
the same everywhere, and is said here.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from beadline.errors import NEW_QUERY, TargetRestored, WrongCheckpoint
from beadline.ids import EpochId, QueryId
from beadline.sink.interface import Seen

LEDGER = "_beadline_ledger"


def holds(seen: Seen | None, epoch: EpochId, target: str) -> bool:
    """Whether the ledger says that this epoch is already there; raise if it is another query's.

    Epochs are committed in order, so a ledger at a newer epoch holds this one too. A ledger that is
    behind the previous epoch was restored from an older backup, which is an error too (rule 25).
    """
    if seen is None:
        check_previous(epoch, None)
        return False
    if seen.incarnation != epoch.query.incarnation:
        raise WrongCheckpoint(
            f"query {epoch.query.name!r}, epoch {epoch.number}: {target} holds epoch {seen.epoch} "
            "of another query of that name, born with another checkpoint. Whose rows belong there "
            "cannot be known, so nothing was written. Stop one of the two. If both are one query, "
            f"give it its old checkpoint back, and every row stays right. {NEW_QUERY}"
        )
    if seen.epoch >= epoch.number:
        return True
    check_previous(epoch, seen.epoch)
    return False


def check_previous(epoch: EpochId, held: int | None) -> None:
    """Raise if a target holds less than it has acknowledged (rule 25).

    ``held`` is the newest epoch of this incarnation that the target itself remembers. Call it in
    the transaction that writes, before it writes: a check at the start alone would miss a lagging
    replica that takes over while the query runs.
    """
    if epoch.previous < 0 or (held is not None and held >= epoch.previous):
        return
    has = "nothing of this query" if held is None else f"epoch {held}"
    restored = TargetRestored(
        f"query {epoch.query.name!r}, epoch {epoch.number}: the target has acknowledged epoch "
        f"{epoch.previous} before and now holds {has}. It lost what it had acknowledged: it was "
        "restored from an older backup, or a replica took over that had not received it. Nothing "
        "of this epoch was written there. Restore the target, then start again: this epoch is "
        "decided, and the next start finishes it"
    )
    restored.held = -1 if held is None else held
    raise restored


@dataclass(frozen=True)
class LedgerRows:
    """The rows of a query's name for one target, in any order: the sink, and what it has seen.

    A row of another incarnation comes first. For a sink that has written nothing under its name,
    the rows of the query's other sinks count: it may have had another name, and a target that is
    restored from a backup loses the rows of all of them together. They say nothing, though, of the
    epoch that is asked about.
    """

    query: QueryId
    rows: Sequence[tuple[str, Seen]]

    def last_seen(self, *sinks: str) -> Seen | None:
        """Return what is there; ``sinks`` are the names of the rows of the sink that asks."""
        return self._stranger or self._held(sinks)

    def seen(self, epoch: int, sink: str, *sinks: str) -> Seen | None:
        """Return what is there of an epoch, by this row, and of the ones before, by all rows."""
        own = self.written_by(sink)
        if self._stranger is not None or (own is not None and own.epoch >= epoch):
            return self._stranger or own
        held = self._held((sink, *sinks))
        return None if held is None else replace(held, epoch=min(held.epoch, epoch - 1))

    def hold(self, epoch: EpochId, where: str, sink: str, *sinks: str) -> bool:
        """Whether the epoch is there; raise if it must not be written here."""
        return holds(self.seen(epoch.number, sink, *sinks), epoch, where)

    def written_by(self, *sinks: str) -> Seen | None:
        """Return the newest epoch of this incarnation that these sinks have written."""
        return _newest(seen for sink, seen in self._ours if sink in sinks)

    @property
    def _ours(self) -> list[tuple[str, Seen]]:
        mine = self.query.incarnation
        return [(sink, seen) for sink, seen in self.rows if seen.incarnation == mine]

    @property
    def _stranger(self) -> Seen | None:
        mine = self.query.incarnation
        return _newest(seen for _, seen in self.rows if seen.incarnation != mine)

    def _held(self, sinks: Sequence[str]) -> Seen | None:
        return self.written_by(*sinks) or _newest(seen for _, seen in self._ours)


def _newest(seen: Iterable[Seen]) -> Seen | None:
    return max(seen, key=lambda each: each.epoch, default=None)


def way_out(sink: str, epoch: int) -> str:
    """Return the advice that ends a decided epoch which the target does not take: give it up.

    It names the epoch's number, which works in any number of starts: a name alone works for one
    start, and that start may die before it has given anything up.
    """
    return f'Or start once with drop=["{sink}@{epoch}"], which gives up its rows of this epoch.'
