"""``RedisSink`` on a cluster of three masters: slots, hash tags, and a node that dies."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from beadline.errors import BadSink, CommitFailed, WrongCheckpoint
from beadline.sink import Guarantee, Outcome, Part
from beadline.sinks.redis import chunks, client
from beadline.sinks.redis.ledger import CLUSTER_SLOTS, slot_of, tags
from beadline.testing.servers import RedisCluster
from beadline.testing.suite.target import QUERY, SAME_NAME, epoch_id, part_id
from tests.servers.redis_store import Store

SCHEMA = pa.schema([("key", pa.string()), ("value", pa.int64())])


@pytest.fixture
def redis(redis_cluster: RedisCluster) -> Iterator[Any]:
    from redis.cluster import RedisCluster as RedisClient

    redis_cluster.wait_ready()
    with RedisClient.from_url(redis_cluster.url) as found:
        yield found


def spread(keys: int, each: int = 1, begin: int = 0) -> dict[str, Any]:
    names = [f"k{number}" for number in range(begin, begin + keys)] * each
    return {"key": names, "value": [1] * len(names)}


def totals(redis: Any, store: Store, keys: int) -> list[int]:
    return [int(redis.get(store.key(f"k{number}")) or 0) for number in range(keys)]


def test_slots_are_those_of_redis(redis: Any) -> None:
    for key in (b"a", b"a{b}c", b"{}x", b"{a", b"x{}y{z}", b"{{a}}", "ß{ö}".encode(), b""):
        assert slot_of(key) == redis.cluster_keyslot(key), key
    assert [slot_of(b"beadline:{%b}" % tag) for tag in tags()] == list(range(CLUSTER_SLOTS))


def test_rows_of_every_node_count_once(
    redis_cluster: RedisCluster, redis: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(chunks, "SORTED_ROWS_MAX", 300)
    store = Store(redis_cluster.url, tmp_path, command="INCRBY")
    found = store.sink.check(SCHEMA, QUERY)
    assert found.guarantee is Guarantee.EXACTLY_ONCE
    parts = store.prepare(0, spread(200, 2), spread(200, 3))
    assert store.commit(0, parts) == {Outcome.COMMITTED}
    assert store.commit(0, parts) == {Outcome.ALREADY_COMMITTED}
    store.write(1, spread(200))
    assert totals(redis, store, 200) == [6] * 200
    seen = store.sink.last_seen(QUERY, "under-test")
    assert seen is not None
    assert seen.epoch == 1


@pytest.mark.parametrize("prefix", ["{orders}:", "plain:"])
def test_hash_tags_are_respected(
    redis_cluster: RedisCluster, redis: Any, tmp_path: Path, prefix: str
) -> None:
    prefix = f"{tmp_path.name}-{prefix}"
    store = Store(redis_cluster.url, tmp_path, command="RPUSH", prefix=prefix)
    store.sink.check(pa.schema([("key", pa.string()), ("value", pa.string())]), QUERY)
    keys = ["{user}:1", "{user}:2", "3", "{}4", "{5"]
    for epoch in range(2):
        store.write(epoch, {"key": keys, "value": list("abcde")})
    for key, value in zip(keys, "abcde", strict=True):
        assert redis.lrange(store.key(key), 0, -1) == [value.encode()] * 2


@pytest.mark.parametrize("prefix", ["a{", "a}", "{}a", "}{"])
def test_a_broken_tag_is_refused(redis_cluster: RedisCluster, tmp_path: Path, prefix: str) -> None:
    store = Store(redis_cluster.url, tmp_path, prefix=prefix)
    with pytest.raises(BadSink, match="braces"):
        store.sink.check(SCHEMA, QUERY)


def test_a_cluster_has_one_database(redis_cluster: RedisCluster, tmp_path: Path) -> None:
    store = Store(redis_cluster.url.removesuffix("0") + "3", tmp_path)
    with pytest.raises(BadSink) as refused:
        store.sink.check(SCHEMA, QUERY)
    assert redis_cluster.password not in str(refused.value)


def test_a_node_dies_in_the_middle_of_a_commit_and_comes_back(
    redis_cluster: RedisCluster, redis: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The other nodes have their rows; the next commit writes the rest, and nothing twice."""
    store = Store(redis_cluster.url, tmp_path, command="INCRBY")
    store.write(0, spread(300))
    parts = store.prepare(1, spread(300), spread(300))
    monkeypatch.setattr(client, "COMMANDS_MAX", 20)
    reads = iter(range(100_000))
    read = client.RedisClient._read

    def dying(self: client.RedisClient, node: str) -> Any:
        if next(reads) == 100:
            redis_cluster.nodes[2].kill()
        return read(self, node)

    with monkeypatch.context() as patch:
        patch.setattr(client.RedisClient, "_read", dying)
        assert store.commit(1, parts) == {Outcome.UNKNOWN}
    assert store.commit(1, parts) == {Outcome.UNKNOWN}, "a node is down"
    redis_cluster.nodes[2].restart()
    redis_cluster.wait_ready()
    assert store.commit(1, parts) == {Outcome.COMMITTED}
    assert totals(redis, store, 300) == [3] * 300


def test_a_key_of_another_type_in_one_slot(
    redis_cluster: RedisCluster, redis: Any, tmp_path: Path
) -> None:
    store = Store(redis_cluster.url, tmp_path, command="INCRBY")
    redis.sadd(store.key("k7"), "in the way")
    parts = store.prepare(0, spread(3, begin=100), spread(20, 4))
    with pytest.raises(CommitFailed, match=r"part 1.*row 7 ") as failed:
        store.commit(0, parts)
    assert store.key("k7") not in str(failed.value), "keys are values of rows"
    redis.delete(store.key("k7"))
    assert store.commit(0, parts) == {Outcome.COMMITTED}
    assert totals(redis, store, 20) == [4] * 20


def test_a_slot_of_another_incarnation_is_refused(
    redis_cluster: RedisCluster, redis: Any, tmp_path: Path
) -> None:
    """The head of the ledger alone was deleted, and the query begun again with a new checkpoint."""
    store = Store(redis_cluster.url, tmp_path, command="INCRBY")
    store.write(0, spread(5))
    redis.delete(f"{store.sink.prefix}beadline:ledger:{QUERY.name}:head")
    id_ = part_id(0, query=SAME_NAME)
    made = store.sink.prepare(iter(pa.table(spread(5)).to_batches()), Part(id_))
    part = type(store.prepare(1, spread(1))[0])(id_, 5, made)
    with pytest.raises(WrongCheckpoint, match="another query of that name"):
        store.sink.commit(epoch_id(0, SAME_NAME), [part])
    assert totals(redis, store, 5) == [1] * 5


def test_publishing_goes_to_every_node(
    redis_cluster: RedisCluster, redis: Any, tmp_path: Path
) -> None:
    store = Store(redis_cluster.url, tmp_path, command="INCRBY")
    store.sink.publish(iter(pa.table(spread(50)).to_batches()), Part(part_id(0)))
    assert totals(redis, store, 50) == [1] * 50


def test_a_slot_that_moves_is_waited_for(
    redis_cluster: RedisCluster, redis: Any, tmp_path: Path
) -> None:
    """First it is half here and half there; then another node has it, and the rows go there."""
    store = Store(redis_cluster.url, tmp_path, command="INCRBY", into="moving")
    slot = slot_of(store.key("moving").encode())
    owner = str(redis.get_node_from_key(store.key("moving")).port)
    clients = {str(node.port): node.client() for node in redis_cluster.nodes}
    here = clients.pop(owner)
    there = next(iter(clients.values()))
    ids = [one.execute_command("CLUSTER MYID") for one in (here, there)]
    parts = store.prepare(0, {"value": [1, 2, 3]})
    there.execute_command("CLUSTER SETSLOT", slot, "IMPORTING", ids[0])
    here.execute_command("CLUSTER SETSLOT", slot, "MIGRATING", ids[1])
    assert store.commit(0, parts) == {Outcome.UNKNOWN}
    for node in redis_cluster.nodes:
        with node.client() as one:
            one.execute_command("CLUSTER SETSLOT", slot, "NODE", ids[1])
    assert store.commit(0, parts) == {Outcome.COMMITTED}
    assert there.get(store.key("moving")) == b"6"
