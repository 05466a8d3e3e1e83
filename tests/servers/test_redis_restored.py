"""``RedisSink`` and a server that lacks what it had acknowledged, whatever the notes say."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import redis as library

from beadline.errors import CommitFailed
from beadline.sink import Outcome, Prepared
from beadline.sinks.redis.ledger import head_key
from beadline.testing.servers import RedisCluster, RedisServer
from beadline.testing.suite.target import QUERY, epoch_id
from tests.servers.test_redis_sink import Hands

ONE: dict[str, Any] = {"key": ["n", "m", "o"], "value": [1, 1, 1]}


def commit(hands: Hands, number: int, previous: int, parts: list[Prepared[Any]]) -> set[Outcome]:
    epoch = replace(epoch_id(number), previous=previous)
    return set(hands.sink.commit(epoch, parts).outcomes.values())


def without_notes(hands: Hands, folder: Path) -> None:
    """A driver on another machine has no notes, and must stop all the same."""
    for path in folder.rglob("*.acknowledged"):
        path.unlink()


def restored_is_noticed(hands: Hands, redis: Any, folder: Path) -> None:
    ledger = head_key(hands.sink.prefix, QUERY.name)
    assert commit(hands, 0, -1, hands.prepare(0, ONE)) == {Outcome.COMMITTED}
    (backup,) = redis.hgetall(ledger).items()
    assert commit(hands, 1, 0, hands.prepare(1, ONE)) == {Outcome.COMMITTED}
    redis.hset(ledger, *backup)
    without_notes(hands, folder)
    parts = hands.prepare(2, ONE)
    for _ in range(2):
        with pytest.raises(CommitFailed, match=r"epoch 2.*acknowledged epoch 1.*holds epoch 0"):
            commit(hands, 2, 1, parts)
    redis.delete(ledger)
    with pytest.raises(CommitFailed, match=r"holds nothing of this query.*on_loss='go on'"):
        commit(hands, 2, 1, parts)
    assert int(redis.get(hands.key("n"))) == 2, "nothing more was written"
    hands.sink = replace(hands.sink, on_loss="go on")
    assert commit(hands, 2, 1, parts) == {Outcome.COMMITTED}
    assert int(redis.get(hands.key("n"))) == 3


def test_a_restored_server_is_noticed_by_the_script(
    redis_server: RedisServer, tmp_path: Path
) -> None:
    with redis_server.client() as redis:
        restored_is_noticed(Hands(redis_server.url, tmp_path, command="INCRBY"), redis, tmp_path)


def test_a_restored_cluster_is_noticed_by_its_head(
    redis_cluster: RedisCluster, tmp_path: Path
) -> None:
    """The slots' ledgers are ahead of the head then; what was written there is not repeated."""
    with library.RedisCluster.from_url(redis_cluster.url) as redis:
        hands = Hands(redis_cluster.url, tmp_path, command="INCRBY")
        ledger = head_key(hands.sink.prefix, QUERY.name)
        assert commit(hands, 0, -1, hands.prepare(0, ONE)) == {Outcome.COMMITTED}
        redis.delete(ledger)
        without_notes(hands, tmp_path)
        with pytest.raises(CommitFailed, match=r"acknowledged epoch 0.*holds nothing"):
            commit(hands, 1, 0, hands.prepare(1, ONE))
        assert int(redis.get(hands.key("n"))) == 1


def test_half_an_epoch_is_not_the_whole(redis_server: RedisServer, tmp_path: Path) -> None:
    hands = Hands(redis_server.url, tmp_path, command="INCRBY")
    ledger = head_key(hands.sink.prefix, QUERY.name)
    assert commit(hands, 0, -1, hands.prepare(0, ONE)) == {Outcome.COMMITTED}
    with redis_server.client() as redis:
        ((sink, entry),) = redis.hgetall(ledger).items()
        redis.hset(ledger, sink, entry.rpartition(b" ")[0].rpartition(b" ")[0] + b" 2 3")
    without_notes(hands, tmp_path)
    with pytest.raises(CommitFailed, match=r"acknowledged epoch 0.*holds epoch 0 in part"):
        commit(hands, 1, 0, hands.prepare(1, ONE))


def test_orphans_of_another_name_and_prefix_are_found(
    redis_server: RedisServer, tmp_path: Path
) -> None:
    gone, left = (Hands(redis_server.url, tmp_path) for _ in range(2))
    (part,) = gone.prepare(0, {"key": ["a"], "value": ["b"]})
    other = left.sink
    assert [each.id for each in other.in_doubt(QUERY, "under-test")] == [part.id]
    other.abort(list(other.in_doubt(QUERY, "under-test")))
    assert list(gone.sink.in_doubt(QUERY, "under-test")) == []
