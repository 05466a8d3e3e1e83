"""What ``RedisSink`` says before the first row: settings, columns, access, and what can be lost."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from beadline.errors import BadSink, CommitBlocked, CommitFailed
from beadline.shared.retry import NO_ANSWER_S
from beadline.sink import Guarantee, Outcome
from beadline.sinks import RedisSink
from beadline.testing.servers import RedisServer, redis, redis_cluster
from beadline.testing.suite.target import QUERY, epoch_id
from tests.servers.redis_store import Store

SCHEMA = pa.schema([("key", pa.string()), ("value", pa.string())])
URL = "redis://:dont-tell-me@127.0.0.1:1/0"


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"command": "GET"}, "is not one of SET"),
        ({"staging": ""}, "staging="),
        ({"staging": "hdfs://namenode/x"}, "not a local folder"),
        ({"into": "x"}, "last row only"),
        ({"command": "XADD", "deleted": "d"}, "deleted="),
        ({"command": "DEL", "expire": 5}, "DEL"),
        ({"expire": 0}, "whole seconds"),
        ({"expire": True}, "whole seconds"),
        ({"timeout_s": 0}, "timeout_s"),
        ({"on_loss": "panic"}, "on_loss"),
        ({"prefix": "beadline:ledger:"}, "Beadline's own"),
        ({"command": "XADD", "prefix": "beadline:", "into": "ledger:x"}, "Beadline's own"),
        ({"url": "http://:dont-tell-me@h"}, "a URL of Redis"),
        ({"url": "redis://:dont-tell-me/x@h:port"}, "a URL of Redis"),
    ],
)
def test_wrong_settings(settings: dict[str, Any], said: str) -> None:
    with pytest.raises(BadSink) as refused:
        RedisSink(**{"url": URL, "staging": "/tmp/x", **settings})
    assert said in str(refused.value)
    assert "dont-tell-me" not in str(refused.value)


LIST = pa.list_(pa.int64())
COLUMNS: list[tuple[dict[str, Any], list[tuple[str, pa.DataType]], str]] = [
    ({}, [("value", pa.string())], "'key' is not in the rows"),
    ({}, [("key", pa.string())], "'value' is not in the rows"),
    ({}, [("key", pa.float64()), ("value", pa.string())], "cannot be a key"),
    ({}, [("key", pa.string()), ("value", LIST)], "no text form in Redis"),
    ({}, [("key", pa.string()), ("value", LIST), ("value", LIST)], "two columns"),
    ({"command": "INCRBY"}, [("key", pa.string()), ("value", pa.float64())], "INCRBYFLOAT"),
    ({"command": "INCRBYFLOAT"}, [("key", pa.string()), ("value", pa.string())], "adds numbers"),
    ({"command": "HSET"}, [("key", pa.string())], "1 to 1,000"),
    ({"expire": "value"}, [("key", pa.string()), ("value", pa.string())], "whole seconds"),
    ({"deleted": "value"}, [("key", pa.string()), ("value", pa.string())], "a boolean"),
]


@pytest.mark.parametrize(("settings", "columns", "said"), COLUMNS)
def test_columns_that_do_not_fit(
    tmp_path: Path, settings: dict[str, Any], columns: Any, said: str
) -> None:
    """Found without a server, and before one is asked."""
    with pytest.raises(BadSink, match=said):
        Store(URL, tmp_path, **settings).sink.check(pa.schema(columns), QUERY)


def test_no_server(tmp_path: Path) -> None:
    begun_s = time.monotonic()
    with pytest.raises(BadSink, match=r"127\.0\.0\.1:1.*start again") as refused:
        Store(URL, tmp_path).sink.check(SCHEMA, QUERY)
    assert time.monotonic() - begun_s < 4 * NO_ANSWER_S
    assert "dont-tell-me" not in repr(refused.getrepr())


def test_a_staging_folder_that_cannot_be_written(redis_server: RedisServer, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("not a folder")
    with pytest.raises(BadSink, match="staging="):
        Store(redis_server.url, tmp_path / "file" / "x").sink.check(SCHEMA, QUERY)


def test_a_wrong_password_is_not_repeated(redis_server: RedisServer, tmp_path: Path) -> None:
    """Not in the message, nor in an error that hangs on it."""
    wrong = redis_server.url.replace(redis_server.password, "dont%2Ftell-me")
    store = Store(wrong, tmp_path)
    parts = store.prepare(0, {"key": ["a"], "value": ["1"]})
    for call in (
        lambda: store.sink.check(SCHEMA, QUERY),
        lambda: store.sink.last_seen(QUERY, "under-test"),
        lambda: store.sink.commit(epoch_id(0), parts),
    ):
        with pytest.raises((BadSink, CommitFailed), match="password") as refused:
            call()
        assert refused.value.__cause__ is None
        for text in (str(refused.value), repr(store.sink), str(refused.getrepr(style="value"))):
            assert "tell-me" not in text


def test_a_wrong_password_after_the_decision_is_raised_at_once(
    redis_server: RedisServer, tmp_path: Path
) -> None:
    """What is unknown is asked for without end; this is known, and needs a person."""
    store = Store(redis_server.url, tmp_path)
    store.sink.open(QUERY, "under-test")
    parts = store.prepare(0, {"key": ["a"], "value": ["1"]})
    wrong = redis_server.url.replace(redis_server.password, "dont-tell-me")
    with pytest.raises(CommitBlocked, match="password") as caught:
        replace(store.sink, url=wrong).commit(epoch_id(0), parts)
    assert "dont-tell-me" not in str(caught.value)
    assert store.commit(0, parts) == {Outcome.COMMITTED}


@pytest.mark.parametrize(
    ("command", "values"), [("HSET", ["1"]), ("INCRBY", [1]), ("RPUSH", ["1"])]
)
def test_a_user_who_may_not_expire_keys_writes_none_that_stay(
    redis_server: RedisServer, tmp_path: Path, command: str, values: list[Any]
) -> None:
    """Nor is the row written twice when the right is there: nothing of it was."""
    store = Store(redis_server.url, tmp_path, command=command, expire="seconds")
    store.sink.open(QUERY, "under-test")
    rows = {"key": ["keeps", "goes"], "value": values * 2, "seconds": [None, 60]}
    parts = store.prepare(0, rows)
    with redis_server.client() as client:
        rights = ("on", ">dont-tell-me", "~*", "&*", "+@all", "-expire")
        client.execute_command("ACL", "SETUSER", "clerk", "reset", *rights)
        clerk = redis_server.url.replace(f":{redis_server.password}", "clerk:dont-tell-me")
        with pytest.raises(CommitBlocked, match=r"no permissions|can't run this command|NOPERM"):
            replace(store.sink, url=clerk).commit(epoch_id(0), parts)
        assert not client.exists(store.key("goes"))
        assert store.commit(0, parts) == {Outcome.COMMITTED}
        assert [client.ttl(store.key(name)) for name in ("keeps", "goes")] == [-1, 60]
        if command == "INCRBY":
            assert [int(client.get(store.key(name))) for name in ("keeps", "goes")] == [1, 1]


@pytest.mark.parametrize("right", ["set", "hset", "hget", "evalsha"])
def test_a_right_that_is_taken_away_after_the_decision(
    redis_server: RedisServer, tmp_path: Path, right: str
) -> None:
    """Of the row's command too, which only the script is told: no row is to blame."""
    store = Store(redis_server.url, tmp_path)
    store.sink.open(QUERY, "under-test")
    parts = store.prepare(0, {"key": ["a"], "value": ["1"]})
    with redis_server.client() as client:
        rights = ("on", ">dont-tell-me", "~*", "&*", "+@all", f"-{right}")
        client.execute_command("ACL", "SETUSER", "clerk", "reset", *rights)
    clerk = redis_server.url.replace(f":{redis_server.password}", "clerk:dont-tell-me")
    with pytest.raises(CommitBlocked, match=r"no permissions|can't run this command|NOPERM"):
        replace(store.sink, url=clerk).commit(epoch_id(0), parts)
    assert store.commit(0, parts) == {Outcome.COMMITTED}


RISKS: list[tuple[dict[str, str], str, str]] = [
    ({"appendonly": "no"}, "of the whole time", "CONFIG SET appendonly yes"),
    ({"appendonly": "no", "save": "60 1"}, "last snapshot", "CONFIG SET appendonly yes"),
    ({"appendfsync": "everysec"}, "second or two", "CONFIG SET appendfsync always"),
    ({"appendfsync": "no"}, "half minute", "CONFIG SET appendfsync always"),
    ({"no-appendfsync-on-rewrite": "yes"}, "rewritten", "no-appendfsync-on-rewrite no"),
    ({"maxmemory-policy": "allkeys-lru"}, "doubles rows", "maxmemory-policy noeviction"),
    ({"maxmemory-policy": "volatile-ttl"}, "evicts keys", "maxmemory-policy noeviction"),
]


def test_what_the_server_can_lose_is_read_from_it(tmp_path: Path) -> None:
    with redis() as server, server.client() as client:
        sink = Store(server.url, tmp_path).sink
        for settings, risk, cure in RISKS:
            before = {name: client.config_get(name)[name] for name in settings}
            for name, value in settings.items():
                client.config_set(name, value)
            found = sink.check(SCHEMA, QUERY)
            assert found.guarantee is Guarantee.AT_MOST_ONCE, settings
            assert risk in found.sentence
            assert found.sentence.endswith(".")
            assert cure in found.raised_by
            for name, value in before.items():
                client.config_set(name, value)
            until(lambda: not client.info("persistence")["aof_rewrite_in_progress"])
        assert sink.check(SCHEMA, QUERY).guarantee is Guarantee.EXACTLY_ONCE


def test_a_log_that_is_not_whole_yet_keeps_nothing(tmp_path: Path) -> None:
    """CONFIG GET says appendonly yes at once; the first log may take its time."""
    slow = {"appendonly": "no", "rdb-key-save-delay": "100000"}
    with redis(slow) as server, server.client() as client:
        client.mset({f"k{number}": number for number in range(30)})
        client.config_set("appendonly", "yes")
        found = Store(server.url, tmp_path).sink.check(SCHEMA, QUERY)
        assert found.guarantee is Guarantee.AT_MOST_ONCE
        assert "for the first time" in found.sentence
        assert "aof_rewrite_in_progress:0" in found.raised_by
        server.kill()  # it is busy with a new log, and would take its time


def test_settings_that_may_not_be_read(tmp_path: Path) -> None:
    """As on managed servers: then only the user can know. The rest is all that it may do."""
    with redis() as server, server.client() as client:
        needed = "set hget hgetall hset evalsha script|load info ping select"
        rules = ["on", ">dont-tell-me", "~mine:*", *(f"+{name}" for name in needed.split())]
        client.execute_command("ACL", "SETUSER", "small", *rules)
        url = server.url.replace(f":{server.password}", "small:dont-tell-me")
        store = Store(url, tmp_path, prefix="mine:")
        found = store.sink.check(SCHEMA, QUERY)
        assert found.guarantee is Guarantee.AT_MOST_ONCE
        assert "CONFIG GET" in found.sentence
        assert "durable=True" in found.raised_by
        known = Store(url, tmp_path, prefix="mine:", durable=True)
        assert known.sink.check(SCHEMA, QUERY).guarantee is Guarantee.EXACTLY_ONCE
        store.write(0, {"key": ["a"], "value": ["1"]})
        assert client.get("mine:a") == b"1"
        with pytest.raises(BadSink, match="refuses to be checked"):
            Store(url, tmp_path, prefix="others:").sink.check(SCHEMA, QUERY)


def test_a_replica_is_refused_and_a_server_that_has_one_is_reported(tmp_path: Path) -> None:
    quick = {"repl-diskless-sync-delay": "0"}
    with redis(quick) as server, redis({"masterauth": server.password}) as other:
        with other.client() as client:
            client.replicaof("127.0.0.1", server.port)
            until(lambda: client.info("replication")["master_link_status"] == "up")
        with pytest.raises(BadSink, match=f"replica.*{server.port}"):
            Store(other.url, tmp_path).sink.check(SCHEMA, QUERY)
        found = Store(server.url, tmp_path).sink.check(SCHEMA, QUERY)
        assert found.guarantee is Guarantee.AT_MOST_ONCE
        assert "takes over" in found.sentence
        known = Store(server.url, tmp_path, durable=True).sink.check(SCHEMA, QUERY)
        assert known.guarantee is Guarantee.EXACTLY_ONCE
        other.kill()
        with server.client() as client:
            until(lambda: not client.info("replication")["connected_slaves"])
        found = Store(server.url, tmp_path).sink.check(SCHEMA, QUERY)
        assert found.guarantee is Guarantee.AT_MOST_ONCE, "it is away, not gone"
        server.kill()  # it would wait for its replica


def test_a_replica_that_only_the_cluster_remembers(tmp_path: Path) -> None:
    """It is down, and its primary has started again since: only CLUSTER NODES tells of it."""
    with redis_cluster(nodes=1, settings={"repl-diskless-sync-delay": "0"}) as cluster:
        [primary] = cluster.nodes
        replica = RedisServer(tmp_path, name="replica", password=cluster.password, cluster=True)
        replica.start()
        try:
            with primary.client() as client, replica.client() as other:
                bus = primary.bus_port
                other.execute_command("CLUSTER MEET", "127.0.0.1", primary.port, bus)
                until(lambda: len(other.cluster("NODES")) == 2)
                name = client.execute_command("CLUSTER MYID").decode()
                until(lambda: _replicates(other, name))
                until(lambda: client.info("replication")["connected_slaves"])
                until(lambda: "slave" in str(client.cluster("NODES")))
                client.cluster("SAVECONFIG")
        finally:
            replica.kill()
        primary.kill()
        primary.restart()
        with primary.client() as client:
            until(lambda: client.cluster("INFO")["cluster_state"] == "ok")
            assert not client.info("replication")["repl_backlog_active"]
        found = Store(cluster.url, tmp_path).sink.check(SCHEMA, QUERY)
        assert found.guarantee is Guarantee.AT_MOST_ONCE
        assert "it has replicas" in found.sentence


def _replicates(replica: Any, name: str) -> bool:
    """Tell a node whom to follow; it may not have heard of it yet."""
    from redis.exceptions import ResponseError

    try:
        replica.execute_command("CLUSTER REPLICATE", name)
    except ResponseError:
        return False
    return True


def until(true: Callable[[], Any]) -> None:
    deadline_s = time.monotonic() + 30
    while not true():
        assert time.monotonic() < deadline_s
        time.sleep(0.05)
