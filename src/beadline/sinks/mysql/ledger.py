"""The ledger: one row per query, table and sink, locked first in every transaction that writes.

Whoever holds its lock is alone: a second driver waits for it, and then finds its epoch there.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from beadline.ids import EpochId, QueryId
from beadline.sink import Seen
from beadline.sinks._ledger import LEDGER
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
_READ = f"""SELECT incarnation, epoch, nonce FROM {LEDGER}
    WHERE query = %s AND target = %s AND (sink = %s OR %s) AND epoch >= 0
    ORDER BY incarnation = %s, epoch DESC LIMIT 1"""
_OTHERS = f"""SELECT incarnation, epoch, nonce FROM {LEDGER}
    WHERE query = %s AND target = %s AND incarnation <> %s AND epoch >= 0 LIMIT 1"""
_WRITE = f"""UPDATE {LEDGER} SET incarnation = %s, epoch = %s, nonce = %s, row_count = %s,
    decided_at_ms = %s WHERE query = %s AND target = %s AND sink = %s"""


@dataclass(frozen=True)
class Ledger:
    """One sink's row, on one connection."""

    connection: Connection
    query: QueryId
    table: str
    sink: str = ""

    def lock(self) -> Seen | None:
        """In a transaction: lock the row; return what it holds, another incarnation's first."""
        self.connection.run(_LOCK, (self.query.name, self._target, self.sink, self._incarnation))
        others = self.connection.ask(_OTHERS, (self.query.name, self._target, self._incarnation))
        return Seen(*others[0]) if others else self.read(any_sink=False)

    def read(self, *, any_sink: bool) -> Seen | None:
        """What is there for this query and table; another incarnation's row first."""
        values = (self.query.name, self._target, self.sink, any_sink, self._incarnation)
        try:
            found = self.connection.ask(_READ, values)
        except library_errors() as error:
            if code_of(error) in MISSING_TABLE:
                return None
            raise
        return Seen(*found[0]) if found else None

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
