"""``RedisSink`` and a server that lacks what it acknowledged, or is another one, or is not."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
import redis as library

from beadline.errors import CommitFailed, WrongCheckpoint
from beadline.sink import Outcome, Prepared
from beadline.sinks.redis.client import RedisClient
from beadline.sinks.redis.ledger import head_key
from beadline.testing.servers import RedisCluster, RedisServer, redis
from beadline.testing.suite.target import QUERY, SINK_NAME, epoch_id
from tests.servers.redis_store import Store, total

SCHEMA = pa.schema([("key", pa.string()), ("value", pa.int64())])
ROWS: dict[str, Any] = {"key": ["n"] * 10, "value": [1] * 10}


def opened(url: str, folder: Path, **settings: Any) -> Store:
    """A sink as a start has it: checked and opened."""
    store = Store(url, folder, **{"command": "INCRBY", **settings})
    store.sink.check(SCHEMA, QUERY)
    store.sink.open(QUERY, SINK_NAME)
    return store


def elsewhere(store: Store, url: str, **settings: Any) -> Store:
    """The same sink with another address."""
    other = Store(url, Path(store.sink.staging))
    other.sink = replace(store.sink, url=url, **settings)
    return other


def other_data(server: RedisServer) -> str:
    """What an empty server in the place of this one would be."""
    with server.client() as client:
        client.execute_command("SELECT", 7)
        client.flushdb()
    return server.url.removesuffix("/0") + "/7"


def test_a_replica_that_took_over_is_the_same_place(tmp_path: Path) -> None:
    """Its address is another, and what was decided and staged for the old one is found there.

    The old primary, back again, has less than was acknowledged since, which is noticed.
    """
    quick = {"repl-diskless-sync-delay": "0"}
    with redis(quick) as server, redis({"masterauth": server.password}) as other:
        with other.client() as client:
            client.replicaof("127.0.0.1", server.port)
            store = opened(server.url, tmp_path)
            store.write(0, ROWS)
            deadline_s = time.monotonic() + 30
            while not client.exists(store.key("n")):
                assert time.monotonic() < deadline_s
                time.sleep(0.05)
            client.replicaof("NO", "ONE")
        moved = elsewhere(store, other.url)
        target = store.sink.check(SCHEMA, QUERY).target
        assert moved.sink.check(SCHEMA, QUERY).target == target
        decided, orphan = store.prepare(1, ROWS), store.prepare(2, ROWS)
        found = {part.id for part in moved.sink.in_doubt(QUERY, "under-test")}
        assert found == {part.id for part in (*decided, *orphan)}
        moved.sink.abort(orphan)
        seen = moved.sink.last_seen(QUERY, SINK_NAME)
        assert seen is not None
        assert seen.epoch == 0
        assert moved.commit(1, decided) == {Outcome.COMMITTED}
        assert total(other, moved) == 20
        with pytest.raises(WrongCheckpoint, match="acknowledged epoch 1 and now holds epoch 0"):
            store.sink.last_seen(QUERY, SINK_NAME)
        lacks = "acknowledged epoch 1 and now holds epoch 0.*is decided and its rows are kept"
        with pytest.raises(CommitFailed, match=lacks) as caught:
            store.commit(2, store.prepare(2, ROWS))
        assert "Nothing was written" not in str(caught.value), "of earlier epochs it was"
        server.kill()  # it may wait for a replica


def test_another_server_is_not_taken_for_the_one_that_was_opened(
    redis_server: RedisServer, tmp_path: Path
) -> None:
    """Before the first epoch too, and with another staging folder; unless the loss is taken."""
    store = opened(redis_server.url, tmp_path / "first")
    parts = store.prepare(0, ROWS)
    wrong = elsewhere(store, other_data(redis_server))
    with pytest.raises(WrongCheckpoint, match="opened for this query and now holds nothing"):
        wrong.sink.last_seen(QUERY, SINK_NAME)
    for settings in ({}, {"staging": tmp_path / "second"}):
        with pytest.raises(CommitFailed, match="or it is another server"):
            elsewhere(wrong, wrong.sink.url, **settings).commit(0, parts)
    new = elsewhere(wrong, wrong.sink.url, staging=tmp_path / "second", on_loss="continue")
    new.sink.open(QUERY, SINK_NAME)
    assert new.sink.last_seen(QUERY, SINK_NAME) is None
    assert new.commit(0, parts) == {Outcome.COMMITTED}
    assert not list(tmp_path.rglob("beadline~*")), "also where it was staged before"
    assert total(redis_server, store) == 0


def test_a_server_that_forgot_before_the_first_epoch(tmp_path: Path) -> None:
    """What was decided is not given up: it is written when the user has said that this is fine."""
    with redis() as server:
        store = opened(server.url, tmp_path)
        target = store.sink.check(SCHEMA, QUERY).target
        parts = store.prepare(0, ROWS)
        server.empty()
        with pytest.raises(WrongCheckpoint, match="now holds nothing"):
            store.sink.last_seen(QUERY, SINK_NAME)
        taken = elsewhere(store, server.url, on_loss="continue")
        assert taken.sink.check(SCHEMA, QUERY).target == target, "the decision's target is there"
        taken.sink.open(QUERY, SINK_NAME)
        assert taken.commit(0, parts) == {Outcome.COMMITTED}
        seen = store.sink.last_seen(QUERY, SINK_NAME)
        assert seen is not None, "from then on all is well again"
        assert seen.epoch == 0


def test_sinks_of_one_query_on_two_servers_are_acknowledged_apart(
    redis_server: RedisServer, tmp_path: Path
) -> None:
    store = opened(redis_server.url, tmp_path)
    store.write(0, ROWS)
    second = elsewhere(store, other_data(redis_server))
    second.sink.open(QUERY, "second")
    assert second.sink.last_seen(QUERY, "second") is None
    assert list(second.sink.in_doubt(QUERY, "under-test")) == []


def test_a_loss_that_is_accepted_is_logged(
    redis_server: RedisServer, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Nothing else says which epochs are missing: the sink cannot be named in drop= for them."""
    store = opened(redis_server.url, tmp_path)
    for epoch in range(3):
        store.write(epoch, ROWS)
    careless = elsewhere(store, other_data(redis_server), on_loss="continue")
    caplog.set_level("WARNING", logger="beadline")
    careless.sink.open(QUERY, SINK_NAME)
    (said,) = [record.getMessage() for record in caplog.records]
    assert "has acknowledged epoch 2 and now holds nothing" in said
    assert "of epochs 0 to 2" in said
    caplog.clear()
    careless.write(3, ROWS)
    careless.sink.open(QUERY, SINK_NAME)
    assert not caplog.records


@pytest.mark.parametrize("what", ["commit", "last_seen"])
def test_another_driver_between_the_two_looks_is_no_loss(
    redis_server: RedisServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    """It moves ledger and note on after this one has read the ledger."""
    store = opened(redis_server.url, tmp_path)
    store.write(0, ROWS)
    parts = store.prepare(1, ROWS)
    ask = RedisClient.ask
    told: list[set[Outcome]] = []

    def overtaken(self: RedisClient, question: Callable[[Any], Any]) -> Any:
        answer = ask(self, question)
        if not told:
            told.append(set())
            told.append(store.commit(1, parts))
        return answer

    monkeypatch.setattr(RedisClient, "ask", overtaken)
    if what == "commit":
        assert store.commit(1, parts) == {Outcome.ALREADY_COMMITTED}
    else:
        seen = store.sink.last_seen(QUERY, SINK_NAME)
        assert seen is not None
    assert told[1] == {Outcome.COMMITTED}
    assert total(redis_server, store) == 20


THREE: dict[str, Any] = {"key": ["n", "m", "o"], "value": [1, 1, 1]}


def commit_after(
    store: Store, number: int, previous: int, parts: list[Prepared[Any]]
) -> set[Outcome]:
    epoch = replace(epoch_id(number), previous=previous)
    return set(store.sink.commit(epoch, parts).outcomes.values())


def forget_acknowledged(store: Store, folder: Path) -> None:
    """A driver on another machine does not know, and must stop all the same."""
    for path in folder.rglob("*.acknowledged"):
        path.unlink()


def restored_is_noticed(store: Store, redis: Any, folder: Path) -> None:
    ledger = head_key(store.sink.prefix, QUERY.name)
    assert commit_after(store, 0, -1, store.prepare(0, THREE)) == {Outcome.COMMITTED}
    (backup,) = redis.hgetall(ledger).items()
    assert commit_after(store, 1, 0, store.prepare(1, THREE)) == {Outcome.COMMITTED}
    redis.hset(ledger, *backup)
    forget_acknowledged(store, folder)
    parts = store.prepare(2, THREE)
    for _ in range(2):
        with pytest.raises(CommitFailed, match=r"epoch 2.*acknowledged epoch 1.*holds epoch 0"):
            commit_after(store, 2, 1, parts)
    redis.delete(ledger)
    with pytest.raises(CommitFailed, match=r"holds nothing of this query.*on_loss='continue'"):
        commit_after(store, 2, 1, parts)
    assert int(redis.get(store.key("n"))) == 2, "nothing more was written"
    store.sink = replace(store.sink, on_loss="continue")
    assert commit_after(store, 2, 1, parts) == {Outcome.COMMITTED}
    assert int(redis.get(store.key("n"))) == 3


def test_a_restored_server_is_noticed_by_the_script(
    redis_server: RedisServer, tmp_path: Path
) -> None:
    with redis_server.client() as redis:
        restored_is_noticed(Store(redis_server.url, tmp_path, command="INCRBY"), redis, tmp_path)


def test_a_restored_cluster_is_noticed_by_its_head(
    redis_cluster: RedisCluster, tmp_path: Path
) -> None:
    """The slots' ledgers are ahead of the head then; what was written there is not repeated."""
    with library.RedisCluster.from_url(redis_cluster.url) as redis:
        store = Store(redis_cluster.url, tmp_path, command="INCRBY")
        ledger = head_key(store.sink.prefix, QUERY.name)
        assert commit_after(store, 0, -1, store.prepare(0, THREE)) == {Outcome.COMMITTED}
        redis.delete(ledger)
        forget_acknowledged(store, tmp_path)
        with pytest.raises(CommitFailed, match=r"acknowledged epoch 0.*holds nothing"):
            commit_after(store, 1, 0, store.prepare(1, THREE))
        assert int(redis.get(store.key("n"))) == 1


def test_half_an_epoch_is_not_the_whole(redis_server: RedisServer, tmp_path: Path) -> None:
    store = Store(redis_server.url, tmp_path, command="INCRBY")
    ledger = head_key(store.sink.prefix, QUERY.name)
    assert commit_after(store, 0, -1, store.prepare(0, THREE)) == {Outcome.COMMITTED}
    with redis_server.client() as redis:
        ((sink, entry),) = redis.hgetall(ledger).items()
        redis.hset(ledger, sink, entry.rpartition(b" ")[0].rpartition(b" ")[0] + b" 2 3")
    forget_acknowledged(store, tmp_path)
    with pytest.raises(CommitFailed, match=r"acknowledged epoch 0.*holds epoch 0 in part"):
        commit_after(store, 1, 0, store.prepare(1, THREE))
