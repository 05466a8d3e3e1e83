"""``PostgresSink``: an epoch's rows in a table, once, by prepared transactions or staged.

The files of this folder in the order in which a row meets them: ``check`` (``table``, ``columns``,
``plan``) before the first row; ``prepare`` on the executors, which leaves a ``part``; ``two_phase``
or ``staged`` at commit, both with the ``ledger``; ``discard`` for what is left over.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeVar, get_args

from beadline.sink import (
    LEDGER,
    NOTHING_WRITTEN,
    BadSink,
    Capabilities,
    CommitBlocked,
    CommitFailed,
    CommitResult,
    EpochId,
    Outcome,
    Part,
    PartId,
    Prepared,
    QueryId,
    Retries,
    Seen,
    Sink,
    Verdict,
    name_from,
    running,
    way_out,
)
from beadline.sinks.postgres import staged, two_phase
from beadline.sinks.postgres.check import check
from beadline.sinks.postgres.columns import IDENTIFIER_BYTES_MAX, POSTGRES
from beadline.sinks.postgres.connect import PostgresAddress, RunStatement
from beadline.sinks.postgres.discard import discard, in_doubt
from beadline.sinks.postgres.ledger import MARKERS, PostgresLedger
from beadline.sinks.postgres.part import PREPARED, STAGE_PREFIX, STAGED, PostgresPart, PostgresParts
from beadline.sinks.postgres.plan import PostgresHow, PostgresSettings
from beadline.sinks.postgres.prepare import Preparing
from beadline.sinks.postgres.problems import (
    OUT_OF_MEMORY,
    is_blocked,
    is_database_error,
    said,
    sql_state,
    verdict,
)
from beadline.sinks.postgres.table import read_table
from beadline.sinks.shared.sql.settings import Mode, names_of

if TYPE_CHECKING:
    import pyarrow as pa

T = TypeVar("T")
_FINE = {Outcome.COMMITTED, Outcome.ALREADY_COMMITTED}


@dataclass(frozen=True)
class PostgresSink(Sink[PostgresPart]):
    """Rows into a table of PostgreSQL, which must exist.

    ``append`` adds rows. ``upsert`` replaces the row with the same ``key``; where a key comes twice
    in an epoch, the row with the largest ``order_by`` counts, and without it that is an error; a
    row whose column ``deleted`` is true deletes its key. ``add`` adds every other column to what is
    there under the ``key``; a null adds nothing. ``deleted`` and ``order_by`` may name columns that
    the table lacks.

    ``how`` is "prepared" (a prepared transaction per part), "staged" (a staging table per part, and
    one transaction per epoch) or "auto", the first where server and table allow it.
    ``timeout_s`` is how long a part waits for a server that is down, and any step for a lock.

    >>> PostgresSink("postgresql://localhost/shop", table="orders", mode="upsert", key="id")
    PostgresSink(postgres-orders)
    """

    dsn: str
    table: str
    schema: str | None = None
    mode: Mode = "append"
    key: Sequence[str] = ()
    order_by: str | None = None
    deleted: str | None = None
    how: PostgresHow = "auto"
    timeout_s: float = 30.0

    def __post_init__(self) -> None:
        """Refuse settings that are wrong for every server."""
        object.__setattr__(self, "key", names_of(self.key))
        ours = self.table in (LEDGER, MARKERS) or self.table.startswith(STAGE_PREFIX)
        for name in (self.table, *(() if self.schema is None else (self.schema,))):
            if not name or "\0" in name or len(name.encode()) > IDENTIFIER_BYTES_MAX or ours:
                raise BadSink(f"{name!r} cannot name the table of a sink. {NOTHING_WRITTEN}")
        settings = self._settings
        settings.check()
        if self.how not in get_args(PostgresHow):
            raise settings.bad(f"how {self.how!r} is not auto, staged or prepared.")

    @property
    def default_name(self) -> str:
        """The table."""
        words = (self.table,) if self.schema is None else (self.schema, self.table)
        return name_from("postgres", *words)

    @property
    def _server(self) -> PostgresAddress:
        return PostgresAddress(self.dsn, self.timeout_s)

    @property
    def _settings(self) -> PostgresSettings:
        whole = self.table if self.schema is None else f"{self.schema}.{self.table}"
        return PostgresSettings(
            POSTGRES,
            f"PostgreSQL table {whole!r}",
            self.table,
            self.mode,
            tuple(self.key),
            self.order_by,
            self.deleted,
            self.schema,
            self.how,
        )

    def check(self, schema: pa.Schema, query: QueryId) -> Capabilities:
        """Is the server there, does the table fit the rows, and how are they delivered?"""
        return check(self._server, self._settings, schema, query)

    def open(self, query: QueryId, name: str) -> None:
        """Create the ledger."""

        def make(run: RunStatement) -> None:
            ledger = self._ledger(run)
            if ledger is not None:
                ledger.make()

        self._ask(make)

    def prepare(self, rows: Iterator[pa.RecordBatch], part: Part) -> PostgresPart | None:
        """Copy the part in; what the table would not take is refused, while nothing is decided."""
        return Preparing(self._server, self._settings, rows, part).run()

    def commit(self, epoch: EpochId, parts: PostgresParts) -> CommitResult:
        """Commit the prepared transactions, then all that is staged in one."""
        if not parts:
            return CommitResult({})
        retries = Retries(running(self.timeout_s))
        while True:
            try:
                with self._server.connected(again=True) as run:
                    return self._commit(run, epoch, parts)
            except Exception as error:
                if not is_database_error(error):
                    raise
                judged = verdict(error)
                # What is not understood is not retried without end, as the coordinator would.
                if judged is Verdict.UNCLEAR and retries.again(judged):
                    continue
                words = f"{self._settings.where}: {said(error, self.dsn)}"
                passes = sql_state(error) != OUT_OF_MEMORY
                if passes and judged in (Verdict.BUSY, Verdict.AWAY):
                    return CommitResult(CommitResult.all(parts, Outcome.UNKNOWN).outcomes, words)
                kind = CommitBlocked if is_blocked(error) else CommitFailed
                end = f" {way_out(parts[0].id.sink, epoch.number)}" if kind is CommitFailed else ""
                raise kind(
                    f"query {epoch.query.name!r}, epoch {epoch.number}: {words}. The epoch is "
                    "decided and nothing of it is lost; the next start finishes it. "
                    f"{self._advice(error, len(parts))}{end}"
                ) from None

    def _advice(self, error: Exception, parts: int) -> str:
        state = sql_state(error)
        if state == OUT_OF_MEMORY:
            return (
                f"Each of the {parts} parts needs a lock: raise max_locks_per_transaction on the "
                "server, or coalesce to fewer partitions."
            )
        if state is None:
            return "Correct address, user, password or certificates first."
        return "Repair what the server says first."

    def _commit(self, run: RunStatement, epoch: EpochId, parts: PostgresParts) -> CommitResult:
        server, settings = self._server, self._settings
        table = read_table(run, self.schema, self.table)
        if table is None:
            raise CommitFailed(
                f"query {epoch.query.name!r}, epoch {epoch.number}: {settings.where} is gone. The "
                "epoch is decided: restore the table, and the next start finishes it. "
                f"{way_out(parts[0].id.sink, epoch.number)}"
            )
        outcomes: dict[PartId, Outcome] = {}
        detail = ""
        prepared = [part for part in parts if part.committable.how == PREPARED]
        if prepared:
            outcomes, detail = two_phase.commit(
                run, server, settings.where, table, epoch, prepared, len(parts)
            )
        # An epoch has parts of both kinds where the slots for prepared transactions ran out. What
        # is staged comes last, because it moves the ledger: then all of the epoch must be there.
        waiting = [part for part in parts if part.committable.how == STAGED]
        if waiting:
            if set(outcomes.values()) <= _FINE:
                outcome, detail = staged.commit(run, server, settings, table, epoch, waiting)
            else:
                lost = Outcome.LOST in outcomes.values()
                outcome = Outcome.LOST if lost else Outcome.UNKNOWN
            outcomes |= {part.id: outcome for part in waiting}
        return CommitResult(outcomes, detail)

    def abort(self, parts: PostgresParts) -> None:
        """Roll back, and drop."""
        if parts:
            self._ask(lambda run: discard(run, [part.committable for part in parts]))

    def in_doubt(self, query: QueryId, name: str) -> Iterable[Prepared[PostgresPart]]:
        """List this query's prepared transactions and staging tables in this database.

        Whatever sink they were for: nothing else finds those of a sink that is gone.
        """
        return self._ask(lambda run: list(in_doubt(run, query)))

    def last_seen(self, query: QueryId, name: str) -> Seen | None:
        """Return the newest whole epoch of this sink in the table; another incarnation's first."""

        def look(run: RunStatement) -> Seen | None:
            ledger = self._ledger(run)
            if ledger is None or not ledger.is_made():
                return None
            return ledger.read(query).last_seen(name)

        return self._ask(look)

    def _ask(self, act: Callable[[RunStatement], T]) -> T:
        return self._server.ask(self._settings.where, act)

    def _ledger(self, run: RunStatement) -> PostgresLedger | None:
        table = read_table(run, self.schema, self.table)
        return None if table is None else PostgresLedger(run, table.schema, table.target)
