"""``RedisSink`` at least once: rows at once, again after a crash, and not when they are late."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from beadline.errors import PrepareFailed
from beadline.ids import QueryId
from beadline.sink import Part
from beadline.testing.suite.target import QUERY, SAME_NAME, part_id
from tests.servers.redis_store import Store


@pytest.fixture(params=["redis_server", "redis_cluster"])
def server(request: pytest.FixtureRequest) -> Any:
    return request.getfixturevalue(request.param)


def client_of(server: Any) -> Any:
    from redis import Redis
    from redis.cluster import RedisCluster

    server.wait_ready()
    return (RedisCluster if hasattr(server, "nodes") else Redis).from_url(server.url)


def publish(store: Store, epoch: int, value: str, query: QueryId = QUERY) -> None:
    batches = pa.table({"key": ["a"], "value": [value]}).to_batches()
    store.sink.publish(iter(batches), Part(part_id(epoch, query=query)))


def test_a_late_attempt_does_not_bring_the_past_back(server: Any, tmp_path: Path) -> None:
    store = Store(server.url, tmp_path)
    with client_of(server) as redis:
        publish(store, 0, "old")
        publish(store, 1, "new")
        with pytest.raises(PrepareFailed, match="has epoch 1 of this query already"):
            publish(store, 0, "old")
        assert redis.get(store.key("a")) == b"new"
        publish(store, 1, "new, again")
        publish(store, 2, "newer")
        assert redis.get(store.key("a")) == b"newer"


def test_the_error_of_a_key_of_another_type_names_part_and_row(server: Any, tmp_path: Path) -> None:
    store = Store(server.url, tmp_path, command="LPUSH")
    table = pa.table({"key": [f"k{number}" for number in range(9)], "value": ["x"] * 9})
    with client_of(server) as redis:
        redis.sadd(store.key("k7"), "a set")
        with pytest.raises(PrepareFailed, match=r"part 2: .* row 7 .*WRONGTYPE") as failed:
            store.sink.publish(iter(table.to_batches(max_chunksize=4)), Part(part_id(0, 2)))
    assert store.key("k7") not in str(failed.value), "a key may be a value that is secret"


def test_a_new_checkpoint_begins_again(server: Any, tmp_path: Path) -> None:
    store = Store(server.url, tmp_path)
    publish(store, 5, "of the old one")
    publish(store, 0, "of the new one", SAME_NAME)
    with client_of(server) as redis:
        assert redis.get(store.key("a")) == b"of the new one"
    assert store.sink.last_seen(QUERY, "under-test") is None, (
        "it says nothing about another incarnation"
    )


def test_what_was_decided_later_is_newer_too(server: Any, tmp_path: Path) -> None:
    """A query that became exactly-once, and an attempt from the time before."""
    store = Store(server.url, tmp_path)
    publish(store, 0, "published")
    store.write(1, {"key": ["a"], "value": ["decided"]})
    with pytest.raises(PrepareFailed, match="late"):
        publish(store, 0, "published")
    with client_of(server) as redis:
        assert redis.get(store.key("a")) == b"decided"


def test_an_older_checkpoint_can_be_noticed_at_the_start(redis_server: Any, tmp_path: Path) -> None:
    store = Store(redis_server.url, tmp_path)
    publish(store, 3, "x")
    seen = store.sink.last_seen(QUERY, "under-test")
    assert seen is not None
    assert (seen.epoch, seen.nonce) == (3, "")
    store.write(3, {"key": ["a"], "value": ["the same epoch, decided after a change of mode"]})
