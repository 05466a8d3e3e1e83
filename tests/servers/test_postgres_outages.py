"""``PostgresSink``: how long it waits for a server that is away, in large and in slow parts."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator

import pyarrow as pa
import pytest

from beadline.errors import PrepareFailed
from beadline.sink import Outcome, Part
from beadline.testing.servers import PostgresServer, postgres
from beadline.testing.servers.fixtures import serve
from tests.servers.postgres_target import QUERY, Orders, part_id, table

WAYS = ("prepared", "staged")
ROWS = table(id=list(range(10)), total=list(range(10)))


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
def test_patience_is_counted_from_the_outage(server: PostgresServer, way: str) -> None:
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
