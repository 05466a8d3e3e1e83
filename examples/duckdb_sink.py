"""Rows into a table of a DuckDB file: a complete staged sink (see docs/write-a-sink.md)."""

import os
from dataclasses import dataclass

import duckdb
import pyarrow as pa

import beadline.sink as bl

LEDGER = """CREATE TABLE IF NOT EXISTS _beadline_ledger (query TEXT, target TEXT, sink TEXT,
    incarnation TEXT, epoch BIGINT, nonce TEXT, PRIMARY KEY (query, target, sink))"""
READ = """SELECT sink, incarnation, epoch, nonce FROM _beadline_ledger
    WHERE query = ? AND target = ?"""
WRITE = "INSERT OR REPLACE INTO _beadline_ledger VALUES (?, ?, ?, ?, ?, ?)"
MISFITS = """SELECT #1, #2 FROM (DESCRIBE rows) EXCEPT SELECT #1, #2 FROM (DESCRIBE {})
    UNION ALL SELECT table_name, constraint_text FROM duckdb_constraints() WHERE table_name = $1"""


@dataclass(frozen=True)
class DuckDbSink(bl.StagedSink):
    """Append rows to ``table`` in the DuckDB file ``path``; both are created if missing."""

    path: str
    table: str

    def __post_init__(self) -> None:  # on the driver: executors work in other folders
        object.__setattr__(self, "path", os.path.abspath(self.path))

    @property
    def default_name(self) -> str:
        return bl.name_from("duckdb", os.path.basename(self.path), self.table)

    @property
    def staging_folder(self) -> str:
        return f"{self.path}.staged"  # one for all tables of the file, so no leftover is missed

    def check(self, schema: pa.Schema, query: bl.QueryId) -> bl.Capabilities:
        with self._open() as db:
            self._table(db, schema.empty_table())
        promise = "Each row shows once: an epoch and its ledger row are one transaction."
        where, once = f"duckdb:{self.path}#{self.table}", bl.Guarantee.EXACTLY_ONCE
        return bl.Capabilities(once, promise, where, atomic=True, shared_disk=True, remembers=True)

    def write_epoch(self, epoch: bl.StagedEpoch) -> bl.Outcome:
        id_, query = epoch.id, epoch.id.query
        row = [query.name, self.table, epoch.sink, query.incarnation, id_.number, id_.nonce]
        try:
            with duckdb.connect(self.path).begin() as db:  # closing it rolls back
                if epoch.is_committed(self._ledger(db, query).seen(id_.number, epoch.sink)):
                    return bl.Outcome.ALREADY_COMMITTED
                table = self._table(db, pa.Table.from_batches(epoch.batches()))
                db.execute(f"INSERT INTO {table} BY NAME FROM rows").execute(WRITE, row)
                bl.reach("ledger.before")
                db.commit()
        except (duckdb.OperationalError, duckdb.CatalogException) as error:  # busy, or a conflict
            raise bl.OutcomeUnknown(f"{self.target_name}: {error}") from error
        bl.sync_path(os.path.dirname(self.path))  # makes the name of a new file durable
        return bl.Outcome.COMMITTED

    def last_seen(self, query: bl.QueryId, name: str) -> bl.Seen | None:
        with self._open() as db:
            return self._ledger(db, query).last_seen(name)

    def _open(self) -> duckdb.DuckDBPyConnection:  # to read; never committed
        return duckdb.connect(self.path if os.path.exists(self.path) else ":memory:").begin()

    def _table(self, db: duckdb.DuckDBPyConnection, rows: pa.Table) -> str:
        name = '"' + self.table.replace('"', '""') + '"'
        db.register("rows", rows).execute(f"CREATE TABLE IF NOT EXISTS {name} AS FROM rows LIMIT 0")
        misfits = db.execute(MISFITS.format(name), [self.table]).fetchall()
        if misfits:  # a value would be cast, or a row refused after its epoch was decided
            raise bl.BadSink(f"{self.target_name}: {misfits} do not fit. Nothing was written.")
        return name

    def _ledger(self, db: duckdb.DuckDBPyConnection, query: bl.QueryId) -> bl.LedgerRows:
        found = db.execute(LEDGER).execute(READ, [query.name, self.table]).fetchall()
        return bl.LedgerRows(query, [(sink, bl.Seen(*seen)) for sink, *seen in found])
