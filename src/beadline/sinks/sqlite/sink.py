"""``SqliteSink``: an epoch's rows and its ledger row in one transaction of one SQLite file.

SQLite cannot hold a prepared transaction, so parts are staged as files beside the database and
written at commit. Because the ledger row is in the same transaction, even
``add``, which is not idempotent, happens once: a commit that is repeated, or comes late, finds its
epoch in the ledger and changes nothing.
"""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from beadline.sink import (
    LEDGER,
    NOTHING_WRITTEN,
    BadSink,
    Capabilities,
    CommitBlocked,
    CommitFailed,
    Guarantee,
    LedgerRows,
    Outcome,
    OutcomeUnknown,
    Part,
    QueryId,
    Seen,
    StagedEpoch,
    StagedPart,
    StagedSink,
    check_previous,
    folders_in,
    name_from,
    reach,
    way_out,
)
from beadline.sinks.shared.sql.checks import deletes
from beadline.sinks.shared.sql.dialect import listed, quoted
from beadline.sinks.shared.sql.modes import added
from beadline.sinks.shared.sql.plan import create_statement
from beadline.sinks.shared.sql.settings import Mode, TableSettings, names_of
from beadline.sinks.sqlite.check import (
    check_file,
    check_table,
    connect,
    is_blocked,
    is_busy,
    never_null_columns,
    read_table,
    said,
)
from beadline.sinks.sqlite.columns import INTEGER, SQLITE, folded, kind_of, values_of
from beadline.sinks.sqlite.refused import without_refused

if TYPE_CHECKING:
    import pyarrow as pa

# One row per query, table and sink: two sinks of one query may write to one table.
_MAKE_LEDGER = f"""CREATE TABLE IF NOT EXISTS {LEDGER} (
    query TEXT NOT NULL, target TEXT NOT NULL COLLATE NOCASE, sink TEXT NOT NULL,
    incarnation TEXT NOT NULL, epoch INTEGER NOT NULL, nonce TEXT NOT NULL,
    rows INTEGER NOT NULL, decided_at_ms INTEGER NOT NULL,
    PRIMARY KEY (query, target, sink)) WITHOUT ROWID"""
_READ_LEDGER = f"""SELECT sink, incarnation, epoch, nonce FROM {LEDGER}
    WHERE query = ? AND target = ? ORDER BY epoch DESC"""
_WRITE_LEDGER = f"INSERT OR REPLACE INTO {LEDGER} VALUES (?, ?, ?, ?, ?, ?, ?, ?)"
_DO_NOTHING = "DO NOTHING"  # of a row that is nothing but its key
_TOO_LARGE = "beadline_too_large"


class _NotTaken(Exception):
    """The database raised no error, but does not hold what the rows say."""


@dataclass(frozen=True)
class SqliteSink(StagedSink):
    """Rows into a table of an SQLite file, which is made at the first commit if it is missing.

    ``append`` adds rows. ``upsert`` replaces the row with the same ``key``; if an epoch holds a key
    twice, the last row wins, in the order of parts and of the rows in each. ``deleted`` names a
    boolean column of the rows, which is not stored: where it is true, the row deletes its key.
    ``add`` adds every other column to the stored value under the ``key``; a null adds nothing.
    Dates and timestamps are kept as ISO text (timestamps in UTC), decimals as text; SQLite has no
    NaN and keeps it as null.

    Refused at prepare, so that a dead-letter sink can take them: null in the key or in a NOT NULL
    column, text that is not UTF-8, dates outside the years 0 to 9999, rows above SQLite's limit; of
    a row that deletes, only the key has to fit. A row that breaks UNIQUE, CHECK or a trigger, and a
    sum beyond 64 bits, is only found at commit, and stops the query with its epoch decided. A table
    that drops rows silently, by ON CONFLICT IGNORE or REPLACE or a trigger with RAISE(IGNORE), is
    refused at the start.

    The parts are staged in a hidden folder beside the database, so driver and executors must share
    that disk.

    >>> SqliteSink("/data/shop.db", "orders", mode="upsert", key="id").default_name
    'shop-orders'
    """

    path: str | os.PathLike[str]
    table: str
    mode: Mode = "append"
    key: Sequence[str] = ()
    deleted: str | None = None
    busy_timeout_s: float = 10.0

    def __post_init__(self) -> None:
        """Make the path absolute, as executors work in other folders; refuse invalid settings."""
        object.__setattr__(self, "key", names_of(self.key))
        if os.fspath(self.path) == ":memory:":
            raise BadSink(f"':memory:' ends with the process; use MemorySink. {NOTHING_WRITTEN}")
        object.__setattr__(self, "path", os.path.abspath(self.path))
        bad = not self.table or "\0" in self.table or folded(self.table).startswith("sqlite_")
        if bad or folded(self.table) == LEDGER:
            raise BadSink(f"{self.table!r} cannot name the table of a sink. {NOTHING_WRITTEN}")
        self._settings.check()

    @property
    def default_name(self) -> str:
        """The database and the table."""
        return name_from(Path(self.path).stem, self.table)

    @property
    def target_name(self) -> str:
        """The table and its file."""
        return f"SQLite table {self.table!r} in {self.path}"

    @property
    def _settings(self) -> TableSettings:
        return TableSettings(
            SQLITE,
            self.target_name,
            self.table,
            self.mode,
            tuple(self.key),
            deleted=self.deleted,
        )

    @property
    def staging_folder(self) -> str:
        """A hidden folder beside the database."""
        return f"{self._staging_root}/{name_from(folded(self.table))}"

    @property
    def staging_folders(self) -> Iterable[str]:
        """Those of other tables of this file."""
        return folders_in(f"file:{self._staging_root}")

    def staged_settings(self, schema: pa.Schema) -> Mapping[str, Any]:
        """Rows that were staged to be added must not be upserted, nor deletes be stored."""
        return self._settings.staged

    @property
    def _staging_root(self) -> Path:
        path = Path(self.path)
        return path.parent / f".{path.name}.beadline"

    def check(self, schema: pa.Schema, query: QueryId) -> Capabilities:
        """Can the file be written, and does the table, if there is one, fit the rows?"""
        self._settings.check_rows(schema)
        table = check_file(Path(self.path), self.busy_timeout_s, self.table)
        if table is not None:
            check_table(table, self._settings, schema)
        return Capabilities(
            guarantee=Guarantee.EXACTLY_ONCE,
            sentence="Each row takes effect once: an epoch's rows and its ledger row are one "
            "transaction of the database.",
            target=f"sqlite:{self.path}#{self.table}",
            atomic=True,
            shared_disk=True,
            remembers=True,
            start_over=f"empty the table and run DELETE FROM {LEDGER} WHERE query = "
            f"'{query.name}' in {self.path}",
        )

    def prepare(self, rows: Iterator[pa.RecordBatch], part: Part) -> StagedPart | None:
        """Stage the part; what the table would not take is refused, while nothing is decided."""
        key = frozenset(map(folded, self.key))
        never_null = key | never_null_columns(Path(self.path), self.busy_timeout_s, self.table)
        fits = (without_refused(batch, never_null, part, key, self.deleted) for batch in rows)
        return self.stage(fits, part)

    def write_epoch(self, epoch: StagedEpoch) -> Outcome:
        """Write all parts and the ledger row in one transaction, or nothing."""
        try:
            # Closing the connection with the transaction open rolls everything back.
            with closing(self._connect()) as database:
                return self._write_epoch(database, epoch)
        except sqlite3.OperationalError as error:
            if is_blocked(error):
                raise CommitBlocked(
                    f"{epoch}: {self.target_name}: {error}. The epoch is decided and none of it is "
                    "visible. Repair the file's rights or its disk; the next start finishes it."
                ) from error
            if not is_busy(error):
                raise
            raise OutcomeUnknown(f"{self.target_name} is locked by another program") from error

    def _write_epoch(self, database: sqlite3.Connection, epoch: StagedEpoch) -> Outcome:
        # Locked from the first statement on: no other writer gets between the look and the write.
        database.execute("BEGIN IMMEDIATE")
        database.execute(_MAKE_LEDGER)
        ledger = self._ledger(database, epoch.id.query)
        if epoch.is_committed(ledger.seen(epoch.id.number, epoch.sink)):
            return Outcome.ALREADY_COMMITTED
        if not self._has(database, self.table):
            check_previous(epoch.id, None)  # dropped, with the ledger left: must not start empty
        epoch.check_parts()
        for part in epoch.parts:
            try:
                self._insert(database, epoch.read(part))
            except (_NotTaken, sqlite3.IntegrityError) as error:
                reason = (
                    str(error)
                    if isinstance(error, _NotTaken)
                    else f"it refuses a row: {said(error)}"
                )
                raise CommitFailed(
                    f"{epoch}, part {part.id.partition}: {self.target_name}: {reason}. The epoch "
                    "is decided and none of it is visible. Remove what prevents it (a constraint, "
                    "a trigger, a conflicting row, a changed column type), and the next start "
                    f"finishes the epoch. {way_out(epoch.sink, epoch.id.number)}"
                ) from error
        query, id_ = epoch.id.query, epoch.id
        owner = (query.name, self.table, epoch.sink, query.incarnation)
        database.execute(
            _WRITE_LEDGER, (*owner, id_.number, id_.nonce, epoch.rows, id_.decided_at_ms)
        )
        reach("ledger.before")
        database.execute("COMMIT")
        return Outcome.COMMITTED

    def _insert(self, database: sqlite3.Connection, batches: Iterator[pa.RecordBatch]) -> None:
        too_large: list[str] = []

        def note(column: str) -> int:
            too_large.append(column)
            return 0  # rolled back with everything else

        database.create_function(_TOO_LARGE, 1, note)
        insert, rows, written = "", 0, 0
        for batch in batches:
            if not insert:
                stored = self._stored(batch.schema)
                self._check_types(database, stored)
                place = f"IF NOT EXISTS {quoted(self.table)}"
                database.execute(create_statement(self._settings, batch.schema, place))
                insert = self._statement(stored)
            for only_deletes, run in self._runs(batch):
                if only_deletes:
                    keys = values_of(run.select(list(self.key)))
                    database.executemany(self._delete_statement, keys)
                    continue
                rows += run.num_rows
                values = values_of(run.select(stored.names))
                written += database.executemany(insert, values).rowcount
            if too_large:
                raise _NotTaken(f"a sum in column {too_large[0]!r} exceeds SQLite's 64 bits")
        if written != rows and not insert.endswith(_DO_NOTHING):
            raise _NotTaken(
                f"it dropped {rows - written} of {rows} rows without an error, as a trigger with "
                "RAISE(IGNORE) or an ON CONFLICT clause does"
            )

    def _stored(self, schema: pa.Schema) -> pa.Schema:
        """The columns of the rows that the table has; the one that marks deletes is not stored."""
        import pyarrow as pa

        return pa.schema([field for field in schema if field.name != self.deleted])

    def _runs(self, batch: pa.RecordBatch) -> Iterator[tuple[bool, pa.RecordBatch]]:
        """Yield runs of rows that delete or do not: the last row of a key wins, so order counts."""
        import numpy as np

        gone = deletes(batch, self.deleted)
        if gone is None:
            yield False, batch
            return
        marks = gone.to_numpy(zero_copy_only=False)
        starts = [0, *(np.flatnonzero(marks[1:] != marks[:-1]) + 1).tolist()]
        for start, end in zip(starts, [*starts[1:], len(marks)], strict=True):
            yield bool(marks[start]), batch.slice(start, end - start)

    def _check_types(self, database: sqlite3.Connection, schema: pa.Schema) -> None:
        """The table may have been altered, or recreated, since the rows were staged."""
        table = read_table(database, self.table)
        columns = {} if table is None else table.columns
        for field in schema:
            column = columns.get(folded(field.name))
            if column is not None and isinstance(SQLITE.fit(field, column), str):
                raise _NotTaken(
                    f"column {field.name!r} is {column.declared or 'without a type'} now, which "
                    f"would change {SQLITE.described(field.type)}"
                )

    def _statement(self, schema: pa.Schema) -> str:
        names = schema.names
        marks = ", ".join("?" * len(names))
        statement = f"INSERT INTO {quoted(self.table)} ({listed(names)}) VALUES ({marks})"
        if self.mode == "append":
            return statement
        changes = [self._change(field) for field in schema if field.name not in self.key]
        act = f"DO UPDATE SET {', '.join(changes)}" if changes else _DO_NOTHING
        return f"{statement} ON CONFLICT ({listed(self.key)}) {act}"

    @property
    def _delete_statement(self) -> str:
        where = " AND ".join(f"{quoted(name)} = ?" for name in self.key)
        return f"DELETE FROM {quoted(self.table)} WHERE {where}"

    def _change(self, field: pa.Field) -> str:
        column = quoted(field.name)
        new = f"excluded.{column}"
        if self.mode == "upsert":
            return f"{column} = {new}"
        total = added(column, new)
        if kind_of(field.type) is INTEGER:
            # Where a sum of two integers does not fit into 64 bits, SQLite makes it a float.
            grown = f"typeof({column}) || typeof({new}) || typeof({column} + {new})"
            name = field.name.replace("'", "''")
            said = f"{_TOO_LARGE}('{name}')"
            total = f"CASE {grown} WHEN 'integerintegerreal' THEN {said} ELSE {total} END"
        return f"{column} = {total}"

    def last_seen(self, query: QueryId, name: str) -> Seen | None:
        """Return what the ledger holds for this table; another incarnation's row first."""
        if not Path(self.path).exists():
            return None
        with closing(self._connect()) as database:
            if not self._has(database, LEDGER):
                return None
            seen = self._ledger(database, query).last_seen(name)
            gone = not self._has(database, self.table)
        # A ledger without its table remembers what is not there. Another query's still warns.
        ours = seen is not None and seen.incarnation == query.incarnation
        return None if ours and gone else seen

    def _has(self, database: sqlite3.Connection, table: str) -> bool:
        made = "SELECT 1 FROM sqlite_master WHERE lower(name) = lower(?)"
        return database.execute(made, (table,)).fetchone() is not None

    def _connect(self) -> sqlite3.Connection:
        return connect(os.fspath(self.path), self.busy_timeout_s)

    def _ledger(self, database: sqlite3.Connection, query: QueryId) -> LedgerRows:
        found = database.execute(_READ_LEDGER, (query.name, self.table)).fetchall()
        return LedgerRows(query, [(sink, Seen(*seen)) for sink, *seen in found])
