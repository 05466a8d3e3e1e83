"""The HBase of `beadline.testing.servers` is a real one: it keeps what ``HBaseSink`` builds on."""

from __future__ import annotations

import time
import uuid
from collections.abc import Iterator
from contextlib import closing

import pytest
from thriftpy2.transport import TTransportException

from beadline.sinks.hbase.client import HBaseClient, ThriftServer, connected, delete, put, row_of
from beadline.testing.servers import HBaseServer


@pytest.fixture
def client(hbase_server: HBaseServer) -> Iterator[HBaseClient]:
    with connected(ThriftServer(hbase_server.host, hbase_server.port, 20.0)) as connection:
        yield connection


@pytest.fixture
def table(hbase_server: HBaseServer) -> str:
    name = f"server_{uuid.uuid4().hex[:8]}"
    hbase_server.create_table(name, "f")
    return name


def test_the_newest_time_wins_whichever_came_last(client: HBaseClient, table: str) -> None:
    for at_ms, value in ((20, b"new"), (10, b"old")):
        client.mutate(table, [row_of(b"k", [put(b"f:a", value)])], at_ms)
    assert client.row(table, b"k") == {b"f:a": b"new"}


@pytest.mark.parametrize("delete_first", [True, False])
def test_a_delete_hides_a_put_of_its_own_time_in_any_order(
    client: HBaseClient, table: str, delete_first: bool
) -> None:
    """Which is why a put and a delete of one epoch cannot have one time."""
    acts = [[delete(b"f")], [put(b"f:a", b"1")]]
    for act in acts if delete_first else acts[::-1]:
        client.mutate(table, [row_of(b"k", act)], 10)
    assert client.row(table, b"k") == {}
    client.mutate(table, [row_of(b"k", [put(b"f:a", b"1")])], 11)
    assert client.row(table, b"k") == {b"f:a": b"1"}


def test_tables_that_are_made_twice_and_ids(client: HBaseClient, table: str) -> None:
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
