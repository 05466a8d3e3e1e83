"""Prepared XA transactions: rows go into the target at prepare, and one statement shows them.

A server keeps a prepared XA transaction over the end of its connection and over its own crash. What
it does not keep is a memory of having committed it: "unknown XID" is the answer to a transaction
that was committed, to one that is lost, and to one whose connection is just being closed. So every
transaction holds a mark, a row in a table of ours. To read it with a lock is the proof: while the
transaction is there in any state, that read must wait; afterwards the mark shows, or there is none.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING

from beadline.chaos.points import reach
from beadline.errors import PrepareFailed
from beadline.ids import EpochId, PartId, QueryId
from beadline.sink import Outcome, Part, Prepared
from beadline.sinks._ledger import holds
from beadline.sinks.mysql.chunks import chunks_of
from beadline.sinks.mysql.connection import Connection
from beadline.sinks.mysql.ledger import Ledger
from beadline.sinks.mysql.loading import Loader, Misfit
from beadline.sinks.mysql.part import FORMAT, MySqlPart, Xid
from beadline.sinks.mysql.plan import Plan, Wish
from beadline.sinks.mysql.problems import (
    BUSY,
    UNKNOWN_XID,
    code_of,
    library_errors,
    said,
)
from beadline.sinks.mysql.server import Server

if TYPE_CHECKING:
    import pyarrow as pa

MARKS = "_beadline_marks"
_ASCII = "CHARACTER SET ascii COLLATE ascii_bin NOT NULL"
# Old marks are removed one by one, by their whole key: a range would wait for prepared ones.
MAKE_MARKS = f"""CREATE TABLE IF NOT EXISTS {MARKS} (
    query VARCHAR(60) {_ASCII}, incarnation CHAR(32) {_ASCII}, sink VARCHAR(60) {_ASCII},
    epoch BIGINT NOT NULL, xid VARCHAR(64) {_ASCII},
    PRIMARY KEY (query, incarnation, sink, epoch, xid)) ENGINE = InnoDB"""
_MARK = f"INSERT INTO {MARKS} VALUES (%s, %s, %s, %s, %s)"
_PROOF = f"""SELECT 1 FROM {MARKS} WHERE query = %s AND incarnation = %s AND sink = %s
    AND epoch = %s AND xid = %s LOCK IN SHARE MODE"""
_OLD = f"""SELECT query, incarnation, sink, epoch, xid FROM {MARKS}
    WHERE query = %s AND incarnation = %s AND sink = %s AND epoch < %s"""
_FORGET = f"""DELETE FROM {MARKS} WHERE query = %s AND incarnation = %s AND sink = %s
    AND epoch = %s AND xid = %s"""
_IDLE_S = 28_800  # rows may come slowly, and with the connection all of them would go
_DETACH_S = 10.0  # a connection that is closed is noticed by the server a moment later
_POLL_S = 0.01
_SAVED = "beadline"
_APART = "~xa"
_DENIED = frozenset((1044, 1045, 1142, 1227, 1401))


class XaWriter:
    """Writes one part into the target, inside an XA transaction that is left prepared."""

    def __init__(self, server: Server, plan: Plan, part: Part, wish: Wish, where: str) -> None:
        self._server = server
        self._plan = plan
        self._part = part
        self._wish = wish
        self._where = where
        self._about = f"{where}, epoch {part.id.epoch}, part {part.id.partition}"
        self._xid = Xid.of(part.id)
        self._rows = 0

    def write(self, connection: Connection, batches: Iterator[pa.RecordBatch]) -> MySqlPart | None:
        """Leave a prepared transaction; ``None`` and nothing if there are no rows.

        The connection must be closed then: nobody else can end what is prepared before. If it is
        lost all rows go with it, so there is no second try here: the epoch is given again.
        """
        try:
            return self._write(connection, batches)
        except library_errors() as error:
            why = said(error, self._server.address)
            raise PrepareFailed(f"{self._about}: {why}") from None

    def _write(self, connection: Connection, batches: Iterator[pa.RecordBatch]) -> MySqlPart | None:
        connection.run(f"SET SESSION wait_timeout = {_IDLE_S}")
        loader = Loader(connection, self._wish.table, self._plan.columns, numbered=False)
        connection.run(f"XA START {self._xid.sql}")
        connection.run(_MARK, _mark_of(self._part.id, self._xid))
        for chunk in chunks_of(batches):
            self._load(connection, loader, chunk)
        if not self._rows:
            return None
        connection.run(f"XA END {self._xid.sql}")
        reach("staging.written")
        connection.run(f"XA PREPARE {self._xid.sql}")
        return MySqlPart("xa", self._xid.transaction, self._rows)

    def _load(self, connection: Connection, loader: Loader, chunk: pa.RecordBatch) -> None:
        """Rows that do not fit are found by halving, and refused."""
        connection.run(f"SAVEPOINT {_SAVED}")
        try:
            taken = loader.load(chunk, 0)
        except Misfit as misfit:
            connection.run(f"ROLLBACK TO SAVEPOINT {_SAVED}")
            if chunk.num_rows == 1:
                self._part.refuse(chunk, f"{self._where} does not take it: {misfit}")
                return
            half = chunk.num_rows // 2
            self._load(connection, loader, chunk.slice(0, half))
            self._load(connection, loader, chunk.slice(half))
            return
        if taken != chunk.num_rows:
            raise PrepareFailed(f"{self._about}: {taken} of {chunk.num_rows} rows were taken")
        self._rows += taken


def commit_xa(
    connection: Connection,
    epoch: EpochId,
    parts: Sequence[Prepared[MySqlPart]],
    wish: Wish,
    where: str,
) -> dict[PartId, Outcome]:
    """Commit every transaction; write the ledger when all of them are there."""
    sink = parts[0].id.sink
    # A row of its own: parts that are staged because this one is lost ask another one.
    ledger = Ledger(connection, epoch.query, wish.table, f"{sink}{_APART}")
    if _is_past(ledger, epoch, where):
        return {part.id: Outcome.ALREADY_COMMITTED for part in parts}
    outcomes = {part.id: _commit(connection, ledger, epoch, part.id, where) for part in parts}
    if set(outcomes.values()) <= {Outcome.COMMITTED, Outcome.ALREADY_COMMITTED}:
        reach("ledger.before")
        rows = sum(part.committable.rows for part in parts)
        _write_ledger(connection, ledger, epoch, rows, sink, where)
        reach("ledger.after")
    return outcomes


def _is_past(ledger: Ledger, epoch: EpochId, where: str) -> bool:
    """Whether a newer epoch is there; of this one, a part may have been lost and replaced."""
    seen = ledger.read(any_sink=False)
    return holds(seen, epoch, where) and seen is not None and seen.epoch > epoch.number


def _commit(
    connection: Connection, ledger: Ledger, epoch: EpochId, id_: PartId, where: str
) -> Outcome:
    xid = Xid.of(id_)
    if _end(connection, "COMMIT", xid):
        return Outcome.COMMITTED
    try:
        connection.run("START TRANSACTION")
        marked = connection.ask(_PROOF, _mark_of(id_, xid))
        connection.run("ROLLBACK")
    except library_errors() as error:
        if code_of(error) not in BUSY:
            raise
        connection.run("ROLLBACK")
        return Outcome.UNKNOWN  # it is there, and somebody else's hand is on it
    # Marks are forgotten when a newer epoch is there: look at the ledger after, not before.
    if marked or _is_past(ledger, epoch, where):
        return Outcome.ALREADY_COMMITTED
    return Outcome.LOST


def _write_ledger(
    connection: Connection, ledger: Ledger, epoch: EpochId, rows: int, sink: str, where: str
) -> None:
    """Forward only, and with it forget the marks of older epochs."""
    connection.run("START TRANSACTION")
    seen = ledger.lock()
    if holds(seen, epoch, where) and seen is not None and seen.epoch > epoch.number:
        connection.run("ROLLBACK")
        return
    ledger.write(epoch, rows)
    owner = (epoch.query.name, epoch.query.incarnation, sink, epoch.number)
    for mark in connection.ask(_OLD, owner):
        connection.run(_FORGET, mark)
    connection.commit()


def abort_xa(connection: Connection, ids: Sequence[PartId]) -> None:
    """Roll back what is prepared; what is not there is fine."""
    for id_ in ids:
        _end(connection, "ROLLBACK", Xid.of(id_))


def _end(connection: Connection, how: str, xid: Xid) -> bool:
    """Commit or roll back; False if the server does not know the transaction.

    It does not as long as the connection that prepared it is being closed, and lists it all the
    same: then wait a little.
    """
    deadline_s = time.monotonic() + _DETACH_S
    while True:
        try:
            connection.run(f"XA {how} {xid.sql}")
            return True
        except library_errors() as error:
            if code_of(error) != UNKNOWN_XID:
                raise
        listed = (xid.transaction + xid.branch).encode() in dict(_recover(connection))
        if not listed or time.monotonic() > deadline_s:
            return False
        time.sleep(_POLL_S)


def xa_in_doubt(connection: Connection, query: QueryId) -> Iterable[Prepared[MySqlPart]]:
    """Every prepared XA transaction of this query on the whole server."""
    for data, length in _recover(connection):
        id_ = Xid.parse(data, length, query)
        if id_ is not None:
            yield Prepared(id_, 0, MySqlPart("xa", Xid.of(id_).transaction, 0))


def may_recover(connection: Connection) -> bool:
    """Whether this user may see prepared XA transactions; MySQL has a privilege for it."""
    try:
        connection.ask("XA RECOVER")
    except library_errors() as error:
        if code_of(error) in _DENIED:
            return False
        raise
    return True


def _recover(connection: Connection) -> list[tuple[bytes, int]]:
    found = connection.ask("XA RECOVER")
    return [
        (data if isinstance(data, bytes) else str(data).encode(), int(length))
        for format_, length, _, data in found
        if int(format_) == FORMAT
    ]


def _mark_of(id_: PartId, xid: Xid) -> tuple[str, str, str, int, str]:
    return id_.query, id_.incarnation, id_.sink, id_.epoch, xid.transaction
