"""``MySqlSink`` while the server dies: in mid-prepare, between decide and commit, in the commit."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pyarrow as pa
import pytest

from beadline.errors import CommitFailed, PrepareFailed
from beadline.points import hooked
from beadline.sink import Outcome
from beadline.sinks.mysql import loading
from beadline.sinks.mysql.connection import Connection
from beadline.sinks.mysql.loading import Loader
from beadline.testing.servers import MariaDbServer
from beadline.verify.proxy import TcpProxy
from tests.hooks import once
from tests.servers.mysql_tables import Table

ROWS = 1000


@pytest.fixture
def table(mariadb_server: MariaDbServer) -> Iterator[Table]:
    yield Table(mariadb_server, "id INT, w VARCHAR(20)")
    mariadb_server.restart()


@pytest.fixture(autouse=True)
def small_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loading, "CHUNK_BYTES", 2000)


def some_rows(first: int = 0) -> pa.Table:
    numbers = range(first, first + ROWS)
    return pa.table({"id": pa.array(numbers, pa.int32()), "w": [str(i) for i in numbers]})


def shown(first: int = 0) -> list[Any]:
    return sorted(((i, str(i)) for i in range(first, first + ROWS)), key=repr)


@pytest.mark.parametrize("local", [True, False])
def test_killed_in_mid_prepare_and_back(
    table: Table, local: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Loader, "local_allowed", local)
    sink = table.opened(some_rows().schema)
    back = threading.Timer(1.0, table.server.restart)

    def dying() -> Iterator[Any]:
        for number, batch in enumerate(some_rows().to_batches(max_chunksize=50)):
            if number == 10:
                table.server.kill()
                back.start()
            yield batch

    part = table.prepare(sink, dying())
    back.join()
    assert table.rows() == []
    assert table.commit(sink, [part]) == {Outcome.COMMITTED}
    assert table.rows() == shown()


def test_killed_in_mid_prepare_and_not_back_in_time(table: Table) -> None:
    sink = table.opened(some_rows().schema)
    impatient = table.sink(timeout_s=1)

    def dying() -> Iterator[Any]:
        for number, batch in enumerate(some_rows().to_batches(max_chunksize=50)):
            if number == 10:
                table.server.kill()
            yield batch

    with pytest.raises(PrepareFailed, match=r"table 't'.*epoch 0, part 0") as caught:
        table.prepare(impatient, dying())
    assert table.server.password not in str(caught.value)
    table.server.restart()
    assert table.rows() == []
    assert [part.id for part in sink.in_doubt(table.query, "mine")] == [table.part_id()]
    sink.abort(list(sink.in_doubt(table.query, "mine")))
    assert table.stages() == []


def test_an_answer_that_is_lost_in_prepare_doubles_nothing(
    table: Table, monkeypatch: pytest.MonkeyPatch
) -> None:
    sink = table.opened(some_rows().schema)
    commit = Connection.commit
    lost = iter([False, True, False, True])

    def answer_lost(connection: Connection) -> None:
        commit(connection)
        if next(lost, False):
            raise ConnectionResetError("the answer is lost")

    monkeypatch.setattr(Connection, "commit", answer_lost)
    part = table.prepare(sink, some_rows())
    monkeypatch.undo()
    table.commit(sink, [part])
    assert table.rows() == shown()


def test_killed_between_decide_and_commit(table: Table) -> None:
    sink = table.opened(some_rows().schema)
    part = table.prepare(sink, some_rows())
    table.server.kill()
    assert part is not None
    result = sink.commit(table.epoch(), [part])
    assert set(result.outcomes.values()) == {Outcome.UNKNOWN}
    assert "table 't'" in result.detail
    assert table.server.password not in result.detail
    with pytest.raises(CommitFailed, match="No decided epoch is affected"):
        list(table.sink(timeout_s=1).in_doubt(table.query, "mine"))
    table.server.restart()
    assert table.commit(sink, [part]) == {Outcome.COMMITTED}
    assert table.rows() == shown()
    assert table.stages() == []


def test_killed_in_the_commit(table: Table) -> None:
    sink = table.opened(some_rows().schema)
    for epoch, (point, first, second) in enumerate(
        [
            ("ledger.before", Outcome.UNKNOWN, Outcome.COMMITTED),
            ("ledger.after", Outcome.COMMITTED, Outcome.ALREADY_COMMITTED),
        ]
    ):
        part = table.prepare(sink, some_rows(epoch * ROWS), epoch)

        def hook(name: str, point: str = point) -> None:
            if name == point:
                table.server.kill()

        with hooked(hook):
            assert table.commit(sink, [part], epoch) == {first}
        table.server.restart()
        assert table.commit(sink, [part], epoch) == {second}
        assert table.rows() == sorted(shown() + (shown(ROWS) if epoch else []), key=repr)
        assert table.stages() == []


def test_an_answer_to_the_commit_that_is_lost(table: Table) -> None:
    """The server has committed, and the sink cannot know it."""
    sink = table.opened(some_rows().schema)
    part = table.prepare(sink, some_rows())
    with TcpProxy(table.server.port) as proxy:
        place = sink.dsn.replace(f":{table.server.port}/", f":{proxy.port}/")
        behind = replace(sink, dsn=place, timeout_s=2)
        with hooked(once("ledger.before", proxy.stall_answers)):
            assert table.commit(behind, [part]) == {Outcome.UNKNOWN}
    assert table.rows() == shown()
    assert table.commit(sink, [part]) == {Outcome.ALREADY_COMMITTED}
    assert table.rows() == shown()


def test_a_paused_driver_does_not_hold_up_its_successor_for_long(table: Table) -> None:
    sink = table.opened(some_rows().schema)
    part = table.prepare(sink, some_rows())
    paused, go_on = threading.Event(), threading.Event()

    def hook(name: str) -> None:
        if name == "ledger.before" and threading.current_thread() is zombie:
            paused.set()
            go_on.wait(60)

    told: list[set[Outcome]] = []
    zombie = threading.Thread(
        target=lambda: told.append(table.commit(table.sink(timeout_s=2), [part]))
    )
    with hooked(hook):
        zombie.start()
        assert paused.wait(30)
        deadline_s = time.monotonic() + 30
        while (outcome := table.commit(sink, [part])) == {Outcome.UNKNOWN}:
            assert time.monotonic() < deadline_s
        go_on.set()
        zombie.join(30)
    assert outcome == {Outcome.COMMITTED}
    assert told == [{Outcome.UNKNOWN}]
    assert table.rows() == shown()


def test_rows_that_come_slowly_outlast_the_idle_connection(table: Table) -> None:
    sink = table.opened(some_rows().schema)
    impatient = table.sink(timeout_s=2)

    def slowly() -> Iterator[Any]:
        for number, batch in enumerate(some_rows().to_batches(max_chunksize=250)):
            if number == 2:
                time.sleep(3)
            yield batch

    part = table.prepare(impatient, slowly())
    table.commit(sink, [part])
    assert table.rows() == shown()
