"""``RedisSink`` when something is in its way: a dying server, a key of another type, a rival."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from beadline.errors import CommitFailed, PrepareFailed, WrongCheckpoint
from beadline.points import hooked
from beadline.sink import Outcome, Part
from beadline.sinks.redis import chunks, client
from beadline.testing.servers import RedisServer, redis
from beadline.testing.suite.target import QUERY, SAME_NAME, epoch_id, part_id
from tests.servers.redis_store import Store, ones, total

ROWS = 200


@pytest.fixture(scope="module")
def server() -> Iterator[RedisServer]:
    """One of our own, to be killed."""
    with redis() as running:
        yield running


@pytest.fixture(autouse=True)
def small_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(chunks, "ROWS_MAX", 10)
    monkeypatch.setattr(client, "COMMANDS_MAX", 3)


@pytest.mark.parametrize("after", [0, 1, 2, 3])
def test_killed_in_the_middle_of_a_commit_and_back(
    server: RedisServer, tmp_path: Path, after: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What was answered is there, what was not is counted or not there: the rest is written."""
    store = Store(server.url, tmp_path, command="INCRBY")
    parts = store.prepare(0, ones(), ones())
    reads = iter(range(10_000))
    read = client.RedisClient._read

    def dying(self: client.RedisClient, node: str) -> Any:
        if next(reads) == after:
            server.kill()
        return read(self, node)

    with monkeypatch.context() as patch:
        patch.setattr(client.RedisClient, "_read", dying)
        result = store.sink.commit(epoch_id(0), parts)
    assert set(result.outcomes.values()) == {Outcome.UNKNOWN}
    assert "Redis at" in result.detail
    assert server.password not in result.detail
    assert store.commit(0, parts) == {Outcome.UNKNOWN}, "it is still down"
    server.restart()
    assert total(server, store) < 2 * ROWS
    assert store.commit(0, parts) == {Outcome.COMMITTED}
    assert store.commit(0, parts) == {Outcome.ALREADY_COMMITTED}
    assert total(server, store) == 2 * ROWS


def test_a_process_that_goes_on_may_cut_the_rows_otherwise(
    server: RedisServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The ledger counts rows: another version of Beadline may make other chunks."""
    store = Store(server.url, tmp_path, command="INCRBY")
    parts = store.prepare(0, ones(rows=95))
    with server.client() as redis_client:
        redis_client.rpush(store.key("n"), "in the way")
    with pytest.raises(CommitFailed):
        store.commit(0, parts)
    monkeypatch.setattr(chunks, "ROWS_MAX", 7)
    with server.client() as redis_client:
        redis_client.delete(store.key("n"))
    assert store.commit(0, parts) == {Outcome.COMMITTED}
    assert total(server, store) == 95


@pytest.mark.parametrize("command", ["INCRBY", "HSET", "XADD", "LPUSH"])
def test_a_key_of_another_type_stops_at_that_row(
    server: RedisServer, tmp_path: Path, command: str
) -> None:
    """Rows before it took effect once; when the key is gone the rest does, and nothing twice."""
    store = Store(server.url, tmp_path, command=command)
    rows: dict[str, Any] = {"key": [f"k{n}" for n in range(30)], "value": [5] * 30}
    parts = store.prepare(3, {"key": ["first"], "value": [5]}, rows)
    with server.client() as redis_client:
        redis_client.sadd(store.key("k17"), "a set")
        with pytest.raises(CommitFailed) as failed:
            store.commit(3, parts)
        file = parts[1].committable.file
        for word in ("epoch 3", "part 1", f"row 17 (the first is 0) in {file}", "WRONGTYPE"):
            assert word in str(failed.value)
        assert store.key("k17") not in str(failed.value), "a key may be a value that is secret"
        written = [name for name in rows["key"] if redis_client.exists(store.key(name))]
        assert written == rows["key"][:18]
        with pytest.raises(CommitFailed):
            store.commit(3, parts)
        redis_client.delete(store.key("k17"))
        assert store.commit(3, parts) == {Outcome.COMMITTED}
        sizes = {"INCRBY": "get", "HSET": "hlen", "XADD": "xlen", "LPUSH": "llen"}
        found = {int(getattr(redis_client, sizes[command])(store.key(k))) for k in rows["key"]}
        assert found == {5 if command == "INCRBY" else 1}


def test_a_total_that_leaves_64_bits(server: RedisServer, tmp_path: Path) -> None:
    store = Store(server.url, tmp_path, command="INCRBY")
    parts = store.prepare(0, ones("a", 15), {"key": ["n"] * 3, "value": [2**63 - 1, 1, -5]})
    with pytest.raises(CommitFailed, match=r"part 1: .*overflow"):
        store.commit(0, parts)
    assert (total(server, store, "a"), total(server, store)) == (15, 2**63 - 1)
    with server.client() as redis_client:
        redis_client.set(store.key("n"), 0)
    assert store.commit(0, parts) == {Outcome.COMMITTED}
    assert (total(server, store, "a"), total(server, store)) == (15, -4)


def test_two_drivers_at_once(server: RedisServer, tmp_path: Path) -> None:
    """Both hold the decision and cut the rows differently in time; each row counts once."""
    store = Store(server.url, tmp_path, command="INCRBY")
    for epoch in range(5):
        parts = store.prepare(epoch, ones(), ones())
        told: list[Any] = []

        def drive(epoch: int = epoch, parts: Any = parts, told: Any = told) -> None:
            while True:
                outcomes = store.commit(epoch, parts)
                if outcomes != {Outcome.UNKNOWN}:
                    told.append(outcomes)
                    return

        threads = [threading.Thread(target=drive) for _ in range(3)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
        assert len(told) == 3
        assert total(server, store) == 2 * ROWS * (epoch + 1)


def test_a_late_commit_in_the_middle_of_newer_ones(server: RedisServer, tmp_path: Path) -> None:
    """A driver sleeps between two scripts of an epoch; others finish it, and the next."""
    store = Store(server.url, tmp_path, command="INCRBY")
    parts = store.prepare(0, *(ones(rows=20) for _ in range(4)))
    newer = store.prepare(1, ones("n", 50))
    passed: list[str] = []

    def hook(name: str) -> None:
        passed.append(name)
        if len(passed) == 3:
            assert store.commit(0, parts) == {Outcome.COMMITTED}
            assert store.commit(1, newer) == {Outcome.COMMITTED}

    with hooked(hook):
        assert store.commit(0, parts) == {Outcome.ALREADY_COMMITTED}
    assert total(server, store) == 130


def test_another_incarnation_is_refused(server: RedisServer, tmp_path: Path) -> None:
    store = Store(server.url, tmp_path, command="INCRBY")
    store.write(0, ones())
    id_ = part_id(1, query=SAME_NAME)
    made = store.sink.prepare(iter(pa.table(ones()).to_batches()), Part(id_))
    assert made is not None
    part = replace(store.prepare(1, ones())[0], id=id_, committable=made)
    with pytest.raises(WrongCheckpoint, match="another query of that name"):
        store.sink.commit(epoch_id(1, SAME_NAME), [part])
    assert total(server, store) == ROWS


def test_full_memory_is_waited_for(server: RedisServer, tmp_path: Path) -> None:
    store = Store(server.url, tmp_path, command="RPUSH")
    parts = store.prepare(0, {"key": ["l"] * 30, "value": ["x"] * 30})
    with server.client() as redis_client:
        redis_client.config_set("maxmemory", "1")
        try:
            result = store.sink.commit(epoch_id(0), parts)
            assert set(result.outcomes.values()) == {Outcome.UNKNOWN}
            assert "memory" in result.detail
            assert not redis_client.exists(store.key("l"))
        finally:
            redis_client.config_set("maxmemory", "0")
        assert store.commit(0, parts) == {Outcome.COMMITTED}
        assert redis_client.llen(store.key("l")) == 30


def test_a_server_that_became_a_replica_is_waited_for(server: RedisServer, tmp_path: Path) -> None:
    store = Store(server.url, tmp_path, command="INCRBY")
    parts = store.prepare(0, ones())
    with server.client() as redis_client:
        redis_client.replicaof("127.0.0.1", 1)
        try:
            assert store.commit(0, parts) == {Outcome.UNKNOWN}
        finally:
            redis_client.replicaof("NO", "ONE")
    assert store.commit(0, parts) == {Outcome.COMMITTED}
    assert total(server, store) == ROWS


def test_a_server_that_reads_its_data_is_waited_for(tmp_path: Path) -> None:
    with redis({"key-load-delay": "400"}) as server:  # microseconds; it looks up every 1024 keys
        store = Store(server.url, tmp_path)
        store.write(0, {"key": [f"k{n}" for n in range(5000)], "value": ["x"] * 5000})
        parts = store.prepare(1, {"key": ["n"], "value": ["1"]})
        server.kill()
        server.process.start()
        server.process.wait_for_ports()
        result = store.sink.commit(epoch_id(1), parts)
        assert set(result.outcomes.values()) == {Outcome.UNKNOWN}
        assert "loading" in result.detail.lower()
        server.wait_ready()
        assert store.commit(1, parts) == {Outcome.COMMITTED}


def test_a_lost_part_is_lost_only_if_nothing_of_it_is_there(
    server: RedisServer, tmp_path: Path
) -> None:
    store = Store(server.url, tmp_path, command="INCRBY")
    parts = store.prepare(0, ones(), {"key": ["set"], "value": [1]})
    staged = Path(parts[1].committable.file.removeprefix("file:"))
    kept = staged.read_bytes()
    staged.unlink()
    assert store.commit(0, parts) == {Outcome.LOST}
    assert total(server, store) == 0
    staged.write_bytes(kept)
    with server.client() as redis_client:
        redis_client.sadd(store.key("set"), "in the way")
    with pytest.raises(CommitFailed, match="WRONGTYPE"):
        store.commit(0, parts)
    staged.unlink()
    with pytest.raises(CommitFailed, match="in part"):
        store.commit(0, parts)
    assert total(server, store) == ROWS


def test_a_server_that_forgot_is_noticed(server: RedisServer, tmp_path: Path) -> None:
    """Flushed, or restarted without its log: the next epoch does not go in as if nothing were."""
    store = Store(server.url, tmp_path, command="INCRBY")
    store.write(0, ones())
    store.write(4, ones())
    parts = store.prepare(5, ones())
    with server.client() as redis_client:
        redis_client.flushall()
    with pytest.raises(CommitFailed, match="has acknowledged epoch 4 and now holds nothing"):
        store.commit(5, parts)
    with pytest.raises(WrongCheckpoint, match="has acknowledged epoch 4"):
        store.sink.last_seen(QUERY, "under-test")
    assert total(server, store) == 0
    careless = replace(store.sink, on_loss="continue")
    assert careless.last_seen(QUERY, "under-test") is None
    assert set(careless.commit(epoch_id(5), parts).outcomes.values()) == {Outcome.COMMITTED}


def test_publishing_waits_for_the_server(server: RedisServer, tmp_path: Path) -> None:
    store = Store(server.url, tmp_path, command="INCRBY", timeout_s=20)
    server.kill()
    back = threading.Timer(0.5, server.restart)
    back.start()
    store.sink.publish(iter(pa.table(ones()).to_batches()), Part(part_id(0)))
    back.join()
    assert total(server, store) == ROWS
    server.kill()
    try:
        with pytest.raises(PrepareFailed, match="timeout_s") as failed:
            replace(store.sink, timeout_s=0.3).publish(
                iter(pa.table(ones()).to_batches()), Part(part_id(0))
            )
        assert server.password not in str(failed.value)
    finally:
        server.restart()
