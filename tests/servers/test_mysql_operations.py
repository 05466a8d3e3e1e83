"""``MySqlSink`` beside those who run the server: their settings, and their long transactions."""

from __future__ import annotations

import time
from contextlib import closing
from dataclasses import replace
from typing import Any

import pyarrow as pa
import pymysql
import pytest

from beadline.errors import CommitFailed
from beadline.sink import Outcome
from beadline.testing.servers import MariaDbServer, mariadb
from tests.servers.mysql_tables import Table

ROWS = pa.table({"id": pa.array([1, 2], pa.int32())})
FLUSH, SYNC = "innodb_flush_log_at_trx_commit", "sync_binlog"


def test_connections_are_closed_as_the_server_expects(mariadb_server: MariaDbServer) -> None:
    """Without a good-bye, each would be counted and logged as aborted."""
    table = Table(mariadb_server, "id INT")

    def aborted() -> list[Any]:
        return table.run("SHOW GLOBAL STATUS LIKE 'Aborted_clients'")

    def connected() -> list[Any]:
        ours = f"WHERE DB = '{table.database}'"
        return table.run(f"SELECT ID FROM information_schema.PROCESSLIST {ours}")

    before = aborted()
    for how in ("staged", "xa"):
        table.settings["how"] = how
        table.write(ROWS, epoch=0 if how == "staged" else 1)
    deadline_s = time.monotonic() + 20
    while connected() and time.monotonic() < deadline_s:
        time.sleep(0.05)
    assert connected() == []
    assert aborted() == before


@pytest.mark.parametrize("binary_log", [True, False])
def test_settings_by_which_a_power_cut_takes_epochs_back(binary_log: bool) -> None:
    with mariadb(settings={"log-bin": "mariadb-bin"} if binary_log else {}) as server:
        table = Table(server, "id INT")
        for flush, sync, unsafe in [
            (1, 1, set()),
            (3, 1, set()),
            (2, 1, {FLUSH}),
            (1, 0, {SYNC} if binary_log else set()),
            (0, 7, {FLUSH, SYNC} if binary_log else {FLUSH}),
        ]:
            table.run(f"SET GLOBAL {FLUSH} = {flush}")
            table.run(f"SET GLOBAL {SYNC} = {sync}")
            sentence = table.sink().check(ROWS.schema, table.query).sentence
            said = {name for name in (FLUSH, SYNC) if f"{name} is not 1: a power cut" in sentence}
            assert said == unsafe


def test_a_long_transaction_that_has_read_a_staging_table(mariadb_server: MariaDbServer) -> None:
    """The sweep leaves that table, and drops it when the transaction is over."""
    table = Table(mariadb_server, "id INT")
    sink = table.opened(ROWS.schema)
    for partition in range(3):
        table.prepare(sink, ROWS, partition=partition)
    locked = table.prepare(sink, ROWS, partition=3)
    assert locked is not None
    name = locked.committable.name
    with closing(pymysql.connect(**mariadb_server.login, autocommit=False)) as reader:
        reader.cursor().execute(f"SELECT * FROM {table.database}.{name}")
        began_s = time.monotonic()
        sink.abort(list(sink.in_doubt(table.query, "mine")))
        assert time.monotonic() - began_s < 10
        assert table.stages() == [name]
        parts = [table.prepare(sink, ROWS, epoch=1, partition=i) for i in range(2)]
        assert table.commit(sink, parts, epoch=1) == {Outcome.COMMITTED}
        assert len(table.rows()) == 4
        reader.rollback()
    sink.abort(list(sink.in_doubt(table.query, "mine")))
    assert table.stages() == []
    assert len(table.rows()) == 4


def test_a_commit_does_not_wait_for_a_reader_of_its_staging_table(
    mariadb_server: MariaDbServer,
) -> None:
    table = Table(mariadb_server, "id INT")
    sink = table.opened(ROWS.schema)
    part = table.prepare(sink, ROWS)
    assert part is not None
    with closing(pymysql.connect(**mariadb_server.login, autocommit=False)) as reader:
        reader.cursor().execute(f"SELECT * FROM {table.database}.{part.committable.name}")
        began_s = time.monotonic()
        assert table.commit(sink, [part]) == {Outcome.COMMITTED}
        assert table.commit(sink, [part]) == {Outcome.ALREADY_COMMITTED}
        assert time.monotonic() - began_s < 10
        reader.rollback()
    sink.abort(list(sink.in_doubt(table.query, "mine")))
    assert table.stages() == []
    assert len(table.rows()) == 2


@pytest.mark.parametrize(
    "settings", [{}, {"mode": "upsert", "key": "id"}], ids=["append", "upsert"]
)
def test_a_decided_epoch_that_cannot_be_written_has_a_way_out(
    mariadb_server: MariaDbServer, settings: dict[str, Any]
) -> None:
    """Both rows are in the epoch: no row of the table is in the way, and rows= comes too late."""
    table = Table(mariadb_server, "id INT PRIMARY KEY", **settings)
    with pytest.raises(CommitFailed, match="none of it is visible") as caught:
        table.write(ROWS, ROWS)
    assert 'Or start once with drop=["mine@0"]' in str(caught.value)
    assert table.rows() == []


@pytest.mark.parametrize("how", ["staged", "xa"])
def test_how_to_start_over(mariadb_server: MariaDbServer, how: str) -> None:
    """As the error says it, and then another incarnation begins."""
    table = Table(mariadb_server, "id INT", how=how)
    table.write(ROWS)
    told = table.sink().check(ROWS.schema, table.query).start_over
    assert ("XA RECOVER" in told) == (how == "xa")
    forget = told.partition("and run ")[2].partition(" in database")[0]
    for statement in ("DELETE FROM t", *forget.split("; ")):
        table.run(statement.replace("DELETE FROM ", f"DELETE FROM {table.database}."))
    table.query = replace(table.query, incarnation="e" * 32)
    assert table.sink().last_seen(table.query, "mine") is None
    assert table.write(ROWS) == {Outcome.COMMITTED}


def test_a_staging_table_of_another_user_is_left(
    mariadb_server: MariaDbServer, caplog: pytest.LogCaptureFixture
) -> None:
    """It holds nothing up: a start need not end over it. What this user may drop goes."""
    table = Table(mariadb_server, "id INT")
    sink = table.opened(ROWS.schema)
    for partition in range(2):
        table.prepare(sink, ROWS, partition=partition)
    left, dropped = sorted(table.stages())
    user = f"newcomer_{table.database}"
    table.run(f"CREATE USER {user}@'%' IDENTIFIED BY 'pw'")
    table.run(f"GRANT SELECT ON {table.database}.* TO {user}@'%'")
    table.run(f"GRANT DROP ON {table.database}.{dropped} TO {user}@'%'")
    newcomer = replace(sink, dsn=mariadb_server.dsn_of(table.database, user, "pw"))
    newcomer.abort(list(newcomer.in_doubt(table.query, "mine")))
    assert table.stages() == [left]
    assert (
        f"staging table {table.database}.{left} is left: this user may not drop it" in caplog.text
    )
    sink.abort(list(sink.in_doubt(table.query, "mine")))
    assert table.stages() == []
