"""The ledger and the markers: what the database itself remembers of a query.

The ledger says up to which epoch *everything* of a query is in the table. A staged epoch moves it
in the transaction that writes the rows. Prepared transactions cannot be committed together with
anything, so each brings a marker, a row of its own that shows with its rows. When the next epoch is
committed, the one before is complete: then the ledger moves up to it, and its markers go, in one
transaction. So a single statement finds its marker or a ledger past it for a committed part, and
neither for a lost one.

In that same transaction the ledger says how many parts are to come, as a negative number of rows.
With fewer markers than that the epoch is not whole: so a server that was restored to a moment
between two commits of one epoch is not taken for one that has all of it.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass

from beadline.sink import LEDGER, EpochId, LedgerRows, PartId, QueryId, Seen
from beadline.sinks.postgres.connect import RunStatement, literal
from beadline.sinks.shared.sql.dialect import quoted

MARKERS = "_beadline_parts"
# Two starts that make the same tables at once would block each other.
_MAKE_LOCK = 0x6265_6164
_NO_EPOCH = -1


@dataclass(frozen=True)
class PostgresLedger:
    """The ledger of one table, in the table's own schema."""

    run: RunStatement
    schema: str
    target: str

    @property
    def _ledger(self) -> str:
        return quoted(self.schema, LEDGER)

    @property
    def _markers(self) -> str:
        return quoted(self.schema, MARKERS)

    def is_made(self) -> bool:
        """Whether a query has ever been started on this schema."""
        names = ", ".join(f"to_regclass({literal(n)})" for n in (self._ledger, self._markers))
        return None not in self.run(f"SELECT {names}")[0]

    def make(self) -> None:
        """Create both tables unless they are there."""
        if self.is_made():
            return
        # Every attempt has a global id of its own, so no two wait for each other in the index. A
        # table without a primary key could not be trimmed where a publication has all tables.
        self.run(f"""BEGIN; SELECT pg_advisory_xact_lock({_MAKE_LOCK});
            CREATE TABLE IF NOT EXISTS {self._ledger} (
                query text NOT NULL, target text NOT NULL, sink text NOT NULL,
                incarnation text NOT NULL, epoch bigint NOT NULL, nonce text NOT NULL,
                rows bigint NOT NULL, decided_at_ms bigint NOT NULL,
                PRIMARY KEY (query, target, sink));
            CREATE TABLE IF NOT EXISTS {self._markers} (
                query text NOT NULL, target text NOT NULL, sink text NOT NULL,
                incarnation text NOT NULL, epoch bigint NOT NULL, gid text NOT NULL PRIMARY KEY);
            CREATE INDEX IF NOT EXISTS {quoted(f"{MARKERS}_by_query")}
                ON {self._markers} (query, target); COMMIT""")

    def mark(self, id_: PartId, gid: str) -> None:
        """Write the marker of a part, in the transaction of its rows."""
        texts = (id_.query, self.target, id_.sink, id_.incarnation)
        values = f"{', '.join(map(literal, texts))}, {id_.epoch}, {literal(gid)}"
        self.run(f"INSERT INTO {self._markers} VALUES ({values})")

    def lock(self, query: QueryId, sink: str) -> None:
        """Make other writers of this sink's epochs wait until this transaction ends."""
        key = f"{literal(query.name)}, {literal(self.target)}, {literal(sink)}"
        self.run(
            f"INSERT INTO {self._ledger} VALUES ({key}, {literal(query.incarnation)}, {_NO_EPOCH}, "
            "'', 0, 0) ON CONFLICT DO NOTHING"
        )
        self.run(f"SELECT 1 FROM {self._ledger} WHERE {self._mine(query, sink)} FOR UPDATE")

    def read(self, query: QueryId) -> LedgerRows:
        """Return what is remembered of the query's name, in one statement.

        Of a sink with a row of the ledger the newest epoch of which everything is there; of one
        without, and of another incarnation, every epoch of which there is a marker.
        """
        ours = f"incarnation = {literal(query.incarnation)}"
        unknown = (
            f"NOT EXISTS (SELECT FROM {self._ledger} held WHERE {self._named(query)} AND {ours} "
            "AND sink = part.sink)"
        )
        found = self.run(
            "SELECT sink, incarnation, epoch, nonce FROM ("
            f"SELECT sink, incarnation, {self._whole}, CASE {self._whole} WHEN epoch THEN nonce "
            f"ELSE '' END FROM {self._ledger} held WHERE {self._named(query)} UNION ALL "
            f"SELECT DISTINCT sink, incarnation, epoch, '' FROM {self._markers} part "
            f"WHERE {self._named(query)} AND (NOT {ours} OR {unknown})"
            f") found (sink, incarnation, epoch, nonce) WHERE epoch > {_NO_EPOCH} "
            "ORDER BY epoch DESC, nonce DESC"
        )
        return LedgerRows(query, [(sink, Seen(*seen)) for sink, *seen in found])

    @property
    def _whole(self) -> str:
        """The newest whole epoch of a row ``held`` of the ledger: its own, or the one behind it."""
        markers = (
            f"(SELECT count(*) FROM {self._markers} part WHERE part.query = held.query "
            "AND part.target = held.target AND part.sink = held.sink "
            "AND part.incarnation = held.incarnation AND part.epoch = held.epoch + 1)"
        )
        return f"held.epoch + ({markers} >= greatest(1, -held.rows))::int"

    def write(self, epoch: EpochId, sink: str, rows: int) -> None:
        """Say that the epoch is there; the row is locked, and older."""
        self.run(
            f"UPDATE {self._ledger} SET incarnation = {literal(epoch.query.incarnation)}, "
            f"epoch = {epoch.number}, nonce = {literal(epoch.nonce)}, rows = {rows}, "
            f"decided_at_ms = {epoch.decided_at_ms} WHERE {self._mine(epoch.query, sink)}"
        )
        self._trim(epoch, sink)

    def complete_before(self, epoch: EpochId, sink: str, parts: int) -> None:
        """Say that all epochs before this one are complete, and how many parts of it come now.

        Their markers go. A commit that is repeated may be given fewer parts than the first one.
        """
        query, before = epoch.query, epoch.number - 1
        key = f"{literal(query.name)}, {literal(self.target)}, {literal(sink)}"
        self.run(
            f"INSERT INTO {self._ledger} AS held VALUES ({key}, {literal(query.incarnation)}, "
            f"{before}, '', {-parts}, {epoch.decided_at_ms}) "
            "ON CONFLICT (query, target, sink) DO UPDATE SET incarnation = excluded.incarnation, "
            "epoch = excluded.epoch, nonce = '', decided_at_ms = excluded.decided_at_ms, "
            "rows = CASE WHEN held.epoch = excluded.epoch THEN least(held.rows, excluded.rows) "
            f"ELSE excluded.rows END WHERE held.epoch = {_NO_EPOCH} OR "
            "(held.epoch <= excluded.epoch AND held.incarnation = excluded.incarnation)"
        )
        self._trim(epoch, sink)

    def _trim(self, epoch: EpochId, sink: str) -> None:
        """Delete the markers of older epochs, where the ledger passes them."""
        self.run(
            f"DELETE FROM {self._markers} WHERE {self._mine(epoch.query, sink)} AND "
            f"epoch < {epoch.number} AND incarnation = {literal(epoch.query.incarnation)}"
        )

    def committed(self, epoch: EpochId, sink: str, gids: Sequence[str]) -> set[str]:
        """Which of these parts are there: proven by their markers, or by a ledger past them.

        One statement, so that a marker cannot go between the two looks.
        """
        mine = self._mine(epoch.query, sink)
        listed = ", ".join(map(literal, gids))
        ((newest, found),) = self.run(
            f"SELECT (SELECT epoch FROM {self._ledger} WHERE {mine}), "
            f"(SELECT json_agg(gid)::text FROM {self._markers} WHERE {self._named(epoch.query)} "
            f"AND gid IN ({listed}))"
        )
        if newest is not None and newest >= epoch.number:
            return set(gids)
        return set(json.loads(found)) if found else set()

    def _named(self, query: QueryId) -> str:
        return f"(query = {literal(query.name)} AND target = {literal(self.target)})"

    def _mine(self, query: QueryId, sink: str) -> str:
        return f"({self._named(query)} AND sink = {literal(sink)})"
