"""``MySqlSink``: rows into a table of MySQL or MariaDB, each once.

By default a part is staged in a table of its own, and an epoch's rows and its ledger row are one
transaction. Because they are, even ``add``, which is not idempotent, happens once: a commit that is
repeated, or comes late, finds its epoch in the ledger and changes nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass
from itertools import chain
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
    Guarantee,
    Outcome,
    Part,
    PartId,
    Prepared,
    PrepareFailed,
    QueryId,
    Retries,
    Seen,
    Sink,
    Verdict,
    name_from,
    running,
    way_out,
)
from beadline.sinks.mysql.check import check_server
from beadline.sinks.mysql.columns import MYSQL, MySqlColumn
from beadline.sinks.mysql.connection import Connection, MySqlAddress, MySqlServer
from beadline.sinks.mysql.ledger import MAKE, MySqlLedger
from beadline.sinks.mysql.part import STAGE, MySqlPart, MySqlParts
from beadline.sinks.mysql.plan import MySqlHow, MySqlSettings, make_plan
from beadline.sinks.mysql.problems import (
    is_blocked,
    library_errors,
    retried,
    said,
    verdict,
)
from beadline.sinks.mysql.staged import StagedWriter, commit_staged, drop, staged_in_doubt
from beadline.sinks.mysql.table import read_table
from beadline.sinks.mysql.xa import (
    MAKE_XA_MARKERS,
    XA_MARKERS,
    XaWriter,
    abort_xa,
    commit_xa,
    may_recover,
    xa_in_doubt,
)
from beadline.sinks.shared.sql.plan import TablePlan
from beadline.sinks.shared.sql.settings import Mode, names_of

if TYPE_CHECKING:
    import pyarrow as pa

T = TypeVar("T")
_OURS = (LEDGER, XA_MARKERS)
_TIMEOUT_MAX_S = 86_400


@dataclass(frozen=True)
class MySqlSink(Sink[MySqlPart]):
    """Rows into an InnoDB table that is there, at ``mysql://user:password@host:3306/database``.

    ``append`` adds rows. ``upsert`` replaces the row with the same ``key``; if an epoch holds a key
    twice, the row with the largest ``order_by`` counts; without one, or if two are equal in it, it
    is an error. A true value in the boolean column ``deleted`` deletes the row of that key.
    ``add`` adds every other column to what is there under the ``key``; a null adds nothing.

    ``how="staged"``, which is what ``auto`` chooses, makes an epoch visible at once. ``"xa"``, for
    ``append`` only, writes rows once instead of twice, and shows an epoch part by part.
    ``timeout_s`` is how long a server that is down, or takes no writes, is waited for while an
    epoch is prepared.

    >>> MySqlSink("mysql://me:secret@db/shop", "orders", mode="upsert", key="id")
    MySqlSink(shop-orders)
    """

    dsn: str
    table: str
    mode: Mode = "append"
    key: Sequence[str] = ()
    order_by: str | None = None
    deleted: str | None = None
    how: MySqlHow = "auto"
    timeout_s: float = 60.0

    def __post_init__(self) -> None:
        """Refuse settings that are wrong for every server."""
        object.__setattr__(self, "key", names_of(self.key))
        name = MYSQL.fold(self.table)
        bad = not self.table or "\0" in self.table or len(self.table) > 64
        if bad or name.startswith(STAGE) or name in _OURS:
            raise BadSink(f"{self.table!r} cannot name the table of a sink. {NOTHING_WRITTEN}")
        settings = self._settings
        settings.check()
        columns = [MYSQL.fold(name) for name in (*self.key, self.order_by, self.deleted) if name]
        if self.how not in get_args(MySqlHow):
            raise settings.bad(f"how {self.how!r} is not auto, staged or xa.")
        if len(set(columns)) < len(columns):
            raise settings.bad("the key, order_by= and deleted= must be different columns.")
        if settings.xa and self.mode != "append":
            raise settings.bad(
                "how='xa' is for mode='append': what must be compared with the table is written "
                "when the epoch is decided."
            )
        if not 0 < self.timeout_s <= _TIMEOUT_MAX_S:
            raise settings.bad("timeout_s must be above 0, up to a day.")

    @property
    def default_name(self) -> str:
        """The database and the table."""
        return name_from(self._server.address.database, self.table)

    @property
    def _server(self) -> MySqlServer:
        return MySqlServer(MySqlAddress.parse(self.dsn), self.timeout_s)

    @property
    def _settings(self) -> MySqlSettings:
        address = self._server.address
        where = f"MySQL table {self.table!r} of {address.database!r} on {address.place}"
        key = tuple(self.key)
        return MySqlSettings(
            MYSQL, where, self.table, self.mode, key, self.order_by, self.deleted, self.how
        )

    def check(self, schema: pa.Schema, query: QueryId) -> Capabilities:
        """Is the server there, may we write, and does the table fit the rows?"""
        settings = self._settings
        facts = check_server(self._server, settings, schema)
        if settings.xa:
            sentence = "Each row shows once: a part is a prepared XA transaction, which outlives "
            sentence += "either side's crash; the parts of an epoch show one after the other."
        else:
            sentence = "Each row takes effect once: an epoch's rows and its ledger row are one "
            sentence += "transaction of the database."
        for setting in facts.unsafe:
            sentence += f" This server's {setting} is not 1: a power cut may "
            sentence += "undo its last second, finished epochs included."
        return Capabilities(
            guarantee=Guarantee.EXACTLY_ONCE,
            sentence=sentence,
            target=f"mysql:{facts.identity}/{self._server.address.database}.{self.table}",
            atomic=not settings.xa,
            holds_up=settings.xa,
            remembers=True,
            start_over=self._start_over(query),
        )

    def _start_over(self, query: QueryId) -> str:
        xa = self._settings.xa
        # Prepared transactions hold locks, and emptying the table would wait for them.
        first = "roll back the old ones of this query that XA RECOVER lists; " if xa else ""
        forget = "; ".join(
            f"DELETE FROM {name} WHERE query = '{query.name}'"
            for name in ((LEDGER, XA_MARKERS) if xa else (LEDGER,))
        )
        database = self._server.address.database
        return f"{first}empty the table and run {forget} in database {database!r}"

    def open(self, query: QueryId, name: str) -> None:
        """Make the ledger."""
        statements = [MAKE, MAKE_XA_MARKERS] if self._settings.xa else [MAKE]

        def make() -> None:
            with closing(self._server.connect()) as connection:
                for statement in statements:
                    connection.run(statement)

        try:
            retried(make, self.timeout_s)
        except library_errors() as error:
            raise BadSink(
                f"{self._settings.where}: the tables that Beadline keeps beside it cannot be made: "
                f"{self._said(error)}. {NOTHING_WRITTEN}"
            ) from None

    def prepare(self, rows: Iterator[pa.RecordBatch], part: Part) -> MySqlPart | None:
        """Stage the part; what the table would not take is refused, while nothing is decided."""
        filled = (batch for batch in rows if batch.num_rows)
        first = next(filled, None)
        if first is None:
            return None
        plan, connection = self._plan(first.schema, part)
        taken = plan.taken(chain((first,), filled), part)
        writes = XaWriter if self._settings.xa else StagedWriter
        with closing(connection):
            return writes(self._server, self._settings, plan, part).write(connection, taken)

    def _plan(self, schema: pa.Schema, part: Part) -> tuple[TablePlan[MySqlColumn], Connection]:
        """What is to become of the rows, and a connection to do it on."""

        def ask() -> tuple[TablePlan[MySqlColumn], Connection]:
            connection = self._server.connect()
            try:
                table = read_table(connection, self.table)
                return make_plan(self._settings, schema, table), connection
            except BaseException:
                connection.close()
                raise

        try:
            return retried(ask, self.timeout_s)
        except library_errors() as error:
            raise PrepareFailed(
                f"{self._settings.where}, epoch {part.id.epoch}, part {part.id.partition}: "
                f"{self._said(error)}"
            ) from None

    def commit(self, epoch: EpochId, parts: MySqlParts) -> CommitResult:
        """Show all parts: staged ones in one transaction with the ledger row, or nothing."""
        if not parts:
            return CommitResult({})
        retries = Retries(running(self.timeout_s))
        while True:
            try:
                with closing(self._server.connect()) as connection:
                    return self._commit(connection, epoch, parts)
            except library_errors() as error:
                judged = verdict(error)
                # A server that takes no writes may be the wrong one, so it is not waited for
                # without end, as the coordinator would.
                if judged is Verdict.UNCLEAR and retries.again(judged):
                    continue
                words = f"{self._settings.where}: {self._said(error)}"
                if judged in (Verdict.BUSY, Verdict.AWAY):
                    return CommitResult(CommitResult.all(parts, Outcome.UNKNOWN).outcomes, words)
                kind = CommitBlocked if is_blocked(error) else CommitFailed
                advice = way_out(parts[0].id.sink, epoch.number) if kind is CommitFailed else ""
                raise kind(
                    f"query {epoch.query.name!r}, epoch {epoch.number}: {words}. The epoch is "
                    f"decided; the next start finishes it. {advice}".rstrip()
                ) from None

    def _commit(self, connection: Connection, epoch: EpochId, parts: MySqlParts) -> CommitResult:
        """Staged parts first: only they tell by the ledger that this epoch is there already."""
        staged = [part for part in parts if part.committable.how == "staged"]
        prepared = [part for part in parts if part.committable.how == "xa"]
        outcomes: dict[PartId, Outcome] = {}
        detail = ""
        if staged:
            result = commit_staged(self._server, connection, self._settings, epoch, staged)
            outcomes, detail = dict(result.outcomes), result.detail
        there = Outcome.LOST not in outcomes.values()
        if prepared:
            outcomes |= commit_xa(connection, self._settings, epoch, prepared)
        if there:
            # The epoch is there. Tables that cannot be dropped now are swept by a start.
            with suppress(*library_errors()):
                drop(connection, [part.committable.name for part in staged])
        return CommitResult(outcomes, detail)

    def abort(self, parts: MySqlParts) -> None:
        """Drop staging tables, roll back XA transactions."""
        staged = [part.committable.name for part in parts if part.committable.how == "staged"]
        prepared = [part.id for part in parts if part.committable.how == "xa"]

        def sweep(connection: Connection) -> None:
            abort_xa(connection, prepared)
            drop(connection, staged)

        # A task that was cancelled may still run a statement: its rows are locked until that ends.
        self._ask(sweep)

    def in_doubt(self, query: QueryId, name: str) -> Iterable[Prepared[MySqlPart]]:
        """Return what is staged or prepared on this server, half-written too.

        Whatever sink it was for: nothing else finds what a sink that is gone has left.
        """

        def look(connection: Connection) -> list[Prepared[MySqlPart]]:
            found = list(staged_in_doubt(connection, query))
            if self._settings.xa or may_recover(connection):
                found += xa_in_doubt(connection, query)
            return found

        return self._ask(look)

    def last_seen(self, query: QueryId, name: str) -> Seen | None:
        """Return what the ledger holds for this table; another incarnation's row first."""
        return self._ask(
            lambda connection: MySqlLedger(connection, query, self.table, name).last_seen()
        )

    def _ask(self, act: Callable[[Connection], T]) -> T:
        """Retry on new connections until the server is back; errors say where, and no secret."""

        def once() -> T:
            with closing(self._server.connect()) as connection:
                return act(connection)

        try:
            return retried(once, self.timeout_s)
        except library_errors() as error:
            raise CommitFailed(
                f"{self._settings.where}: {self._said(error)}. No decided epoch is affected."
            ) from None

    def _said(self, error: BaseException) -> str:
        return said(error, self._server.address)
