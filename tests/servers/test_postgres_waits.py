"""``PostgresSink``: what is an error at once, and how long a server that is away is waited for."""

from __future__ import annotations

import os
import shutil
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pytest

from beadline.errors import BadSink, CommitBlocked, PrepareFailed
from beadline.sink import Outcome, Part
from beadline.sinks import PostgresSink
from beadline.testing.servers import PostgresServer, postgres
from beadline.testing.servers.fixtures import serve
from tests.servers.postgres_target import QUERY, Orders, epoch_id, part_id, table

WAYS = ("prepared", "staged")
ROWS = table(id=list(range(10)), total=list(range(10)))
PAIR = table(id=[1, 2], total=[10, 20])
KEYED = "id bigint PRIMARY KEY, total bigint"
NOBODY = "postgresql://me:word@127.0.0.1:1/shop"


@pytest.fixture(scope="module")
def server() -> Iterator[PostgresServer]:
    """One of our own: it is killed again and again."""
    yield from serve(postgres())


def away(server: PostgresServer, seconds: float) -> threading.Timer:
    """Kill the server, and let it come back by itself."""
    server.kill()
    timer = threading.Timer(seconds, server.restart)
    timer.start()
    return timer


@pytest.mark.parametrize("way", WAYS)
def test_the_server_dies_in_the_middle_of_a_copy(server: PostgresServer, way: str) -> None:
    """Batches so large that the client library is still sending; several tries are needed."""
    orders = Orders(server, "id bigint, text text", how=way)
    text = "x" * 1000
    batches = [pa.record_batch({"id": [n] * 3000, "text": [text] * 3000}) for n in range(6)]
    orders.start(pa.Table.from_batches(batches))

    def disturbed() -> Iterator[pa.RecordBatch]:
        for number, batch in enumerate(batches):
            if number == 2:
                away(server, 2.0)
            yield batch

    part = orders.sink.prepare(disturbed(), Part(part_id(0)))
    assert part is not None
    (prepared,) = (one for one in orders.sink.in_doubt(QUERY, "orders") if one.id == part_id(0))
    assert orders.commit(0, [prepared]) == {Outcome.COMMITTED}
    place = f'"{orders.schema}".orders'
    shown = orders.run(f"SELECT id, count(*) FROM {place} GROUP BY id ORDER BY id")
    assert shown == [(n, 3000) for n in range(6)]
    assert orders.leftovers() == []


def test_a_server_that_stays_away_in_the_middle_of_a_copy(server: PostgresServer) -> None:
    orders = Orders(server, "id bigint, text text", how="staged", timeout_s=2.0)
    batch = pa.record_batch({"id": [1] * 3000, "text": ["x" * 1000] * 3000})
    orders.start(pa.Table.from_batches([batch]))

    def cut() -> Iterator[pa.RecordBatch]:
        yield batch
        yield batch
        server.kill()
        yield batch
        yield batch

    try:
        with pytest.raises(PrepareFailed, match="epoch 0, part 0"):
            orders.sink.prepare(cut(), Part(part_id(0)))
    finally:
        server.restart()
    assert orders.leftovers() == []


@pytest.mark.parametrize("way", WAYS)
def test_the_timeout_counts_from_the_outage(server: PostgresServer, way: str) -> None:
    """A part may take longer than ``timeout_s``, and see the server go away twice."""
    orders = Orders(server, "id bigint, total bigint", how=way, timeout_s=3.0)
    orders.start(ROWS)
    batches = ROWS.to_batches(max_chunksize=1)

    def slow() -> Iterator[pa.RecordBatch]:
        for number, batch in enumerate(batches):
            if number in (3, 7):
                time.sleep(3.2)
                away(server, 0.1).join()
            yield batch

    part = orders.sink.prepare(slow(), Part(part_id(0)))
    assert part is not None
    (prepared,) = (one for one in orders.sink.in_doubt(QUERY, "orders") if one.id == part_id(0))
    assert orders.commit(0, [prepared]) == {Outcome.COMMITTED}
    assert orders.rows() == [(n, n) for n in range(10)]


@pytest.mark.parametrize("way", WAYS)
def test_a_sweep_waits_for_the_server(server: PostgresServer, way: str) -> None:
    """A short outage while leftovers are looked for does not end a query."""
    orders = Orders(server, "id bigint, total bigint", how=way)
    orders.start(ROWS)
    orders.prepare(ROWS, part_id(0))
    timer = away(server, 1.0)
    parts = list(orders.sink.in_doubt(QUERY, "orders"))
    timer.join()
    assert [part.id for part in parts] == [part_id(0)]
    timer = away(server, 1.0)
    orders.sink.abort(parts)
    timer.join()
    assert orders.leftovers() == []


def test_a_sweep_does_not_wait_for_ever(server: PostgresServer) -> None:
    orders = Orders(server, "id bigint, total bigint", timeout_s=1.0)
    orders.start(ROWS)
    server.kill()
    try:
        with pytest.raises(OSError, match=r"orders.*refused") as failure:
            orders.sink.in_doubt(QUERY, "orders")
        assert server.password not in str(failure.value)
    finally:
        server.restart()


@pytest.mark.parametrize("wrong", ["password", "user", "database"])
def test_a_wrong_address_after_the_decision_is_raised_at_once(
    postgres_server: PostgresServer, wrong: str
) -> None:
    """It was asked without end before: the coordinator asks again for what is unknown."""
    orders = Orders(postgres_server, KEYED, timeout_s=60.0)
    orders.start(PAIR)
    parts = [orders.prepare(PAIR, part_id(0))]
    dsns = {
        "password": postgres_server.dsn_of("postgres", password="not-the-word"),
        "user": postgres_server.dsn_of("postgres", user="nobody", password="not-the-word"),
        "database": postgres_server.dsn_of("nowhere"),
    }
    begun_s = time.monotonic()
    with pytest.raises(CommitBlocked, match=r"epoch 0.*decided.*nothing of it is lost") as told:
        replace(orders.sink, dsn=dsns[wrong]).commit(epoch_id(0), parts)
    assert time.monotonic() - begun_s < 30
    assert "user, password" in str(told.value)
    for secret in ("not-the-word", postgres_server.password):
        assert secret not in str(told.value)
    assert orders.commit(0, parts) == {Outcome.COMMITTED}


def test_a_server_that_does_not_answer_is_asked_again(postgres_server: PostgresServer) -> None:
    orders = Orders(postgres_server, KEYED)
    orders.start(PAIR)
    parts = [orders.prepare(PAIR, part_id(0))]
    result = replace(orders.sink, dsn=NOBODY).commit(epoch_id(0), parts)
    assert set(result.outcomes.values()) == {Outcome.UNKNOWN}
    orders.sweep()


def test_the_start_check_waits_for_a_server_that_is_starting_up(server: PostgresServer) -> None:
    """As a standby that lets nobody in it answers "not now" until it is promoted."""
    orders = Orders(server, KEYED, timeout_s=60.0)
    orders.sink.check(PAIR.schema, QUERY)
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
    orders.sink.check(PAIR.schema, QUERY)
    timer.join()


def test_the_start_check_soon_gives_up_a_server_that_is_away() -> None:
    begun_s = time.monotonic()
    with pytest.raises(BadSink, match=r"Is the server up.*Nothing was written"):
        PostgresSink(NOBODY, "orders", timeout_s=60.0).check(PAIR.schema, QUERY)
    assert time.monotonic() - begun_s < 30
