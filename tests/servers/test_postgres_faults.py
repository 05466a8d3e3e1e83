"""``PostgresSink``: the server dies and comes back, drivers race, and old ones wake up late."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pyarrow as pa
import pytest

from beadline.errors import PrepareFailed
from beadline.points import hooked
from beadline.sink import Outcome, Part
from beadline.sinks.shared.sql import rows as kept_rows
from beadline.testing.servers import PostgresServer, postgres
from beadline.testing.servers.fixtures import serve
from tests.hooks import once
from tests.servers.postgres_target import QUERY, Orders, epoch_id, part_id, table

WAYS = ("prepared", "staged")
COLUMNS = "id bigint, total bigint"
FINE = {Outcome.COMMITTED, Outcome.ALREADY_COMMITTED}
ROWS = table(id=list(range(10)), total=list(range(10)))
SHOWN = [(n, n) for n in range(10)]


@pytest.fixture(scope="module")
def server() -> Iterator[PostgresServer]:
    """One of our own: it is killed again and again."""
    yield from serve(postgres())


def started(server: PostgresServer, way: str, **settings: Any) -> Orders:
    orders = Orders(server, COLUMNS, how=way, **settings)
    orders.start(ROWS)
    return orders


def until_known(orders: Orders, number: int, parts: list[Any]) -> set[Outcome]:
    deadline_s = time.monotonic() + 30
    while Outcome.UNKNOWN in (outcomes := orders.commit(number, parts)):
        assert time.monotonic() < deadline_s
        time.sleep(0.05)
    return outcomes


@pytest.mark.parametrize("way", WAYS)
def test_the_server_dies_between_decide_and_commit(server: PostgresServer, way: str) -> None:
    """While it is away the outcome is unknown; when it is back, the parts are still there."""
    orders = started(server, way)
    parts = [orders.prepare(ROWS, part_id(0))]
    server.kill()
    result = orders.sink.commit(epoch_id(0), parts)
    assert set(result.outcomes.values()) == {Outcome.UNKNOWN}
    assert "orders" in result.detail
    assert server.password not in result.detail
    server.restart()
    assert until_known(orders, 0, parts) == {Outcome.COMMITTED}
    server.kill()
    server.restart()
    assert until_known(orders, 0, parts) == {Outcome.ALREADY_COMMITTED}
    assert orders.rows() == SHOWN
    assert orders.leftovers() == []


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("point", ["ledger.before", "ledger.after"])
def test_the_server_dies_in_commit(server: PostgresServer, way: str, point: str) -> None:
    orders = started(server, way)
    parts = [orders.prepare(ROWS.slice(n, 1), part_id(0, n)) for n in range(10)]
    with hooked(once(point, server.kill)):
        orders.sink.commit(epoch_id(0), parts)
    server.restart()
    assert until_known(orders, 0, parts) <= FINE
    assert orders.rows() == SHOWN
    assert orders.leftovers() == []


@pytest.mark.parametrize("way", WAYS)
def test_the_server_dies_in_prepare_and_comes_back(server: PostgresServer, way: str) -> None:
    """The part is sent again, and a row that was refused is not refused again."""
    orders = Orders(server, "id bigint, total smallint", how=way)
    rows = table(id=list(range(11)), total=[*range(10), 10**6])
    orders.start(rows)
    batches = rows.to_batches(max_chunksize=2)

    def disturbed() -> Iterator[pa.RecordBatch]:
        yield from batches[::-1][:3]
        server.kill()
        threading.Timer(1.0, server.restart).start()
        yield from batches[::-1][3:]

    part = orders.sink.prepare(disturbed(), Part(part_id(0), refuse=orders.refused))
    assert part is not None
    assert orders.rows() == []
    assert [row["id"] for row in orders.refused.rows] == [10]
    prepared = [one for one in orders.sink.in_doubt(QUERY, "orders") if one.id == part_id(0)]
    (one,) = prepared
    assert one.committable.is_same(part)
    assert until_known(orders, 0, prepared) == {Outcome.COMMITTED}
    assert orders.rows() == SHOWN


@pytest.mark.parametrize("way", WAYS)
def test_the_server_dies_as_the_part_is_finished(server: PostgresServer, way: str) -> None:
    orders = started(server, way)

    def crash() -> None:
        server.kill()
        threading.Timer(0.5, server.restart).start()

    with hooked(once("staging.written", crash)):
        parts = [orders.prepare(ROWS, part_id(0))]
    assert until_known(orders, 0, parts) == {Outcome.COMMITTED}
    assert orders.rows() == SHOWN
    assert orders.leftovers() == []


@pytest.mark.parametrize("way", WAYS)
def test_a_server_that_stays_away_fails_the_part(server: PostgresServer, way: str) -> None:
    orders = started(server, way, timeout_s=2.0)

    def cut() -> Iterator[pa.RecordBatch]:
        yield from ROWS.to_batches(max_chunksize=4)
        server.kill()

    try:
        with pytest.raises(PrepareFailed, match=r"'shop', epoch 0, part 0.*orders") as failure:
            orders.sink.prepare(cut(), Part(part_id(0)))
        assert server.password not in str(failure.value)
    finally:
        server.restart()
    assert orders.rows() == []
    assert orders.leftovers() == []


def test_what_is_too_much_to_keep_is_not_sent_again(
    server: PostgresServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rather an error than half of a part."""
    monkeypatch.setattr(kept_rows, "KEPT_BYTES_MAX", 10)
    orders = started(server, "staged")

    def cut() -> Iterator[pa.RecordBatch]:
        yield from ROWS.to_batches(max_chunksize=4)
        server.kill()
        server.restart()

    with pytest.raises(PrepareFailed, match="epoch 0, part 0"):
        orders.sink.prepare(cut(), Part(part_id(0)))
    assert orders.rows() == []
    assert orders.leftovers() == []


@pytest.mark.parametrize("way", WAYS)
def test_a_lost_part_is_proven(server: PostgresServer, way: str) -> None:
    """Gone from the server, and nothing says that it was committed: not merely an error."""
    orders = started(server, way)
    orders.epoch(0, ROWS)
    parts = [orders.prepare(ROWS, part_id(1, n)) for n in range(2)]
    orders.sink.abort(parts[1:])
    outcomes = orders.sink.commit(epoch_id(1), parts).outcomes
    assert outcomes[parts[1].id] is Outcome.LOST
    # In one transaction it is all or nothing, so there the other part is lost too.
    assert outcomes[parts[0].id] is (Outcome.COMMITTED if way == "prepared" else Outcome.LOST)
    again = orders.prepare(ROWS, part_id(1, 1, attempt=1))
    left = parts[0] if way == "prepared" else orders.prepare(ROWS, part_id(1, 0, attempt=1))
    assert orders.commit(1, [left, again]) <= FINE
    assert len(orders.rows()) == 30
    # An hour later, a driver that was paused comes with the old decision.
    orders.epoch(2, ROWS)
    assert orders.commit(1, parts) == {Outcome.ALREADY_COMMITTED}
    assert len(orders.rows()) == 40
    orders.sweep()


def test_the_part_of_a_paused_driver_does_not_count_as_lost(server: PostgresServer) -> None:
    """While it slept, others committed its epoch and the next, and the marker is gone by now."""
    orders = started(server, "prepared")
    first, second = ([orders.prepare(ROWS, part_id(number))] for number in range(2))

    def others() -> None:
        assert orders.commit(0, first) == {Outcome.COMMITTED}
        assert orders.commit(1, second) == {Outcome.COMMITTED}

    with hooked(once("ledger.before", others)):
        assert orders.commit(0, first) == {Outcome.ALREADY_COMMITTED}
    assert len(orders.rows()) == 20


@pytest.mark.parametrize("way", WAYS)
def test_two_attempts_of_one_id_are_two_parts(server: PostgresServer, way: str) -> None:
    """A retried stage numbers its attempts from 0 again; only what was acknowledged shows."""
    orders = started(server, way)
    first = orders.prepare(ROWS, part_id(0))
    second = orders.prepare(ROWS, part_id(0))
    assert first.committable != second.committable
    assert orders.commit(0, [second]) == {Outcome.COMMITTED}
    assert orders.rows() == SHOWN
    orders.sweep()
    assert orders.leftovers() == []
    assert orders.rows() == SHOWN
    assert orders.commit(0, [second]) == {Outcome.ALREADY_COMMITTED}


@pytest.mark.parametrize("way", WAYS)
def test_many_parts_and_four_drivers_at_once(server: PostgresServer, way: str) -> None:
    orders = started(server, way)
    with ThreadPoolExecutor(4) as pool:
        makes = [pool.submit(orders.prepare, ROWS, part_id(0, n)) for n in range(12)]
        parts = [made.result() for made in makes]
        told = [pool.submit(until_known, orders, 0, parts) for _ in range(4)]
        assert all(each.result() <= FINE for each in told)
    assert len(orders.rows()) == 120
    assert orders.leftovers() == []


def test_the_ways_may_change_from_epoch_to_epoch(server: PostgresServer) -> None:
    """An index comes and goes: markers and ledger stay of one mind."""
    orders = started(server, "auto")
    kept = [orders.epoch(0, ROWS)]
    orders.run(f'CREATE UNIQUE INDEX one ON "{orders.schema}".orders (id, total) WHERE id > 99')
    kept.append(orders.epoch(1, ROWS))
    orders.run(f'DROP INDEX "{orders.schema}".one')
    kept += [orders.epoch(2, ROWS), orders.epoch(3, ROWS)]
    ways = [parts[0].committable.how for parts in kept]
    assert ways == ["prepared", "staged", "prepared", "prepared"]
    for number, parts in enumerate(kept):
        assert orders.commit(number, parts) == {Outcome.ALREADY_COMMITTED}
    assert len(orders.rows()) == 40
    seen = orders.sink.last_seen(QUERY, "orders")
    assert seen is not None
    assert seen.epoch == 3
    markers = orders.run(f'SELECT epoch FROM "{orders.schema}"._beadline_parts')
    assert markers == [(3,)]


def test_a_lock_on_the_table_is_waited_for(server: PostgresServer) -> None:
    orders = started(server, "staged", timeout_s=1.0)
    parts = [orders.prepare(ROWS, part_id(0))]
    with server.connect() as other:
        other.execute(f'BEGIN; LOCK TABLE "{orders.schema}".orders'.encode())
        result = orders.sink.commit(epoch_id(0), parts)
        assert set(result.outcomes.values()) == {Outcome.UNKNOWN}
        assert "lock timeout" in result.detail
        other.execute("ROLLBACK")
    assert orders.commit(0, parts) == {Outcome.COMMITTED}
    assert orders.rows() == SHOWN
