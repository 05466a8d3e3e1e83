"""The ledger: one row per query, table and sink, locked first in every transaction that writes.

One driver at a time holds its lock: a second one waits for it, and then finds its epoch there.

What a sink writes by XA has a row of its own, so that parts that are staged in place of a lost
transaction do not find their epoch there. For whether earlier epochs are there, both rows count.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from beadline.sink import LEDGER, EpochId, LedgerRows, QueryId, Seen, holds
from beadline.sinks.mysql.connection import Connection
from beadline.sinks.mysql.problems import MISSING_TABLE, code_of, library_errors

ASCII = "CHARACTER SET ascii COLLATE ascii_bin NOT NULL"
MAKE = f"""CREATE TABLE IF NOT EXISTS {LEDGER} (
    query VARCHAR(60) {ASCII},
    target VARCHAR(64) CHARACTER SET utf8mb4 COLLATE utf8mb4_bin NOT NULL,
    sink VARCHAR(64) {ASCII}, incarnation CHAR(32) {ASCII}, epoch BIGINT NOT NULL,
    nonce VARCHAR(64) {ASCII}, row_count BIGINT NOT NULL, decided_at_ms BIGINT NOT NULL,
    PRIMARY KEY (query, target, sink)) ENGINE = InnoDB"""
# Makes the row if there is none, so that there is something to lock; rolled back unless written.
_LOCK = f"""INSERT INTO {LEDGER} VALUES (%s, %s, %s, %s, -1, '', 0, 0)
    ON DUPLICATE KEY UPDATE query = VALUES(query)"""
_READ = f"""SELECT sink, incarnation, epoch, nonce FROM {LEDGER}
    WHERE query = %s AND target = %s AND epoch >= 0 ORDER BY epoch DESC"""
_WRITE = f"""UPDATE {LEDGER} SET incarnation = %s, epoch = %s, nonce = %s, row_count = %s,
    decided_at_ms = %s WHERE query = %s AND target = %s AND sink = %s"""

APART = "~xa"  # no sink's name has a ~


@dataclass(frozen=True)
class MySqlLedger:
    """One sink's row, on one connection."""

    connection: Connection
    query: QueryId
    table: str
    sink: str = ""

    def lock(self) -> None:
        """In a transaction: make other writers of this sink's epochs wait until it ends."""
        incarnation = self.query.incarnation
        self.connection.run(_LOCK, (self.query.name, self._target, self.sink, incarnation))

    def holds(self, epoch: EpochId, where: str) -> bool:
        """Whether the epoch is there; raise if it must not be written here."""
        return self._read().hold(epoch, where, self.sink, *self._both)

    def is_past(self, epoch: EpochId, where: str) -> bool:
        """Whether a newer epoch is there; raise as ``holds`` does."""
        seen = self._read().seen(epoch.number, self.sink, *self._both)
        return holds(seen, epoch, where) and seen is not None and seen.epoch > epoch.number

    def last_seen(self) -> Seen | None:
        """What is there for this query and table; another incarnation's row first."""
        return self._read().last_seen(*self._both)

    @property
    def _both(self) -> tuple[str, str]:
        name = self.sink.removesuffix(APART)
        return name, f"{name}{APART}"

    def _read(self) -> LedgerRows:
        try:
            found = self.connection.ask(_READ, (self.query.name, self._target))
        except library_errors() as error:
            if code_of(error) not in MISSING_TABLE:
                raise
            found = []
        return LedgerRows(self.query, [(str(sink), Seen(*seen)) for sink, *seen in found])

    def write(self, epoch: EpochId, rows: int) -> None:
        """In the transaction of ``lock``: the epoch is there."""
        new = (epoch.query.incarnation, epoch.number, epoch.nonce, rows, epoch.decided_at_ms)
        self.connection.run(_WRITE, (*new, self.query.name, self._target, self.sink))

    @cached_property
    def _target(self) -> str:
        """The table's name as the server tells names apart, so that one table has one row."""
        question = "SELECT IF(@@lower_case_table_names = 0, %s, LOWER(%s))"
        ((name,),) = self.connection.ask(question, (self.table, self.table))
        return str(name)
