"""``MySqlSink`` and a server that is away for a while, or takes no writes: for how long."""

from __future__ import annotations

import socket
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path

import pyarrow as pa
import pymysql
import pytest

from beadline.errors import BadSink, CommitBlocked, CommitFailed, PrepareFailed
from beadline.ids import QueryId
from beadline.sink import Outcome
from beadline.sinks import MySqlSink
from beadline.sinks.mysql import connection as connection_module
from beadline.sinks.mysql.connection import Connection
from beadline.sinks.mysql.problems import retried
from beadline.testing.servers import MariaDbServer, mariadb
from tests.servers.mysql_tables import Table

ROWS = pa.table({"id": pa.array([1, 2], pa.int32())})
LOST = (2013, "Lost connection")


def own_settings(connection: Connection) -> list[int]:
    made = connection._raw._sock
    names = (socket.TCP_KEEPIDLE, socket.TCP_KEEPINTVL, socket.TCP_KEEPCNT, socket.TCP_USER_TIMEOUT)
    kept = made.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE)
    return [int(bool(kept)), *(made.getsockopt(socket.IPPROTO_TCP, name) for name in names)]


def test_the_system_probes_for_a_host_that_is_gone(mariadb_server: MariaDbServer) -> None:
    table = Table(mariadb_server, "id INT")
    with closing(table.sink()._server.connect()) as connection:
        assert own_settings(connection) == [1, 10, 5, 3, 30_000]
        assert connection.ask("SELECT SLEEP(0.1)") == [(0,)]
        assert connection._raw._sock.gettimeout() == 1800, "a statement may still be long"


def test_the_system_probes_under_tls(tmp_path: Path) -> None:
    key, certificate = tmp_path / "key.pem", tmp_path / "certificate.pem"
    subprocess.run(
        ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj",
         "/CN=localhost", "-addext", "subjectAltName=IP:127.0.0.1", "-keyout", key,
         "-out", certificate],
        check=True, capture_output=True, timeout=60,
    )  # fmt: skip
    with mariadb(settings={"ssl-key": str(key), "ssl-cert": str(certificate)}) as server:
        table = Table(server, "id INT")
        options = f"?ssl_ca={certificate}&ssl_verify_identity=true"
        sink = replace(table.sink(), dsn=server.dsn_of(table.database) + options)
        with closing(sink._server.connect()) as connection:
            ((_, cipher),) = connection.ask("SHOW STATUS LIKE 'Ssl_cipher'")
            assert cipher
            assert own_settings(connection) == [1, 10, 5, 3, 30_000]


def test_a_host_that_accepts_and_does_not_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connection_module, "_CONNECT_TIMEOUT_S", 0.5)
    query = QueryId("orders", "a" * 32, "file:/orders")
    with socket.create_server(("127.0.0.1", 0)) as silent:
        dsn = f"mysql://me:s3cret@127.0.0.1:{silent.getsockname()[1]}/shop"
        begun_s = time.monotonic()
        with pytest.raises(BadSink, match="Is the server running"):
            MySqlSink(dsn, "t").check(ROWS.schema, query)
        assert time.monotonic() - begun_s < 10


def failing(*errors: tuple[int, str] | None, work_s: float = 0.0) -> Callable[[], str]:
    """An act that works for a while and then fails so; None and afterwards, it does not."""
    left = iter(errors)

    def act() -> str:
        error = next(left, None)
        if error is not None:
            time.sleep(work_s)
            raise pymysql.OperationalError(*error)
        return "done"

    return act


def test_the_timeout_counts_from_the_first_failure() -> None:
    assert retried(failing(LOST, work_s=0.4), 0.3) == "done"
    with pytest.raises(pymysql.OperationalError):
        retried(failing(*[LOST] * 100), 0.3)
    with pytest.raises(pymysql.OperationalError):
        retried(failing((1146, "no such table")), 0.3)


@pytest.mark.parametrize("code", [1205, 1213, 1290, 1836, 2013, 3101])
def test_what_is_waited_for(code: int) -> None:
    assert retried(failing((code, "not now")), 5) == "done"


@contextmanager
def read_only(server: MariaDbServer, for_s: float) -> Iterator[None]:
    """A planned failover, as a client sees it: no writes for a while."""

    def switch(on: int) -> None:
        with closing(server.connect()) as connection, connection.cursor() as cursor:
            cursor.execute(f"SET GLOBAL read_only = {on}")

    switch(1)
    over = threading.Timer(for_s, switch, (0,))
    over.start()
    try:
        yield
    finally:
        over.join()


@pytest.fixture
def modest(mariadb_server: MariaDbServer) -> tuple[Table, MySqlSink]:
    """A table, and a sink whose user may not write to a server that is read-only."""
    table = Table(mariadb_server, "id INT")
    table.run("CREATE OR REPLACE USER 'modest'@'%' IDENTIFIED BY 'pw'")
    table.run(f"GRANT ALL ON {table.database}.* TO 'modest'@'%'")
    dsn = mariadb_server.dsn_of(table.database, "modest", "pw")
    table.opened(ROWS.schema)
    return table, replace(table.sink(), dsn=dsn)


def test_a_server_that_takes_no_writes_is_waited_for(modest: tuple[Table, MySqlSink]) -> None:
    table, sink = modest
    begun_s = time.monotonic()
    with read_only(table.server, 2):
        part = table.prepare(sink, ROWS)
        assert time.monotonic() - begun_s > 1
    assert part is not None
    begun_s = time.monotonic()
    with read_only(table.server, 2):
        assert table.commit(sink, [part]) == {Outcome.COMMITTED}
        assert time.monotonic() - begun_s > 1
    assert table.rows() == [(1,), (2,)]
    leftover = table.prepare(sink, ROWS, 1)
    assert leftover is not None
    with read_only(table.server, 1):
        sink.abort([leftover])
    assert table.stages() == []


def test_a_server_that_takes_no_writes_is_not_waited_for_for_ever(
    modest: tuple[Table, MySqlSink],
) -> None:
    table, sink = modest
    with (
        read_only(table.server, 3),
        pytest.raises(PrepareFailed, match=r"epoch 0, part 0: .*read-only"),
    ):
        table.prepare(replace(sink, timeout_s=1), ROWS)
    part = table.prepare(sink, ROWS)
    assert part is not None
    with (
        read_only(table.server, 3),
        pytest.raises(CommitBlocked, match=r"epoch 0: .*read-only.*The epoch is decided"),
    ):
        replace(sink, timeout_s=1).commit(table.epoch(), [part])
    assert table.commit(sink, [part]) == {Outcome.COMMITTED}


@pytest.fixture
def mortal_server(mariadb_server: MariaDbServer) -> Iterator[MariaDbServer]:
    yield mariadb_server
    mariadb_server.restart()


@contextmanager
def away(server: MariaDbServer, for_s: float) -> Iterator[None]:
    server.kill()
    back = threading.Timer(for_s, server.restart)
    back.start()
    try:
        yield
    finally:
        back.join()


def test_a_sweep_waits_for_the_server(mortal_server: MariaDbServer) -> None:
    table = Table(mortal_server, "id INT")
    sink = table.opened(ROWS.schema)
    part = table.prepare(sink, ROWS)
    assert part is not None
    with away(mortal_server, 1):
        assert [found.id for found in sink.in_doubt(table.query, "mine")] == [part.id]
    with away(mortal_server, 1):
        assert sink.last_seen(table.query, "mine") is None
    with away(mortal_server, 1):
        sink.abort([part])
    assert table.stages() == []
    mortal_server.kill()
    impatient = table.sink(timeout_s=1)
    for sweep in (
        partial(impatient.in_doubt, name="mine"),
        partial(impatient.last_seen, name="mine"),
    ):
        with pytest.raises(CommitFailed, match="No decided epoch is affected"):
            sweep(table.query)
