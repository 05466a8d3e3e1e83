"""The ledger table: the newest epoch of each query that a table holds.

One row per query, table, sink and incarnation, in a table of its own in the table's namespace, with
one cell: JSON, written at the decision's time. So a late writer cannot take the ledger back: its
cell is an older version, which no reader sees. Another incarnation has a row of its own, so that
neither can hide the other.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass

from beadline.sink import (
    LEDGER,
    BadSink,
    EpochId,
    LedgerRows,
    QueryId,
    Rejected,
    Retries,
    Seen,
    Verdict,
    running,
)
from beadline.sinks.hbase.client import HBaseClient, no_table, put, row_of

FAMILY = "f"
_CELL = b"f:epoch"
_CREATION_S = 5.0
_SEPARATOR = "~"  # in no name of a query, table or sink


@dataclass(frozen=True)
class HBaseLedger:
    """The ledger rows of one target table."""

    target: str

    @property
    def table(self) -> str:
        """The ledger table: in the target's namespace, where permissions are given."""
        namespace, colon, _ = self.target.rpartition(":")
        return f"{namespace}{colon}{LEDGER}"

    def make(self, client: HBaseClient) -> None:
        """Make the table if it is missing."""
        try:
            client.families(self.table)
        except Rejected as error:
            if not no_table(error):
                raise
            client.create(self.table, FAMILY)
        self._enabled(client)

    def check(self, client: HBaseClient, where: str) -> None:
        """Raise if there is a table of this name that cannot be the ledger."""
        try:
            families = client.families(self.table)
        except Rejected as error:
            if no_table(error):
                return
            raise
        if FAMILY not in families:
            raise BadSink(
                f"{where}: the ledger table {self.table!r} has no column family {FAMILY!r}. If it "
                "is not Beadline's, it is in the way: rename it. Nothing was written."
            )
        if not self._enabled(client):
            raise BadSink(
                f"{where}: the ledger table {self.table!r} is disabled. In the HBase shell: enable "
                f"'{self.table}'. Nothing was written."
            )

    def _enabled(self, client: HBaseClient) -> bool:
        """Whether it can be used; one that another query is just making is not enabled at once."""
        retries = Retries(running(_CREATION_S))
        while not client.is_enabled(self.table):
            if not retries.again(Verdict.BUSY):
                return False
        return True

    def read(self, client: HBaseClient, query: QueryId) -> LedgerRows:
        """Return what the table holds of ``query.name``; nothing if it does not exist."""
        try:
            return LedgerRows(query, list(self._rows(client, query.name)))
        except Rejected as error:
            if no_table(error):
                return LedgerRows(query, [])
            if not self._enabled(client):
                raise
        return LedgerRows(query, list(self._rows(client, query.name)))

    def seen_of_sink(self, client: HBaseClient, query: QueryId, sink: str) -> Seen | None:
        """Return what this sink of this incarnation wrote: one quick look."""
        cells = client.row(self.table, self._key(query, sink))
        return _read(query.incarnation, cells[_CELL]) if _CELL in cells else None

    def write(self, client: HBaseClient, epoch: EpochId, sink: str, rows: int) -> None:
        """Say that the epoch is there; a newer one stays in force."""
        version_ms = epoch.decided_at_ms
        stored = {"epoch": epoch.number, "nonce": epoch.nonce, "rows": rows, "at_ms": version_ms}
        row = row_of(self._key(epoch.query, sink), [put(_CELL, json.dumps(stored).encode())])
        client.mutate(self.table, [row], version_ms)

    def start_over(self, query: QueryId) -> str:
        """Say how to forget a query."""
        prefix = _SEPARATOR.join((query.name, self.target, ""))
        return f"deleteall '{self.table}' every row whose key begins with '{prefix}'"

    def _key(self, query: QueryId, sink: str) -> bytes:
        return _SEPARATOR.join((query.name, self.target, sink, query.incarnation)).encode()

    def _rows(self, client: HBaseClient, query: str) -> Iterator[tuple[str, Seen]]:
        prefix = _SEPARATOR.join((query, self.target, "")).encode()
        for key, cells in client.rows(self.table, prefix):
            words = key.decode(errors="replace").split(_SEPARATOR)
            if len(words) == 4 and _CELL in cells:
                yield words[2], _read(words[3], cells[_CELL])


def _read(incarnation: str, cell: bytes) -> Seen:
    stored = json.loads(cell)
    version_ms = int(stored.get("at_ms", 0))
    return Seen(incarnation, int(stored["epoch"]), str(stored["nonce"]), version_ms)
