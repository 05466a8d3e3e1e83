"""``HBaseSink`` when servers, drivers and executors die, sleep and come back."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from beadline.errors import CommitFailed, WrongCheckpoint
from beadline.ids import QueryId
from beadline.sink import Outcome, Prepared, Seen
from beadline.sinks.hbase import write
from beadline.sinks.hbase.client import HBaseClient, put, row_of
from beadline.testing.servers import HBaseServer
from beadline.testing.suite.target import QUERY, SAME_NAME, pickled
from tests.servers.hbase_orders import Orders, decided

MANY = 20_000


def outcomes(orders: Orders, epoch: int, parts: Sequence[Prepared[Any]]) -> set[Outcome]:
    return set(orders.try_commit(epoch, parts).outcomes.values())


def wait_for(true: Callable[[], bool], timeout_s: float = 60.0) -> None:
    deadline_s = time.monotonic() + timeout_s
    while not true():
        assert time.monotonic() < deadline_s, "not true in time"
        time.sleep(0.05)


def at_mutate(monkeypatch: pytest.MonkeyPatch, act: Callable[[str], None]) -> None:
    """Do something after each look at the ledger, before what follows it is sent."""
    real = HBaseClient.mutate

    def mutate(client: HBaseClient, table: str, rows: Sequence[Any], at_ms: int) -> None:
        act(table)
        real(client, table, rows, at_ms)

    monkeypatch.setattr(HBaseClient, "mutate", mutate)


def test_the_thrift_server_dies_in_mid_commit_and_comes_back(
    hbase_server: HBaseServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    orders = Orders(hbase_server, tmp_path, connections=2).opened()
    rows = [(f"{number:05d}", str(number), "b") for number in range(8_000)]
    parts = orders.prepare(0, rows[:5_000], rows[5_000:])
    calls: list[str] = []

    def kill(table: str) -> None:
        calls.append(table)
        if len(calls) == 5:
            hbase_server.kill()

    at_mutate(monkeypatch, kill)
    result = orders.try_commit(0, parts)
    assert set(result.outcomes.values()) == {Outcome.UNKNOWN}
    assert orders.table in result.detail
    monkeypatch.undo()
    still_down = orders.try_commit(0, parts)
    assert set(still_down.outcomes.values()) == {Outcome.UNKNOWN}
    hbase_server.restart()
    shown = len(orders.shows())
    assert 0 < shown < len(rows), "the death was not in the middle"
    assert outcomes(orders, 0, parts) == {Outcome.COMMITTED}
    assert orders.shows() == {key: {"a": a, "b": b} for key, a, b in rows}
    assert list(orders.sink.in_doubt(QUERY, "under-test")) == []


def test_hbase_behind_the_thrift_server_goes_and_comes_back(
    hbase_server: HBaseServer, tmp_path: Path
) -> None:
    """Stopped, not killed: on a local disk a killed master may lose what it has acknowledged."""
    orders = Orders(hbase_server, tmp_path, timeout_s=3.0).opened()
    parts = orders.prepare(0, [("x", "1", "1")])
    hbase_server.master.stop(60)
    try:
        assert outcomes(orders, 0, parts) == {Outcome.UNKNOWN}
    finally:
        hbase_server.master.restart(120)
    wait_for(lambda: outcomes(orders, 0, parts) == {Outcome.COMMITTED}, 120)
    assert orders.shows() == {"x": {"a": "1", "b": "1"}}


def test_prepare_needs_no_server(hbase_server: HBaseServer, tmp_path: Path) -> None:
    orders = Orders(hbase_server, tmp_path).opened()
    hbase_server.kill()
    try:
        parts = orders.prepare(0, [("x", "1", "1")])
    finally:
        hbase_server.restart()
    assert outcomes(orders, 0, parts) == {Outcome.COMMITTED}


COMMIT = """
import pickle, sys
sink, epoch, parts = pickle.load(sys.stdin.buffer)
print(sink.commit(epoch, parts).outcomes, flush=True)
"""


def committing(orders: Orders, parts: Sequence[Prepared[Any]], crash: str = "") -> Any:
    """A process of its own that commits epoch 0."""
    path = os.pathsep.join(filter(None, sys.path))
    env = {**os.environ, "PYTHONPATH": path, **({"BEADLINE_CRASH": crash} if crash else {})}
    process = subprocess.Popen(
        [sys.executable, "-c", COMMIT], stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=env
    )
    assert process.stdin is not None
    process.stdin.write(pickled((orders.sink, decided(0), list(parts))))
    process.stdin.close()
    return process


@pytest.mark.parametrize("point", ["ledger.before", "ledger.after"])
def test_a_driver_killed_at_the_ledger(
    hbase_server: HBaseServer, tmp_path: Path, point: str
) -> None:
    orders = Orders(hbase_server, tmp_path, deleted="gone").opened()
    parts = orders.prepare(0, [("x", "1", None, False), ("y", "1", "1", True)])
    with committing(orders, parts, crash=point) as process:
        assert process.wait(60) == -signal.SIGKILL
    done = Outcome.COMMITTED if point == "ledger.before" else Outcome.ALREADY_COMMITTED
    assert outcomes(orders, 0, parts) == {done}
    assert orders.shows() == {"x": {"a": "1"}}
    assert list(orders.sink.in_doubt(QUERY, "under-test")) == []


def test_a_driver_killed_while_it_writes(hbase_server: HBaseServer, tmp_path: Path) -> None:
    orders = Orders(hbase_server, tmp_path).opened()
    rows = [(f"{number:05d}", str(number), "b") for number in range(MANY)]
    parts = orders.prepare(0, rows)
    with committing(orders, parts) as process:
        with orders.client() as client:
            wait_for(lambda: bool(client.row(orders.table, b"00000")))
        process.kill()
        assert process.wait(60) == -signal.SIGKILL
    assert 0 < len(orders.shows()) < MANY, "the kill was not in the middle"
    assert orders.sink.last_seen(QUERY, "under-test") is None
    assert outcomes(orders, 0, parts) == {Outcome.COMMITTED}
    assert orders.shows() == {key: {"a": a, "b": b} for key, a, b in rows}


def test_a_zombie_between_its_look_and_its_write(
    hbase_server: HBaseServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It has seen that its epoch is not there; it sleeps while two epochs go by; then it writes."""
    orders = Orders(hbase_server, tmp_path, deleted="gone").opened()
    rows = [("x", "old", "old", False), ("y", "old", "old", False), ("z", "old", None, False)]
    parts = orders.prepare(0, rows)
    looked, go_on = threading.Event(), threading.Event()
    told: list[set[Outcome]] = []

    def zombie() -> None:
        told.append(outcomes(orders, 0, parts))

    def sleep(table: str) -> None:
        if threading.current_thread() is thread and not looked.is_set():
            looked.set()
            assert go_on.wait(60)

    at_mutate(monkeypatch, sleep)
    thread = threading.Thread(target=zombie)
    thread.start()
    assert looked.wait(60)
    assert outcomes(orders, 0, parts) == {Outcome.COMMITTED}
    orders.commit(1, [("x", "new", None, False), ("y", "", "", True), ("z", None, "new", False)])
    newest = {"x": {"a": "new"}, "z": {"b": "new"}}
    assert orders.shows() == newest
    go_on.set()
    thread.join(60)
    assert told
    assert orders.shows() == newest
    assert orders.sink.last_seen(QUERY, "under-test") == Seen(
        QUERY.incarnation, 1, decided(1).nonce
    )


def test_a_zombie_stops_at_its_next_look(
    hbase_server: HBaseServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(write, "PIECE_ROWS", 1)
    orders = Orders(hbase_server, tmp_path, connections=1).opened()
    parts = orders.prepare(0, [(str(number), "1", "1") for number in range(5)])
    written: list[str] = []

    def overtaken(table: str) -> None:
        written.append(table)
        if len(written) == 2:
            assert outcomes(orders, 0, parts) == {Outcome.COMMITTED}
            written.clear()
            written.extend([orders.table] * 2)

    at_mutate(monkeypatch, overtaken)
    assert outcomes(orders, 0, parts) == {Outcome.ALREADY_COMMITTED}
    assert len(written) == 2, "it wrote on after the epoch was finished"


def test_after_a_compaction_the_ledger_keeps_late_commits_out(
    hbase_server: HBaseServer, tmp_path: Path
) -> None:
    """And nothing else does: a delete whose marker is gone hides nothing any more."""
    orders = Orders(hbase_server, tmp_path, deleted="gone").opened()
    first = orders.commit(0, [("x", "1", "1", False), ("probe", "1", "1", False)])
    orders.commit(1, [("x", "", "", True), ("probe", "", "", True), ("y", "2", "2", False)])

    def late_put() -> bool:
        """What the sink never does: write an old epoch without a look."""
        with orders.client() as client:
            old = row_of(b"probe", [put(b"f:a", b"1")])
            client.mutate(orders.table, [old], decided(0).decided_at_ms)
            return bool(client.row(orders.table, b"probe"))

    assert not late_put()
    with closing(hbase_server.connect()) as connection:
        # Thrift's majorCompact is a minor one in HBase 2.6.1; that of all of 3 files forgets too.
        for number in range(3):
            with orders.client() as client:
                other = row_of(b"y", [put(b"f:a", b"%d" % number)])
                client.mutate(orders.table, [other], decided(1).decided_at_ms)
            connection.disable_table(orders.table)  # which writes what is in memory to a file
            connection.enable_table(orders.table)
        connection.client.majorCompact(orders.table.encode())
    wait_for(late_put)
    assert outcomes(orders, 0, first) == {Outcome.ALREADY_COMMITTED}
    assert sorted(orders.shows()) == ["probe", "y"]


def test_two_drivers_at_once(hbase_server: HBaseServer, tmp_path: Path) -> None:
    orders = Orders(hbase_server, tmp_path, deleted="gone").opened()
    for epoch in range(5):
        rows = [(str(n % 50), f"{epoch}.{n}", None, n % 7 == epoch) for n in range(100)]
        parts = orders.prepare(epoch, rows[:60], rows[60:])
        told: list[set[Outcome]] = []

        def commit(told: list[set[Outcome]] = told, epoch: int = epoch, parts: Any = parts) -> None:
            told.append(outcomes(orders, epoch, parts))

        threads = [threading.Thread(target=commit) for _ in range(2)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
        assert len(told) == 2
        assert set.union(*told) <= {Outcome.COMMITTED, Outcome.ALREADY_COMMITTED}
        last = {key: (a, gone) for key, a, _, gone in rows}
        wanted = {key: {"a": a} for key, (a, gone) in last.items() if not gone}
        assert orders.shows() == wanted


def test_another_checkpoint_of_the_same_name(hbase_server: HBaseServer, tmp_path: Path) -> None:
    orders = Orders(hbase_server, tmp_path).opened()
    parts = orders.commit(0, [("x", "1", "1")])
    stranger = QueryId(SAME_NAME.name, SAME_NAME.incarnation, SAME_NAME.checkpoint)
    with pytest.raises(WrongCheckpoint, match="another checkpoint"):
        orders.sink.commit(decided(1, stranger), parts)
    assert orders.shows() == {"x": {"a": "1", "b": "1"}}


def test_staged_files_that_are_gone_or_damaged(hbase_server: HBaseServer, tmp_path: Path) -> None:
    orders = Orders(hbase_server, tmp_path).opened()
    parts = orders.prepare(0, [("x", "1", "1")], [("y", "1", "1")])
    path = Path(parts[1].committable.file.removeprefix("file:"))
    whole = path.read_bytes()
    path.write_bytes(whole[:-8] + b"damaged!")
    result = orders.try_commit(0, parts)
    assert set(result.outcomes.values()) == {Outcome.LOST}
    assert "other content" in result.detail
    assert orders.shows() == {}
    path.write_bytes(whole)
    assert outcomes(orders, 0, parts) == {Outcome.COMMITTED}
    assert not path.exists()


def test_a_table_that_is_dropped_after_the_decision(
    hbase_server: HBaseServer, tmp_path: Path
) -> None:
    orders = Orders(hbase_server, tmp_path).opened()
    parts = orders.prepare(0, [("x", "1", "1")])
    with closing(hbase_server.connect()) as connection:
        connection.delete_table(orders.table, disable=True)
    with pytest.raises(CommitFailed, match=rf"epoch 0, sink .*'{orders.table}'.*NotFound"):
        orders.try_commit(0, parts)
    hbase_server.create_table(orders.table, "f", "g")
    assert outcomes(orders, 0, parts) == {Outcome.COMMITTED}
    assert orders.shows() == {"x": {"a": "1", "b": "1"}}
