"""The ledger: one row per query, table and sink, locked first in every transaction that writes.

Whoever holds its lock is alone: a second driver waits for it, and then finds its epoch there.

What a sink writes by XA has a row of its own, so that parts that are staged because such a one is
lost find their epoch not there. For whether earlier epochs are there, both rows count.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property

from beadline.ids import EpochId, QueryId
from beadline.sink import LEDGER, Seen
from beadline.sinks.mysql.connection import Connection
from beadline.sinks.mysql.problems import MISSING_TABLE, code_of, library_errors

_ASCII = "CHARACTER SET ascii COLLATE ascii_bin NOT NULL"
MAKE = f"""CREATE TABLE IF NOT EXISTS {LEDGER} (
    query VARCHAR(60) {_ASCII},
    target VARCHAR(64) CHARACTER SET utf8mb4 COLLATE utf8mb4_bin NOT NULL,
    sink VARCHAR(64) {_ASCII}, incarnation CHAR(32) {_ASCII}, epoch BIGINT NOT NULL,
    nonce VARCHAR(64) {_ASCII}, row_count BIGINT NOT NULL, decided_at_ms BIGINT NOT NULL,
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
class Ledger:
    """One sink's row, on one connection."""

    connection: Connection
    query: QueryId
    table: str
    sink: str = ""

    def lock(self, number: int) -> Seen | None:
        """In a transaction: lock the row; return what ``seen`` does."""
        self.connection.run(_LOCK, (self.query.name, self._target, self.sink, self._incarnation))
        return self.seen(number)

    def seen(self, number: int) -> Seen | None:
        """What is there of this epoch and the ones before; another incarnation's row first."""
        stranger, rows = self._rows()
        own = next((seen for sink, seen in rows if sink == self.sink), None)
        if stranger is not None or (own is not None and own.epoch >= number):
            return stranger or own
        held = self._newest(rows)
        # Of this epoch, the rows of others say nothing.
        return None if held is None else replace(held, epoch=min(held.epoch, number - 1))

    def last_seen(self) -> Seen | None:
        """What is there for this query and table; another incarnation's row first."""
        stranger, rows = self._rows()
        return stranger or self._newest(rows)

    def _newest(self, rows: list[tuple[str, Seen]]) -> Seen | None:
        """The newest epoch of this sink, or where it has written nothing under its name, of others.

        It may have been called otherwise, and what is lost they have lost together.
        """
        name = self.sink.removesuffix(APART)
        own = [seen for sink, seen in rows if sink in (name, name + APART)]
        return next(iter(own or [seen for _, seen in rows]), None)

    def _rows(self) -> tuple[Seen | None, list[tuple[str, Seen]]]:
        """Another incarnation's newest row, if there is one; and ours by sink, the newest first."""
        try:
            found = self.connection.ask(_READ, (self.query.name, self._target))
        except library_errors() as error:
            if code_of(error) in MISSING_TABLE:
                return None, []
            raise
        every = [(str(sink), Seen(*seen)) for sink, *seen in found]
        ours = [(sink, seen) for sink, seen in every if seen.incarnation == self._incarnation]
        strange = (seen for _, seen in every if seen.incarnation != self._incarnation)
        return next(strange, None), ours

    def write(self, epoch: EpochId, rows: int) -> None:
        """In the transaction of ``lock``: the epoch is there."""
        new = (self._incarnation, epoch.number, epoch.nonce, rows, epoch.decided_at_ms)
        self.connection.run(_WRITE, (*new, self.query.name, self._target, self.sink))

    @property
    def _incarnation(self) -> str:
        return self.query.incarnation

    @cached_property
    def _target(self) -> str:
        """The table's name as the server tells names apart, so that one table has one row."""
        question = "SELECT IF(@@lower_case_table_names = 0, %s, LOWER(%s))"
        ((name,),) = self.connection.ask(question, (self.table, self.table))
        return str(name)
