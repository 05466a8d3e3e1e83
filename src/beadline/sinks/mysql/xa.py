"""Prepared XA transactions: rows in the table itself, which one statement makes visible.

If a part's connection is lost, all rows of the part are lost with it, so they are kept, up to a
limit, and sent again on the next connection. The id stays the same: what a lost answer may have
left prepared under it is rolled back first, and one that still runs, because the server has not
noticed that its client is gone, is waited for.

A server keeps a prepared XA transaction over the end of its connection and over its own crash. What
it does not keep is a memory of having committed it: "unknown XID" is the answer to a transaction
that was committed, to one that is lost, and to one whose connection is just being closed. So every
transaction holds a marker, a row in a table of ours. Reading it with a lock is the proof: while the
transaction is there in any state, that read must wait; afterwards the marker shows or does not.

XA COMMIT cannot be in one transaction with anything else, so whether the server has all earlier
epochs is asked just before it, and again by the next epoch.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing
from typing import TYPE_CHECKING

from beadline.sink import (
    EpochId,
    Outcome,
    Part,
    PartId,
    Prepared,
    PrepareFailed,
    QueryId,
    Retries,
    Verdict,
    reach,
    running,
)
from beadline.sinks.mysql.columns import MySqlColumn
from beadline.sinks.mysql.connection import Connection, MySqlServer
from beadline.sinks.mysql.ledger import APART, ASCII, MySqlLedger
from beadline.sinks.mysql.loading import Loader, Misfit, PartWriter, chunks_of
from beadline.sinks.mysql.part import XA_FORMAT, MySqlPart, MySqlParts, Xid
from beadline.sinks.mysql.plan import MySqlSettings
from beadline.sinks.mysql.problems import (
    BUSY,
    UNKNOWN_XID,
    code_of,
    library_errors,
    said,
    verdict,
)
from beadline.sinks.shared.sql.plan import TablePlan
from beadline.sinks.shared.sql.rows import ResendableRows

if TYPE_CHECKING:
    import pyarrow as pa

XA_MARKERS = "_beadline_marks"
# Old markers are removed one by one, by their whole key: a range would wait for prepared ones.
MAKE_XA_MARKERS = f"""CREATE TABLE IF NOT EXISTS {XA_MARKERS} (
    query VARCHAR(60) {ASCII}, incarnation CHAR(32) {ASCII}, sink VARCHAR(60) {ASCII},
    epoch BIGINT NOT NULL, xid VARCHAR(64) {ASCII},
    PRIMARY KEY (query, incarnation, sink, epoch, xid)) ENGINE = InnoDB"""
_WRITE_MARKER = f"INSERT INTO {XA_MARKERS} VALUES (%s, %s, %s, %s, %s)"
_PROOF = f"""SELECT 1 FROM {XA_MARKERS} WHERE query = %s AND incarnation = %s AND sink = %s
    AND epoch = %s AND xid = %s LOCK IN SHARE MODE"""
_OLD = f"""SELECT query, incarnation, sink, epoch, xid FROM {XA_MARKERS}
    WHERE query = %s AND incarnation = %s AND sink = %s AND epoch < %s"""
_FORGET = f"""DELETE FROM {XA_MARKERS} WHERE query = %s AND incarnation = %s AND sink = %s
    AND epoch = %s AND xid = %s"""
_DETACH_S = 10.0  # a connection that is closed is noticed by the server a moment later
_IDLE_S = 28_800  # rows may come slowly, and a lost connection would lose them all
_SAVED = "beadline"
_DUPLICATE_XID = 1440
_DENIED = frozenset((1044, 1045, 1142, 1227, 1401))


class XaWriter(PartWriter):
    """Writes one part; each try has a connection of its own."""

    def __init__(
        self, server: MySqlServer, settings: MySqlSettings, plan: TablePlan[MySqlColumn], part: Part
    ) -> None:
        super().__init__(server, settings, plan, part)
        self._xid = Xid.of(part.id)
        self._retries = Retries(running(server.timeout_s))
        self._got = 0

    def write(self, connection: Connection, batches: Iterator[pa.RecordBatch]) -> MySqlPart | None:
        """Leave a prepared transaction; ``None`` and nothing if there are no rows.

        The connection must be closed then: until it is, no other can end what is prepared.
        """
        rows = ResendableRows(self._plan, chunks_of(batches), self._part)
        try:
            return self._write(connection, rows)
        except library_errors() as error:
            problem = error
        connection.close()
        while self._again(problem, rows):
            try:
                with closing(self._server.connect()) as other:
                    end(other, "ROLLBACK", self._xid)
                    return self._write(other, rows)
            except library_errors() as error:
                problem = error
        raise PrepareFailed(f"{self._about}: {said(problem, self._server.address)}") from None

    def _again(self, error: Exception, rows: ResendableRows) -> bool:
        if rows.failure is not None:
            raise rows.failure
        if not rows.restartable:
            return False
        if rows.batches > self._got:
            self._got = rows.batches
            self._retries.progressed()
        duplicate = code_of(error) == _DUPLICATE_XID
        return self._retries.again(Verdict.BUSY if duplicate else verdict(error))

    def _write(self, connection: Connection, rows: ResendableRows) -> MySqlPart | None:
        connection.run(f"SET SESSION wait_timeout = {_IDLE_S}")
        loader = Loader(connection, self._settings.table, self._columns, numbered=False)
        connection.run(f"XA START {self._xid.sql}")
        connection.run(_WRITE_MARKER, marker_of(self._part.id, self._xid))

        def send(chunk: pa.RecordBatch) -> str | None:
            connection.run(f"SAVEPOINT {_SAVED}")
            try:
                taken = self._load(loader, chunk, 0)
            except Misfit as misfit:
                connection.run(f"ROLLBACK TO SAVEPOINT {_SAVED}")
                return self._why(misfit)
            if taken != chunk.num_rows:
                raise self._too_few(taken, chunk)
            return None

        rows.send_each(send)
        if not rows.count:
            return None
        connection.run(f"XA END {self._xid.sql}")
        reach("staging.written")
        connection.run(f"XA PREPARE {self._xid.sql}")
        return MySqlPart("xa", self._xid.transaction, rows.count)


def commit_xa(
    connection: Connection,
    settings: MySqlSettings,
    epoch: EpochId,
    parts: MySqlParts,
) -> dict[PartId, Outcome]:
    """Commit every transaction; write the ledger when all of them are there."""
    sink, where = parts[0].id.sink, settings.where
    # A ledger row of its own: parts that are staged in place of a lost one use another.
    ledger = MySqlLedger(connection, epoch.query, settings.table, f"{sink}{APART}")
    if ledger.is_past(epoch, where):
        return {part.id: Outcome.ALREADY_COMMITTED for part in parts}
    outcomes = {part.id: _commit(connection, ledger, epoch, part.id, where) for part in parts}
    if set(outcomes.values()) <= {Outcome.COMMITTED, Outcome.ALREADY_COMMITTED}:
        reach("ledger.before")
        rows = sum(part.committable.rows for part in parts)
        _write_ledger(connection, ledger, epoch, rows, sink, where)
        reach("ledger.after")
    return outcomes


def _commit(
    connection: Connection, ledger: MySqlLedger, epoch: EpochId, id_: PartId, where: str
) -> Outcome:
    xid = Xid.of(id_)
    if end(connection, "COMMIT", xid):
        return Outcome.COMMITTED
    try:
        connection.run("START TRANSACTION")
        found = connection.ask(_PROOF, marker_of(id_, xid))
        connection.run("ROLLBACK")
    except library_errors() as error:
        if code_of(error) not in BUSY:
            raise
        connection.run("ROLLBACK")
        return Outcome.UNKNOWN  # it is there, and another process is finishing it
    # Markers are deleted when a newer epoch is there: look at the ledger after, not before.
    if found or ledger.is_past(epoch, where):
        return Outcome.ALREADY_COMMITTED
    return Outcome.LOST


def _write_ledger(
    connection: Connection, ledger: MySqlLedger, epoch: EpochId, rows: int, sink: str, where: str
) -> None:
    """Advance the ledger and delete older markers."""
    connection.run("START TRANSACTION")
    ledger.lock()
    if ledger.is_past(epoch, where):
        connection.run("ROLLBACK")
        return
    ledger.write(epoch, rows)
    owner = (epoch.query.name, epoch.query.incarnation, sink, epoch.number)
    for marker in connection.ask(_OLD, owner):
        connection.run(_FORGET, marker)
    connection.commit()


def abort_xa(connection: Connection, ids: Sequence[PartId]) -> None:
    """Roll back what is prepared; what is not there is fine."""
    for id_ in ids:
        end(connection, "ROLLBACK", Xid.of(id_))


def end(connection: Connection, how: str, xid: Xid) -> bool:
    """Commit or roll back; False if the server does not know the transaction.

    While the connection that prepared it is being closed, the server does not know it, and yet
    lists it: then wait a little.
    """
    retries = Retries({Verdict.BUSY: _DETACH_S})
    while True:
        try:
            connection.run(f"XA {how} {xid.sql}")
            return True
        except library_errors() as error:
            if code_of(error) != UNKNOWN_XID:
                raise
        listed = (xid.transaction + xid.branch).encode() in dict(_recover(connection))
        if not listed or not retries.again(Verdict.BUSY):
            return False


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
        if int(format_) == XA_FORMAT
    ]


def marker_of(id_: PartId, xid: Xid) -> tuple[str, str, str, int, str]:
    """The row that a part's transaction leaves behind, and the key by which it is found."""
    return id_.query, id_.incarnation, id_.sink, id_.epoch, xid.transaction
