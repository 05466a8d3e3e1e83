"""A table of its own for each test of ``PostgresSink``, and the hands that a driver would have."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from contextlib import closing
from typing import Any

import psycopg
import pyarrow as pa

from beadline.ids import EpochId, PartId, QueryId
from beadline.sink import Outcome, Part, Prepared
from beadline.sinks import PostgresSink
from beadline.sinks.postgres.connect import literal
from beadline.sinks.shared.sql.dialect import quoted
from beadline.testing.servers import PostgresServer

QUERY = QueryId("shop", "d" * 32, "file:/shop/checkpoint")
_numbers = itertools.count()


def part_id(epoch: int, partition: int = 0, attempt: int = 0, query: QueryId = QUERY) -> PartId:
    return PartId(query.name, query.incarnation, "orders", 1, epoch, partition, attempt)


def epoch_id(number: int, query: QueryId = QUERY) -> EpochId:
    return EpochId(query, number, f"{number:032x}", 1_700_000_000_000 + number)


class HeardRefusals:
    """A stand-in for a dead-letter sink: what was refused, and why."""

    def __init__(self) -> None:
        self.rows: list[dict[str, Any]] = []
        self.reasons: list[str] = []

    def __call__(self, rows: Any, reason: str) -> None:
        # As numbers, where Python's own dates do not reach.
        numbers = [
            column.view("int64" if column.type.bit_width == 64 else "int32")
            if pa.types.is_temporal(column.type)
            else column
            for column in rows.columns
        ]
        self.rows += pa.RecordBatch.from_arrays(numbers, rows.schema.names).to_pylist()
        self.reasons.append(reason)


class Orders:
    """A schema with a table in it, and a sink on that."""

    def __init__(
        self, server: PostgresServer, columns: str, database: str = "postgres", **settings: Any
    ) -> None:
        self.dsn = server.dsn_of(database)
        self.schema = f"orders {next(_numbers)}"
        self.refused = HeardRefusals()
        self.run(f"CREATE SCHEMA {quoted(self.schema)}")
        if columns:
            self.run(f"CREATE TABLE {quoted(self.schema, 'orders')} ({columns})")
        defaults: dict[str, Any] = {"dsn": self.dsn, "table": "orders", "schema": self.schema}
        self.sink = PostgresSink(**{"timeout_s": 20.0, **defaults, **settings})

    def start(self, rows: pa.Table) -> Any:
        """What a start does with the sink."""
        found = self.sink.check(rows.schema, QUERY)
        self.sink.open(QUERY, "orders")
        return found

    def prepare(self, rows: pa.Table, id_: PartId) -> Prepared[Any]:
        part = self.try_prepare(rows, id_)
        assert part is not None
        return part

    def try_prepare(self, rows: pa.Table, id_: PartId) -> Prepared[Any] | None:
        part = Part(id_, refuse=self.refused)
        committable = self.sink.prepare(iter(rows.to_batches(max_chunksize=3)), part)
        return None if committable is None else Prepared(id_, rows.num_rows, committable)

    def commit(self, number: int, parts: Sequence[Prepared[Any]]) -> set[Outcome]:
        return set(self.sink.commit(epoch_id(number), parts).outcomes.values())

    def epoch(self, number: int, *shares: pa.Table) -> list[Prepared[Any]]:
        """Carry one epoch through, a part for each share."""
        ids = [part_id(number, partition) for partition in range(len(shares))]
        parts = [self.prepare(rows, id_) for rows, id_ in zip(shares, ids, strict=True)]
        assert self.commit(number, parts) == {Outcome.COMMITTED}
        return parts

    def connect(self) -> psycopg.Connection[Any]:
        return psycopg.connect(self.dsn, autocommit=True, connect_timeout=5, client_encoding="UTF8")

    def run(self, statement: str) -> list[tuple[Any, ...]]:
        with closing(self.connect()) as connection:
            cursor = connection.execute(statement.encode())
            return cursor.fetchall() if cursor.description else []

    def rows(self, columns: str = "*") -> list[tuple[Any, ...]]:
        return sorted(self.run(f"SELECT {columns} FROM {quoted(self.schema, 'orders')}"), key=repr)

    def leftovers(self) -> list[str]:
        named = f"schemaname = {literal(self.schema)} AND tablename ~ '^_beadline_stage_'"
        tables = self.run(f"SELECT tablename FROM pg_tables WHERE {named}")
        mine = f"gid ~ '~{QUERY.incarnation}~'"
        return [n for (n,) in tables + self.run(f"SELECT gid FROM pg_prepared_xacts WHERE {mine}")]

    def sweep(self) -> None:
        self.sink.abort(list(self.sink.in_doubt(QUERY, "orders")))


def database(server: PostgresServer, name: str, settings: str = "") -> str:
    """Make a database of its own, for what all tables of one have in common; return its name."""
    with closing(server.connect()) as connection:
        connection.execute(f"CREATE DATABASE {quoted(name)} {settings}".encode())
    return name


def table(**columns: Any) -> pa.Table:
    """Rows, by column; ids and totals are whole numbers."""
    return pa.table(columns)
