"""What ``PostgresSink`` tells at once, what it waits for, and what it never repeats."""

from __future__ import annotations

import os
import shutil
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from beadline.errors import BadSink, CommitFailed
from beadline.sink import Outcome
from beadline.sinks import PostgresSink
from beadline.testing.servers import PostgresServer, postgres
from beadline.testing.servers.fixtures import serve
from tests.servers.postgres_target import QUERY, Orders, epoch_id, part_id, table

ROWS = table(id=[1, 2], total=[10, 20])
KEYED = "id bigint PRIMARY KEY, total bigint"
NOBODY = "postgresql://me:word@127.0.0.1:1/shop"


@pytest.fixture(scope="module")
def server() -> Iterator[PostgresServer]:
    """One of our own: it is stopped and started."""
    yield from serve(postgres())


@pytest.mark.parametrize("wrong", ["password", "user", "database"])
def test_a_wrong_address_after_the_decision_is_told_at_once(
    postgres_server: PostgresServer, wrong: str
) -> None:
    """It was asked without end before: the coordinator asks again for what is unknown."""
    orders = Orders(postgres_server, KEYED, timeout_s=60.0)
    orders.start(ROWS)
    parts = [orders.prepare(ROWS, part_id(0))]
    dsns = {
        "password": postgres_server.dsn_of("postgres", password="not-the-word"),
        "user": postgres_server.dsn_of("postgres", user="nobody", password="not-the-word"),
        "database": postgres_server.dsn_of("nowhere"),
    }
    begun_s = time.monotonic()
    with pytest.raises(CommitFailed, match=r"epoch 0.*decided.*nothing of it is lost") as told:
        replace(orders.sink, dsn=dsns[wrong]).commit(epoch_id(0), parts)
    assert time.monotonic() - begun_s < 30
    assert "user, password" in str(told.value)
    for secret in ("not-the-word", postgres_server.password):
        assert secret not in str(told.value)
    assert orders.commit(0, parts) == {Outcome.COMMITTED}


def test_nobody_there_is_asked_again(postgres_server: PostgresServer) -> None:
    orders = Orders(postgres_server, KEYED)
    orders.start(ROWS)
    parts = [orders.prepare(ROWS, part_id(0))]
    result = replace(orders.sink, dsn=NOBODY).commit(epoch_id(0), parts)
    assert set(result.outcomes.values()) == {Outcome.UNKNOWN}
    orders.sweep()


def test_the_start_check_waits_for_a_server_that_is_starting_up(server: PostgresServer) -> None:
    """As a standby that lets nobody in it answers "not now" until it is promoted."""
    orders = Orders(server, KEYED, timeout_s=60.0)
    orders.sink.check(ROWS.schema, QUERY)
    server.stop()
    data = Path(server._data)
    signal = data / "standby.signal"
    signal.touch()
    settings = data / "postgresql.auto.conf"
    settings.write_text("hot_standby = off\n")
    if os.geteuid() == 0:
        shutil.chown(signal, "postgres")
    server.process.start()

    def promote() -> None:
        trigger = data / "promote"
        trigger.touch()
        os.kill(server.process.pid, 10)  # SIGUSR1, as pg_ctl promote does it

    timer = threading.Timer(6.0, promote)  # longer than an address that nobody answers at
    timer.start()
    orders.sink.check(ROWS.schema, QUERY)
    timer.join()


def test_the_start_check_soon_says_that_nobody_answers() -> None:
    begun_s = time.monotonic()
    with pytest.raises(BadSink, match=r"Is the server up.*Nothing was written"):
        PostgresSink(NOBODY, "orders", timeout_s=60.0).check(ROWS.schema, QUERY)
    assert time.monotonic() - begun_s < 30


@pytest.mark.parametrize("word", ["hun@ter2", "hun/ter2@", "hun@ter/2", "h@un?ter2"])
def test_no_part_of_a_password_with_odd_characters_is_shown(word: str) -> None:
    sink = PostgresSink(f"postgresql://me:{word}@127.0.0.1:1/shop", "orders", timeout_s=1.0)
    with pytest.raises(BadSink, match=r"%40.*Nothing was written") as told:
        sink.check(ROWS.schema, QUERY)
    for piece in ("hun", "ter2", word):
        assert piece not in str(told.value)
    assert told.value.__cause__ is None


def test_a_password_that_is_escaped_is_fine(postgres_server: PostgresServer) -> None:
    orders = Orders(postgres_server, KEYED)
    orders.run("CREATE ROLE odd LOGIN SUPERUSER PASSWORD 'a@b/c:d'")
    dsn = postgres_server.dsn_of("postgres", "odd", "a%40b%2Fc%3Ad")
    replace(orders.sink, dsn=dsn).check(ROWS.schema, QUERY)


@pytest.mark.parametrize("mode", ["append", "upsert"])
def test_values_of_rows_are_not_in_the_error(postgres_server: PostgresServer, mode: str) -> None:
    """The key in the way, and the row that a check refuses; the staging table is named instead."""
    key = {"key": "id"} if mode == "upsert" else {}
    orders = Orders(postgres_server, KEYED, mode=mode, **key)
    orders.start(ROWS)
    parts = [orders.prepare(table(id=[7777], total=[8888]), part_id(0))]
    place = f'"{orders.schema}".orders'
    orders.run(f"INSERT INTO {place} VALUES (7777, 1)")
    orders.run(f"ALTER TABLE {place} ADD CONSTRAINT small CHECK (total < 10)")
    with pytest.raises(CommitFailed, match=r"refuses a row: .*(small|orders_pkey)") as told:
        orders.commit(0, parts)
    for value in ("7777", "8888", "DETAIL"):
        assert value not in str(told.value)
    assert parts[0].committable.name in str(told.value)
    orders.sweep()


def test_a_schema_before_the_table_is_suggested(postgres_server: PostgresServer) -> None:
    sink = PostgresSink(postgres_server.dsn, table="sales.orders")
    with pytest.raises(BadSink, match=r"write schema='sales', table='orders'"):
        sink.check(ROWS.schema, QUERY)
