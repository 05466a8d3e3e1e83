"""The conformance suite on ``PostgresSink``: both ways of appending, upsert and add."""

from __future__ import annotations

import itertools
from collections.abc import Collection, Iterator
from contextlib import AbstractContextManager, closing, contextmanager, nullcontext
from dataclasses import replace
from typing import Any

import pyarrow as pa
import pytest
from psycopg.conninfo import make_conninfo

from beadline.sink import AnySink
from beadline.sinks import PostgresSink
from beadline.sinks.postgres.connect import literal
from beadline.sinks.shared.sql.dialect import quoted
from beadline.sinks.shared.sql.plan import create_statement
from beadline.testing.servers import PostgresServer
from beadline.testing.suite import *  # noqa: F403
from beadline.testing.suite import Row, SinkHarness
from tests.added_rows import AddedRows

# Each case with two of the four harnesses, chosen by the seed; with BEADLINE_LONG=1 all of them.
pytestmark = pytest.mark.sampled(2)

_schemas = (f"suite {number}" for number in itertools.count())
_TABLE = 'the "rows"; --'
_STRANGER = "somebody-elses-transaction"
_STRANGE_TABLE = "_beadline_stage_of_somebody_else"


class StagedHarness(SinkHarness):
    settings: dict[str, Any] = {"how": "staged"}  # noqa: RUF012 (never changed)
    prepares = False

    def __init__(self, server: PostgresServer) -> None:
        self.server = server
        self.secrets = (server.password,)

    def fresh(self, schema: pa.Schema) -> AnySink:
        sink = PostgresSink(self.server.dsn, _TABLE, schema=next(_schemas), **self.settings)
        place = quoted(sink.schema or "", sink.table)
        self.run(f"CREATE SCHEMA {quoted(sink.schema or '')}")
        self.run(create_statement(sink._settings, schema, place))
        # Transactions are the whole server's, and the suite's query has always the same name.
        for gid in self.transactions():
            self.run(f"ROLLBACK PREPARED {literal(gid)}")
        return sink

    def run(self, statement: str) -> list[tuple[Any, ...]]:
        with closing(self.server.connect()) as connection:
            cursor = connection.execute(statement.encode())
            return cursor.fetchall() if cursor.description else []

    def visible(self, sink: AnySink) -> list[Row]:
        assert isinstance(sink, PostgresSink)
        assert sink.schema is not None
        with closing(self.server.connect()) as connection:
            found = connection.execute(f"TABLE {quoted(sink.schema, sink.table)}".encode())
            names = [column.name for column in found.description or ()]
            return [dict(zip(names, row, strict=True)) for row in found]

    def leftovers(self, sink: AnySink) -> Collection[str]:
        assert isinstance(sink, PostgresSink)
        named = f"nspname = {literal(sink.schema or '')} AND relname ~ '^_beadline_stage_'"
        joined = "pg_class c JOIN pg_namespace n ON n.oid = relnamespace"
        tables = self.run(f"SELECT relname FROM {joined} WHERE relkind = 'r' AND {named}")
        return [name for (name,) in tables] + self.transactions()

    def unreachable(self, sink: AnySink) -> AbstractContextManager[AnySink]:
        assert isinstance(sink, PostgresSink)
        dead = make_conninfo(sink.dsn, host="127.0.0.1", port=1)
        return nullcontext(replace(sink, dsn=dead, timeout_s=2))

    def alter(self, sink: AnySink) -> AbstractContextManager[None] | None:
        return None if self.prepares else self._altered(sink)  # a prepared part locks the table

    @contextmanager
    def _altered(self, sink: AnySink) -> Iterator[None]:
        assert isinstance(sink, PostgresSink)
        alter = f"ALTER TABLE {quoted(sink.schema or '', sink.table)} ALTER amount TYPE"
        self.run(f"{alter} bigint")
        yield
        self.run(f"{alter} double precision")

    def transactions(self) -> list[str]:
        return [gid for (gid,) in self.run("SELECT gid FROM pg_prepared_xacts")]

    def plant_stranger(self, sink: AnySink) -> str | None:
        assert isinstance(sink, PostgresSink)
        if self.prepares:
            self.run(f"BEGIN; CREATE TABLE not_ours (a int); PREPARE TRANSACTION '{_STRANGER}'")
            return _STRANGER
        name = quoted(sink.schema or "", _STRANGE_TABLE)
        self.run(f"CREATE TABLE {name} (a int); COMMENT ON TABLE {name} IS 'mine'")
        return _STRANGE_TABLE


class PreparedHarness(StagedHarness):
    settings = {"how": "prepared"}  # noqa: RUF012
    prepares = True


class UpsertHarness(StagedHarness):
    settings = {"mode": "upsert", "key": "id", "order_by": "amount"}  # noqa: RUF012

    def expected(self, rows: list[Row]) -> list[Row]:
        return list({row["id"]: row for row in rows}.values())


class AddHarness(AddedRows, StagedHarness):
    settings = {"mode": "add", "key": ("id", "word")}  # noqa: RUF012


@pytest.fixture(params=[PreparedHarness, StagedHarness, UpsertHarness, AddHarness])
def harness(request: pytest.FixtureRequest, postgres_server: PostgresServer) -> SinkHarness:
    made: SinkHarness = request.param(postgres_server)
    return made
