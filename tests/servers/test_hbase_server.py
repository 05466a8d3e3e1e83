"""The HBase of `beadline.testing.servers` is a real one: it keeps what ``HBaseSink`` builds on.

``Orders`` is what the other tests of HBase drive: a fresh table and the protocol's calls on it.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from thriftpy2.transport import TTransportException

from beadline.ids import EpochId, QueryId
from beadline.sink import CommitResult, Outcome, Part, Prepared, Refuse
from beadline.sinks import HBaseSink
from beadline.sinks.hbase.client import Client, ThriftServer, connected, delete, put, row_of
from beadline.testing.servers import HBaseServer
from beadline.testing.suite.target import QUERY, part_id

SCHEMA = pa.schema([("id", pa.string()), ("a", pa.string()), ("b", pa.string())])
DELETED = SCHEMA.append(pa.field("gone", pa.bool_()))
NOW_MS = 1_700_000_000_000

Rows = Sequence[tuple[Any, ...]]
Refused = list[tuple[list[dict[str, Any]], str]]


class Orders:
    """A table of its own, the sink to it, and the calls that the protocol would make."""

    def __init__(self, server: HBaseServer, folder: Path, **settings: Any) -> None:
        self.server = server
        self.table = f"orders_{uuid.uuid4().hex[:8]}"
        server.create_table(self.table, "f", "g")
        given = {"row_key": "id", "family": "f", "timeout_s": 20.0, **settings}
        self.sink = HBaseSink(
            server.host, port=server.port, table=self.table, staging=folder / "staging", **given
        )
        self.schema = DELETED if self.sink.deleted else SCHEMA

    def opened(self) -> Orders:
        self.sink.check(self.schema, QUERY)
        self.sink.open(QUERY, "under-test")
        return self

    def batch(self, rows: Rows) -> pa.RecordBatch:
        named = [dict(zip(self.schema.names, row, strict=True)) for row in rows]
        return pa.RecordBatch.from_pylist(named, schema=self.schema)

    def prepare(
        self, epoch: int, *shares: Rows, refuse: Refuse | None = None
    ) -> list[Prepared[Any]]:
        """One part per share."""
        parts = []
        for partition, rows in enumerate(shares):
            part = Part(part_id(epoch, partition))
            part = part if refuse is None else replace(part, refuse=refuse)
            committable = self.sink.prepare(iter([self.batch(rows)]), part)
            if committable is not None:
                parts.append(Prepared(part.id, len(rows), committable))
        return parts

    def try_commit(self, epoch: int, parts: Sequence[Prepared[Any]]) -> CommitResult:
        return self.sink.commit(decided(epoch), parts)

    def commit(self, epoch: int, *shares: Rows) -> list[Prepared[Any]]:
        """Prepare and commit; what was prepared, for whoever comes late."""
        parts = self.prepare(epoch, *shares)
        outcomes = set(self.try_commit(epoch, parts).outcomes.values())
        assert outcomes == {Outcome.COMMITTED}
        return parts

    def shows(self) -> dict[str, dict[str, str]]:
        """The rows by key, as text, cells of family f by their qualifier."""
        return {
            key.decode(): {
                cell.removeprefix("f:"): value.decode(errors="replace")
                for cell, value in cells.items()
            }
            for key, cells in self.server.rows(self.table).items()
        }

    def client(self) -> Any:
        return connected(self.sink._server)


def decided(epoch: int, query: QueryId = QUERY) -> EpochId:
    """As close together as two decisions can be."""
    return EpochId(query, epoch, f"{epoch:032x}", NOW_MS + epoch)


@pytest.fixture
def client(hbase_server: HBaseServer) -> Iterator[Client]:
    with connected(ThriftServer(hbase_server.host, hbase_server.port, 20.0)) as connection:
        yield connection


@pytest.fixture
def table(hbase_server: HBaseServer) -> str:
    name = f"server_{uuid.uuid4().hex[:8]}"
    hbase_server.create_table(name, "f")
    return name


def test_the_newest_time_wins_whichever_came_last(client: Client, table: str) -> None:
    for at_ms, value in ((20, b"new"), (10, b"old")):
        client.mutate(table, [row_of(b"k", [put(b"f:a", value)])], at_ms)
    assert client.row(table, b"k") == {b"f:a": b"new"}


@pytest.mark.parametrize("delete_first", [True, False])
def test_a_delete_hides_a_put_of_its_own_time_in_any_order(
    client: Client, table: str, delete_first: bool
) -> None:
    """Which is why a put and a delete of one epoch cannot have one time."""
    acts = [[delete(b"f")], [put(b"f:a", b"1")]]
    for act in acts if delete_first else acts[::-1]:
        client.mutate(table, [row_of(b"k", act)], 10)
    assert client.row(table, b"k") == {}
    client.mutate(table, [row_of(b"k", [put(b"f:a", b"1")])], 11)
    assert client.row(table, b"k") == {b"f:a": b"1"}


def test_tables_that_are_made_twice_and_ids(client: Client, table: str) -> None:
    client.create(table, "f")
    assert list(client.families(table)) == ["f"]
    assert client.is_enabled(table)
    identity = client.cluster_id()
    assert identity is not None
    assert str(uuid.UUID(identity)) == identity


def test_data_outlives_the_thrift_server(hbase_server: HBaseServer, table: str) -> None:
    with closing(hbase_server.connect()) as connection:
        connection.table(table).put(b"k", {b"f:a": b"kept"})
    before = hbase_server.thrift.pid
    hbase_server.kill()
    assert not hbase_server.thrift.alive
    hbase_server.restart()
    assert hbase_server.thrift.pid != before
    assert hbase_server.rows(table) == {b"k": {"f:a": b"kept"}}


@pytest.mark.long
def test_an_idle_connection_is_closed(hbase_server: HBaseServer) -> None:
    """How long a write can be behind its look at the ledger hangs on this."""
    with closing(hbase_server.connect()) as connection:
        connection.tables()
        time.sleep(65)
        with pytest.raises(TTransportException):
            connection.tables()
