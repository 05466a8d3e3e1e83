"""Hands for the tests of ``MySqlSink``: a table of their own, and the calls of the protocol."""

from __future__ import annotations

import itertools
import uuid
from collections.abc import Iterator, Sequence
from contextlib import closing
from typing import Any

import pyarrow as pa

from beadline.ids import EpochId, PartId, QueryId
from beadline.sink import Outcome, Part, Prepared
from beadline.sinks import MySqlSink
from beadline.testing.servers import MariaDbServer

_numbers = itertools.count()
RefusedKeys = list[tuple[Any, str]]  # the first column of a row, and the reason


class Table:
    """A table in a database of its own, and a query that writes to it."""

    def __init__(self, server: MariaDbServer, columns: str, **settings: Any) -> None:
        self.server = server
        self.database = f"test_{next(_numbers)}"
        self.run(f"CREATE DATABASE {self.database}")
        self.run(f"CREATE TABLE {self.database}.t ({columns})")
        self.query = QueryId("orders", uuid.uuid4().hex, "file:/orders")
        self.settings = {"timeout_s": 20, **settings}
        self.refused: RefusedKeys = []

    def sink(self, **changes: Any) -> MySqlSink:
        settings = {**self.settings, **changes}
        return MySqlSink(self.server.dsn_of(self.database), "t", **settings)

    def opened(self, schema: pa.Schema) -> MySqlSink:
        sink = self.sink()
        sink.check(schema, self.query)
        sink.open(self.query, "mine")
        return sink

    def run(self, statement: str) -> list[Any]:
        with closing(self.server.connect()) as connection, connection.cursor() as cursor:
            cursor.execute(statement)
            return list(cursor.fetchall())

    def rows(self, what: str = "*") -> list[Any]:
        return sorted(self.run(f"SELECT {what} FROM {self.database}.t"), key=repr)

    def stages(self) -> list[str]:
        found = self.run(f"SHOW TABLES FROM {self.database} LIKE '\\_beadline\\_stage%'")
        return [name for (name,) in found]

    def part_id(self, epoch: int = 0, partition: int = 0, attempt: int = 0) -> PartId:
        return PartId(self.query.name, self.query.incarnation, "mine", 1, epoch, partition, attempt)

    def prepare(
        self,
        sink: MySqlSink,
        rows: pa.Table | Iterator[Any],
        epoch: int = 0,
        partition: int = 0,
        dead_letters: bool = False,
    ) -> Prepared[Any] | None:
        """Prepare; with ``dead_letters`` refused rows are kept in ``refused``."""
        id_ = self.part_id(epoch, partition)
        part = Part(id_, refuse=self._keep) if dead_letters else Part(id_)
        batches = rows.to_batches() if isinstance(rows, pa.Table) else rows
        committable = sink.prepare(iter(batches), part)
        return None if committable is None else Prepared(id_, committable.rows, committable)

    def _keep(self, rows: pa.RecordBatch, reason: str) -> None:
        self.refused += [(first, reason) for first in rows.column(0).to_pylist()]

    def epoch(self, number: int = 0) -> EpochId:
        return EpochId(self.query, number, f"nonce-{number}", 1_700_000_000_000 + number)

    def commit(
        self, sink: MySqlSink, parts: Sequence[Prepared[Any] | None], epoch: int = 0
    ) -> set[Outcome]:
        there = [part for part in parts if part is not None]
        return set(sink.commit(self.epoch(epoch), there).outcomes.values())

    def write(self, *shares: pa.Table, epoch: int = 0) -> set[Outcome]:
        """One whole epoch."""
        sink = self.opened(shares[0].schema)
        parts = [self.prepare(sink, share, epoch, i) for i, share in enumerate(shares)]
        return self.commit(sink, parts, epoch)


COLUMNS = "id INT PRIMARY KEY, n INT, w VARCHAR(20)"
UPSERT: dict[str, Any] = {"mode": "upsert", "key": "id"}


def rows_of(*rows: tuple[Any, ...], **columns: Any) -> pa.Table:
    """Rows of id, n and w, or the first of these, and more columns."""
    types = (pa.int32(), pa.int32(), pa.string())
    found = enumerate(zip(*rows, strict=True))
    arrays = [pa.array(values, types[place]) for place, values in found]
    table = pa.table(arrays, names=["id", "n", "w"][: len(arrays)])
    for name, values in columns.items():
        table = table.append_column(name, pa.array(values))
    return table
