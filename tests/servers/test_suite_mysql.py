"""The conformance suite on ``MySqlSink``, on a real MariaDB: every mode, both ways in, and XA."""

from __future__ import annotations

import itertools
from collections.abc import Collection, Iterator
from contextlib import AbstractContextManager, closing, contextmanager, nullcontext
from dataclasses import replace
from typing import Any

import pyarrow as pa
import pytest

from beadline.sink import AnySink
from beadline.sinks import MySqlSink
from beadline.sinks.mysql.columns import declaration, quoted
from beadline.sinks.mysql.loading import Loader
from beadline.testing.servers import MariaDbServer
from beadline.testing.suite import *  # noqa: F403
from beadline.testing.suite import Row, SinkHarness

# Each case with two of the five harnesses, chosen by the seed; with BEADLINE_LONG=1 all of them.
pytestmark = pytest.mark.sampled(2)

_tables = (f"suite_{number}" for number in itertools.count())
_STRANGER = "_beadline_stage_of_somebody_else"


class MySqlHarness(SinkHarness):
    """Appends; every case has a database of its own, so that leftovers are its own."""

    settings: dict[str, Any] = {}  # noqa: RUF012 (never changed)

    def __init__(self, server: MariaDbServer) -> None:
        self.server = server
        self.secrets = (server.password,)
        self.databases: list[str] = []

    def run(self, statement: str) -> list[Any]:
        with closing(self.server.connect()) as connection, connection.cursor() as cursor:
            cursor.execute(statement)
            return list(cursor.fetchall())

    def fresh(self, schema: pa.Schema) -> AnySink:
        database = next(_tables)
        self.databases.append(database)
        self.run(f"CREATE DATABASE {database}")
        key = self.settings.get("key", ())
        columns = [
            f"{quoted(field.name)} {declaration(field.type, field.name in key)} "
            f"{'NOT NULL' if field.name in key else 'NULL'}"
            for field in schema
        ]
        if key:
            columns.append(f"PRIMARY KEY ({', '.join(map(quoted, key))})")
        self.run(f"CREATE TABLE {database}.rows_of_it ({', '.join(columns)}) ENGINE = InnoDB")
        # Of the suite's query, whatever case left them: a sink finds its leftovers everywhere.
        for transaction in self.prepared():
            self.run(f"XA ROLLBACK {transaction}")
        for former in self.databases[:-1]:
            for stage in self.stages(former):
                self.run(f"DROP TABLE {former}.{stage}")
        return MySqlSink(self.server.dsn_of(database), "rows_of_it", timeout_s=20, **self.settings)

    def visible(self, sink: AnySink) -> list[Row]:
        import pymysql

        assert isinstance(sink, MySqlSink)
        with (
            closing(self.server.connect()) as connection,
            connection.cursor(pymysql.cursors.DictCursor) as cursor,
        ):
            # MariaDB takes half of a surrogate pair, and pymysql would not read it.
            connection.use_unicode = False
            cursor.execute(f"SELECT * FROM {self.databases[-1]}.rows_of_it")
            return [{name: _text(v) for name, v in row.items()} for row in cursor.fetchall()]

    def leftovers(self, sink: AnySink) -> Collection[str]:
        return self.stages(self.databases[-1]) + self.prepared()

    def stages(self, database: str) -> list[str]:
        found = self.run(f"SHOW TABLES FROM {database}")
        return [name for (name,) in found if name.startswith("_beadline_stage")]

    def prepared(self) -> list[str]:
        found = self.run("XA RECOVER")
        return [
            f"'{data[:length].decode()}','{data[length:].decode()}',{number}"
            for number, length, _, data in found
        ]

    def plant_stranger(self, sink: AnySink) -> str | None:
        self.run(f"CREATE TABLE {self.databases[-1]}.{_STRANGER} (id INT) COMMENT = 'not ours'")
        return _STRANGER

    def unreachable(self, sink: AnySink) -> AbstractContextManager[AnySink]:
        assert isinstance(sink, MySqlSink)
        dead = sink.dsn.replace(f":{self.server.port}", ":1")
        assert dead != sink.dsn
        return nullcontext(replace(sink, dsn=dead, timeout_s=2))

    def alter(self, sink: AnySink) -> AbstractContextManager[None] | None:
        return self._altered()

    @contextmanager
    def _altered(self) -> Iterator[None]:
        modify = f"ALTER TABLE {self.databases[-1]}.rows_of_it MODIFY amount"
        self.run(f"{modify} BIGINT NULL")
        yield
        self.run(f"{modify} DOUBLE NULL")

    def drop(self) -> None:
        for database in self.databases:
            self.run(f"DROP DATABASE {database}")


def _text(value: Any) -> Any:
    return value.decode(errors="surrogateescape") if isinstance(value, bytes) else value


class UpsertHarness(MySqlHarness):
    settings = {"mode": "upsert", "key": ("id",), "order_by": "amount"}  # noqa: RUF012

    def expected(self, rows: list[Row]) -> list[Row]:
        return list({row["id"]: row for row in rows}.values())


class AddHarness(MySqlHarness):
    schema = pa.schema([("id", pa.int64()), ("word", pa.int64()), ("amount", pa.float64())])
    settings = {"mode": "add", "key": ("id",)}  # noqa: RUF012

    def row(self, number: int, version: int = 0) -> Row:
        return {"id": number, "word": 1 + version, "amount": number / 4}

    def alter(self, sink: AnySink) -> None:
        return None  # its rows begin with fractions

    def expected(self, rows: list[Row]) -> list[Row]:
        totals: dict[int, Row] = {}
        for row in rows:
            if row["id"] not in totals:
                totals[row["id"]] = dict(row)
                continue
            for name in row.keys() - {"id"}:
                totals[row["id"]][name] += row[name]
        return list(totals.values())

    def odd_rows(self) -> tuple[pa.Schema, list[Row]]:
        schema = pa.schema([("id", pa.int64()), (self.odd_column, pa.int64())])
        numbers = [0, -1, 2**31, 2**53 + 1, 2**63 - 1, -(2**63), None]
        return schema, [{"id": i, self.odd_column: number} for i, number in enumerate(numbers)]


class XaHarness(MySqlHarness):
    settings = {"how": "xa"}  # noqa: RUF012

    def alter(self, sink: AnySink) -> None:
        return None  # a prepared part locks the table


class InsertHarness(MySqlHarness):
    """A server that does not allow LOAD DATA LOCAL."""


HARNESSES = (MySqlHarness, InsertHarness, UpsertHarness, AddHarness, XaHarness)


@pytest.fixture(params=HARNESSES, ids=("append", "append by INSERT", "upsert", "add", "xa"))
def harness(
    request: pytest.FixtureRequest,
    mariadb_server: MariaDbServer,
    monkeypatch: pytest.MonkeyPatch,
) -> Iterator[SinkHarness]:
    made: MySqlHarness = request.param(mariadb_server)
    if request.param is InsertHarness:
        monkeypatch.setattr(Loader, "local_allowed", False)
    yield made
    made.drop()
