"""Sending an epoch's changes, over several connections at once.

Before each piece the ledger is read on the same connection: a driver that slept while another
finished the epoch stops there. It would be harmless anyway (its puts would be older versions, its
deletes hide nothing new), with one exception: a compaction of all files forgets deletes, and what
they hid would reappear if it were put again. The Thrift server closes a connection on which nothing
was asked for a minute, so no piece arrives later than that after its ledger was read.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from beadline.sink import Denied, EpochId, Rejected, holds
from beadline.sinks.hbase.changes import Changes, Mutations, mutations, pieces
from beadline.sinks.hbase.client import HBaseClient, ThriftServer, connected
from beadline.sinks.hbase.columns import Cells
from beadline.sinks.hbase.ledger import HBaseLedger

PIECE_ROWS = 1000


class HBaseRowRejected(Rejected):
    """HBase will not take the row of this key."""

    def __init__(self, key: bytes, problem: str) -> None:
        super().__init__(problem)
        self.key = key


@dataclass(frozen=True)
class EpochWriter:
    """What it takes to write one epoch of one sink.

    ``epoch.previous`` is what the sink's own row of the ledger must hold; -1 if it has none yet.
    """

    server: ThriftServer
    ledger: HBaseLedger
    cells: Cells
    families: Sequence[str]
    epoch: EpochId
    sink: str
    connections: int

    def write(self, client: HBaseClient, changes: Changes) -> bool:
        """Write all changes; False if, by the ledger, another process has finished the epoch."""
        work = _Work(pieces(changes, PIECE_ROWS))
        others = [
            threading.Thread(target=self._helper, args=(work,), name=f"beadline-hbase-{number}")
            for number in range(1, min(self.connections, _count(changes)))
        ]
        for thread in others:
            thread.start()
        try:
            self._run(client, work)
        except BaseException as error:  # noqa: BLE001 (raised below, after all have ended)
            work.fail(error)
        for thread in others:
            thread.join()
        if work.problem is not None:
            raise work.problem
        return not work.superseded

    def _helper(self, work: _Work) -> None:
        try:
            with connected(self.server) as client:
                self._run(client, work)
        except BaseException as error:  # noqa: BLE001 (carried to the caller's thread)
            work.fail(error)

    def _run(self, client: HBaseClient, work: _Work) -> None:
        for piece in work:
            for call in mutations(piece, self.cells, self.families, self.epoch.decided_at_ms):
                if not self._send(client, call):
                    work.superseded = True
                    return

    def _send(self, client: HBaseClient, call: Mutations) -> bool:
        """Check the ledger, then write; False, and nothing written, if another process has."""
        seen = self.ledger.seen_of_sink(client, self.epoch.query, self.sink)
        if holds(seen, self.epoch, self.ledger.target):
            return False
        try:
            client.mutate(self.ledger.target, call.rows, call.at_ms)
        except Denied:
            raise
        except Rejected as error:
            if len(call.rows) == 1:
                raise HBaseRowRejected(call.rows[0].row, str(error)) from error
            # HBase does not say which: sent one by one it does, and writing a row twice is
            # harmless.
            return all(self._send(client, Mutations([row], call.at_ms)) for row in call.rows)
        return True


class _Work:
    """Pieces of work for several threads; none after a failure."""

    def __init__(self, items: Iterator[Any]) -> None:
        self.problem: BaseException | None = None
        self.superseded = False
        self._items = items
        self._lock = threading.Lock()

    def __iter__(self) -> Iterator[Any]:
        while not self.superseded and self.problem is None:
            with self._lock:
                item = next(self._items, None)
            if item is None:
                return
            yield item

    def fail(self, error: BaseException) -> None:
        with self._lock:
            self.problem = self.problem or error


def _count(changes: Changes) -> int:
    return sum(-(-len(whole) // PIECE_ROWS) for whole in (*changes.puts, *changes.deletes))
