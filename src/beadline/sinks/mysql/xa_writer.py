"""A part's rows into the target, inside an XA transaction that is left prepared.

With the connection all rows of it go, so they are kept, up to a limit, and sent again on the next
one. Rows that were refused are not refused twice. The id stays the same: what a lost answer may
have left prepared under it is rolled back first, and one that still runs, because the server has
not noticed that its client is gone, is waited for.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from typing import TYPE_CHECKING

from beadline.errors import PrepareFailed
from beadline.points import reach
from beadline.sink import Part
from beadline.sinks.mysql.chunks import chunks_of
from beadline.sinks.mysql.connection import Connection
from beadline.sinks.mysql.loading import Loader, Misfit
from beadline.sinks.mysql.part import MySqlPart, Xid
from beadline.sinks.mysql.plan import Plan, Wish
from beadline.sinks.mysql.problems import code_of, library_errors, said, verdict
from beadline.sinks.mysql.server import Server
from beadline.sinks.mysql.xa import MARK, end, mark_of
from beadline.sinks.shared.retry import Retries, Verdict, running

if TYPE_CHECKING:
    import pyarrow as pa

KEPT_BYTES_MAX = 64 << 20
_IDLE_S = 28_800  # rows may come slowly, and with the connection all of them would go
_SAVED = "beadline"
_DUPLICATE_XID = 1440


class XaWriter:
    """Writes one part; each try has a connection of its own."""

    def __init__(self, server: Server, plan: Plan, part: Part, wish: Wish, where: str) -> None:
        self._server = server
        self._plan = plan
        self._part = part
        self._wish = wish
        self._where = where
        self._about = f"{where}, epoch {part.id.epoch}, part {part.id.partition}"
        self._xid = Xid.of(part.id)
        self._taken: list[pa.RecordBatch] = []  # in this try
        self._left: list[pa.RecordBatch] = []  # read, and not taken yet
        self._rows = self._bytes = 0
        self._restartable = True
        self._failure: BaseException | None = None
        self._retries = Retries(running(server.timeout_s))

    def write(self, connection: Connection, batches: Iterator[pa.RecordBatch]) -> MySqlPart | None:
        """Leave a prepared transaction; ``None`` and nothing if there are no rows.

        The connection must be closed then: nobody else can end what is prepared before.
        """
        chunks = self._read(batches)
        try:
            return self._write(connection, chunks)
        except library_errors() as error:
            problem = error
        connection.close()
        while self._again(problem):
            try:
                with closing(self._server.connect()) as other:
                    end(other, "ROLLBACK", self._xid)
                    return self._write(other, chunks)
            except library_errors() as error:
                problem = error
        raise PrepareFailed(f"{self._about}: {said(problem, self._server.address)}") from None

    def _read(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """What fails here fails the part: the rows behind it would be missing from another try."""
        try:
            yield from chunks_of(batches)
        except BaseException as failure:
            self._failure = failure
            raise

    def _again(self, error: Exception) -> bool:
        if self._failure is not None:
            raise self._failure
        if not self._restartable:
            return False
        duplicate = code_of(error) == _DUPLICATE_XID
        return self._retries.again(Verdict.BUSY if duplicate else verdict(error))

    def _write(self, connection: Connection, chunks: Iterator[pa.RecordBatch]) -> MySqlPart | None:
        self._left = [*self._taken, *self._left]
        self._taken, self._rows, self._bytes = [], 0, 0
        connection.run(f"SET SESSION wait_timeout = {_IDLE_S}")
        loader = Loader(connection, self._wish.table, self._plan.columns, numbered=False)
        connection.run(f"XA START {self._xid.sql}")
        connection.run(MARK, mark_of(self._part.id, self._xid))
        self._load_all(connection, loader)
        for chunk in chunks:
            self._left.append(chunk)
            self._load_all(connection, loader)
            self._retries.progressed()
        if not self._rows:
            return None
        connection.run(f"XA END {self._xid.sql}")
        reach("staging.written")
        connection.run(f"XA PREPARE {self._xid.sql}")
        return MySqlPart("xa", self._xid.transaction, self._rows)

    def _load_all(self, connection: Connection, loader: Loader) -> None:
        """Load what is left; rows that do not fit are found by halving, and refused."""
        while self._left:
            chunk = self._left[0]
            connection.run(f"SAVEPOINT {_SAVED}")
            try:
                taken = loader.load(chunk, 0)
            except Misfit as misfit:
                connection.run(f"ROLLBACK TO SAVEPOINT {_SAVED}")
                half = chunk.num_rows // 2
                self._left[:1] = [chunk.slice(0, half), chunk.slice(half)] if half else []
                if not half:
                    self._part.refuse(chunk, f"{self._where} does not take it: {misfit}")
                continue
            if taken != chunk.num_rows:
                raise PrepareFailed(f"{self._about}: {taken} of {chunk.num_rows} rows were taken")
            self._left.pop(0)
            self._keep(chunk)

    def _keep(self, chunk: pa.RecordBatch) -> None:
        self._rows += chunk.num_rows
        self._bytes += chunk.nbytes
        if self._bytes > KEPT_BYTES_MAX:
            self._restartable = False
            self._taken.clear()
        if self._restartable:
            self._taken.append(chunk)
