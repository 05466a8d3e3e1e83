"""Staging tables: a part's rows, durable and seen by nobody, in a table of their own.

DDL commits by itself, so nothing else can be in one transaction with it. The table therefore says
itself whose it is: its comment, made with it in the same statement, is the part's id. There is no
moment at which a crash leaves a table that cannot be found, or a note of a table that is not there.

Every chunk is a transaction of its own and rows are numbered, so a chunk whose answer was lost is
sent again: what is there already is skipped by its number, whoever comes first.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from beadline.errors import BeadlineError, PrepareFailed
from beadline.ids import PartId, QueryId
from beadline.points import reach
from beadline.sink import Part, Prepared
from beadline.sinks.mysql.chunks import chunks_of
from beadline.sinks.mysql.columns import Column, quoted
from beadline.sinks.mysql.connection import Connection
from beadline.sinks.mysql.loading import Loader, Misfit
from beadline.sinks.mysql.merge import twice_query, twice_said
from beadline.sinks.mysql.part import STAGE, MySqlPart, stage_name
from beadline.sinks.mysql.plan import ROW, Plan, Wish
from beadline.sinks.mysql.problems import (
    LOCKED,
    MISSING_TABLE,
    code_of,
    library_errors,
    patiently,
    said,
)
from beadline.sinks.mysql.server import Server

if TYPE_CHECKING:
    import pyarrow as pa

_DROP_LOCK_WAIT_S = 1  # the least that MySQL takes
_DROP_LOCKED_S = 10.0  # for all that are locked together


class StagedWriter:
    """Writes one part into its staging table."""

    def __init__(self, server: Server, plan: Plan, part: Part, wish: Wish, where: str) -> None:
        """Nothing is made before there is a row to keep."""
        self._server = server
        self._plan = plan
        self._part = part
        self._wish = wish
        self._where = where
        self._name = stage_name(part.id)
        self._connection: Connection | None = None
        self._loader: Loader | None = None
        self._made = False
        self._repeated = False
        self._sent = self._kept = 0

    def write(self, connection: Connection, batches: Iterator[pa.RecordBatch]) -> MySqlPart | None:
        """Stage the rows. It begins on this connection, and goes on with others if it is lost."""
        self._connection = connection
        try:
            for chunk in chunks_of(batches):
                self._stage(chunk)
            if not self._kept:
                self.discard()
                return None
            self._prove()
        except Exception:
            self.discard()
            raise
        finally:
            self._close()
        reach("staging.written")
        return MySqlPart("staged", self._name, self._kept)

    def discard(self) -> None:
        """Drop the table, if the server lets us; otherwise a sweep finds it."""
        if not self._made:
            return
        try:
            drop(self._open(), [self._name])
        except library_errors():
            self._close()

    def _stage(self, chunk: pa.RecordBatch) -> None:
        """Stage the rows of a chunk; those that do not fit are found by halving, and refused."""
        first = self._sent
        try:
            self._patiently(lambda: self._load(chunk, first))
        except Misfit as misfit:
            if chunk.num_rows == 1:
                why = self._without_stage(str(misfit))
                self._part.refuse(chunk, f"{self._where} does not take it: {why}")
                return
            half = chunk.num_rows // 2
            self._stage(chunk.slice(0, half))
            self._stage(chunk.slice(half))
            return
        self._sent += chunk.num_rows
        self._kept += chunk.num_rows

    def _load(self, chunk: pa.RecordBatch, first: int) -> None:
        connection = self._open()
        if not self._made:
            again = "IF NOT EXISTS " if self._repeated else ""
            connection.run(_create(self._name, self._part.id, self._plan.columns, again))
            self._made = True
        if self._loader is None:
            self._loader = Loader(connection, self._name, self._plan.columns, numbered=True)
        connection.run("START TRANSACTION")
        try:
            taken = self._loader.load(chunk, first)
        except Misfit:
            connection.run("ROLLBACK")
            raise
        connection.commit()
        if taken != chunk.num_rows and not self._repeated:
            raise PrepareFailed(f"{self._about}: {taken} of {chunk.num_rows} rows were taken")

    def _prove(self) -> None:
        """Count what was sent more than once, and look for what must not be there."""
        if self._repeated:
            count = f"SELECT COUNT(*) FROM {quoted(self._name)}"
            ((found,),) = self._patiently(lambda: self._open().ask(count))
            if found != self._kept:
                raise PrepareFailed(
                    f"{self._about}: {found} rows are there, {self._kept} were sent"
                )
        if self._wish.mode == "upsert":
            query = twice_query([self._name], self._wish)
            keys = self._patiently(lambda: self._open().ask(query))
            if keys:
                why = twice_said(self._wish)
                raise PrepareFailed(f"{self._about}: {why}, or make keys unique")

    def _without_stage(self, text: str) -> str:
        """A reason without the name of this attempt's table: a replay must give the same one."""
        whole = f"{quoted(self._server.address.database)}.{quoted(self._name)}"
        for name in (f"{whole}.", f" for {whole}", f"{self._name}.", self._name):
            text = text.replace(name, "")
        return text

    @property
    def _about(self) -> str:
        id_ = self._part.id
        return f"{self._where}, epoch {id_.epoch}, part {id_.partition}"

    def _patiently(self, act: Any) -> Any:
        """Once more on a new connection until the server is back; say which part if it is not."""

        def once() -> Any:
            try:
                return act()
            except library_errors():
                self._close()
                self._repeated = True
                raise

        try:
            return patiently(once, self._server.timeout_s)
        except library_errors() as error:
            if self._made and code_of(error) in MISSING_TABLE:
                why = (
                    "its staging table was swept while it was written: this attempt must not go on"
                )
            else:
                why = said(error, self._server.address)
            raise PrepareFailed(f"{self._about}: {why}") from None

    def _open(self) -> Connection:
        if self._connection is None:
            self._connection = self._server.connect()
        return self._connection

    def _close(self) -> None:
        if self._connection is not None:
            self._connection.close()
        self._connection = self._loader = None


def _create(name: str, id_: PartId, columns: Sequence[Column], again: str) -> str:
    definitions = [f"{quoted(ROW)} BIGINT NOT NULL PRIMARY KEY"]
    definitions += [column.definition for column in columns]
    return (
        f"CREATE TABLE {again}{quoted(name)} ({', '.join(definitions)}) "
        f"ENGINE = InnoDB COMMENT = '{id_}'"
    )


def staged_in_doubt(connection: Connection, query: QueryId) -> Iterable[Prepared[MySqlPart]]:
    """Every staging table of this query; what else has such a name is skipped."""
    pattern = STAGE.replace("_", r"\_")
    for row in connection.ask(f"SHOW TABLE STATUS LIKE '{pattern}%'"):
        name, comment = str(row[0]), str(row[17])
        id_ = PartId.parse(comment)
        if id_ is not None and id_.belongs_to(query) and name == stage_name(id_):
            yield Prepared(id_, 0, MySqlPart("staged", name, 0))


def drop(connection: Connection, names: Sequence[str]) -> None:
    """Drop staging tables, those that are there and that nobody reads.

    Whoever has read one keeps it locked until their transaction ends, which may be hours. Nobody
    waits for that: no later part has the name of one that is left, and a later sweep finds it.
    Afterwards the connection is as impatient with everything else.
    """
    if any(not name.startswith(STAGE) for name in names):
        raise BeadlineError(f"not a staging table: {names}")
    if not names:
        return
    connection.run(f"SET SESSION lock_wait_timeout = {_DROP_LOCK_WAIT_S}")
    if _dropped(connection, names) or len(names) == 1:
        return
    deadline_s = time.monotonic() + _DROP_LOCKED_S
    for name in names:
        if not _dropped(connection, [name]) and time.monotonic() > deadline_s:
            return


def _dropped(connection: Connection, names: Sequence[str]) -> bool:
    """Drop all of these, or none because one is locked."""
    try:
        connection.run(f"DROP TABLE IF EXISTS {', '.join(map(quoted, names))}")
    except library_errors() as error:
        if code_of(error) not in LOCKED:
            raise
        return False
    return True
