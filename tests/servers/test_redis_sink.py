"""``RedisSink`` on a real server: what each command leaves behind, and what is refused before."""

from __future__ import annotations

import datetime
from collections.abc import Iterator
from dataclasses import replace
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from beadline.errors import RowsRefused
from beadline.sink import Guarantee, Part, Prepared
from beadline.sinks.redis import refused
from beadline.testing.servers import RedisServer
from beadline.testing.suite.target import QUERY, epoch_id, part_id
from tests.servers.redis_store import Store


@pytest.fixture
def redis(redis_server: RedisServer) -> Iterator[Any]:
    with redis_server.client() as client:
        yield client


def test_a_durable_server_is_exactly_once(redis_server: RedisServer, tmp_path: Path) -> None:
    schema = pa.schema([("key", pa.string()), ("value", pa.string()), ("more", pa.int64())])
    found = Store(redis_server.url, tmp_path).sink.check(schema, QUERY)
    assert found.guarantee is Guarantee.EXACTLY_ONCE
    assert not found.atomic
    assert "part of an epoch" in found.sentence
    assert found.columns == ("key", "value")
    assert redis_server.password not in repr(found)


def test_set_expires_and_deletes(redis_server: RedisServer, redis: Any, tmp_path: Path) -> None:
    store = Store(redis_server.url, tmp_path, expire="ttl", deleted="gone")
    rows = {
        "key": ["a", "b", "c", "d"],
        "value": ["1", "2", None, "4"],
        "ttl": [100, None, -5, 50],
        "gone": [False, False, True, False],
    }
    redis.set(store.key("c"), "old")
    redis.set(store.key("b"), "old", ex=1000)
    store.write(0, rows)
    assert redis.mget(store.key("a"), store.key("b"), store.key("c")) == [b"1", b"2", None]
    assert 90 < redis.ttl(store.key("a")) <= 100
    assert redis.ttl(store.key("b")) == -1, "a plain SET ends an expiry"
    assert store.refused == [], "a row that deletes needs no value"


def test_hset_removes_what_is_null(redis_server: RedisServer, redis: Any, tmp_path: Path) -> None:
    store = Store(redis_server.url, tmp_path, command="HSET", key="id", expire=60, deleted="gone")
    types = pa.schema(
        [("id", pa.int64()), ("name", pa.string()), ("n", pa.int32()), ("gone", pa.bool_())]
    )
    first = {"id": [1, 2, 3], "name": ["one", "two", "three"], "n": [1, 2, 3], "gone": [False] * 3}
    later = {
        "id": [1, 2, 3, 4],
        "name": [None, None, "x", "four"],
        "n": [10, None, 0, 4],
        "gone": [False, False, True, False],
    }
    store.write(0, pa.table(first, types))
    store.write(1, pa.table(later, types))
    assert redis.hgetall(store.key("1")) == {b"n": b"10"}
    assert not redis.exists(store.key("2"), store.key("3")), "nothing is left of them"
    assert redis.hgetall(store.key("4")) == {b"name": b"four", b"n": b"4"}
    assert 0 < redis.ttl(store.key("4")) <= 60


def test_del_and_lists_and_floats(redis_server: RedisServer, redis: Any, tmp_path: Path) -> None:
    store = Store(redis_server.url, tmp_path, command="RPUSH", into="list")
    store.write(0, {"value": ["a", "b"]}, {"value": ["c"]})
    store.write(1, {"value": ["d"]})
    assert redis.lrange(store.key("list"), 0, -1) == [b"a", b"b", b"c", b"d"], "in order"
    adds = Store(redis_server.url, tmp_path, command="INCRBYFLOAT", prefix=store.sink.prefix)
    adds.write(2, {"key": ["f", "f"], "value": [0.5, 1e3]})
    assert float(redis.get(store.key("f"))) == 1000.5
    drops = Store(redis_server.url, tmp_path, command="DEL", prefix=store.sink.prefix)
    drops.write(3, {"key": ["f", "list", "never-there"]})
    assert not redis.exists(store.key("f"), store.key("list"))


def test_values_have_the_text_that_is_documented(
    redis_server: RedisServer, redis: Any, tmp_path: Path
) -> None:
    store = Store(redis_server.url, tmp_path, command="HSET")
    at = datetime.datetime(2026, 1, 2, 3, 4, 5, 6000)
    utc = at.replace(tzinfo=datetime.timezone.utc)
    columns: dict[str, Any] = {
        "key": pa.array([b"\xff\x00"], pa.binary()),
        "int": [2**63 - 1],
        "float": [0.1],
        "bool": [True],
        "decimal": [Decimal("0.0000000001")],
        "date": [at.date()],
        "clock": pa.array([at], pa.timestamp("ms")),
        "time": pa.array([utc], pa.timestamp("us", "Europe/Vienna")),
        "raw": [b"\r\n\xff"],
        "fixed": pa.array([b"ab"], pa.binary(2)),
        "text": ["ß"],
    }
    store.sink.check(pa.table(columns).schema, QUERY)
    store.write(0, columns)
    assert redis.hgetall(store.sink.prefix.encode() + b"\xff\x00") == {
        b"int": b"9223372036854775807",
        b"float": b"0.1",
        b"bool": b"1",
        b"decimal": b"0.0000000001",
        b"date": b"2026-01-02",
        b"clock": b"2026-01-02T03:04:05.006",
        b"time": b"2026-01-02T03:04:05.006000Z",
        b"raw": b"\r\n\xff",
        b"fixed": b"ab",
        b"text": "ß".encode(),
    }


INT = pa.int64()
REFUSED: list[tuple[dict[str, Any], dict[str, Any], str]] = [
    ({}, {"key": [None, "a"], "value": ["1", "2"]}, "null in column 'key'"),
    ({}, {"key": ["b", "a"], "value": [None, "2"]}, "null in column 'value'"),
    ({}, {"key": ["x:beadline:ledger:q:head", "a"], "value": ["1", "2"]}, "Beadline's own"),
    ({"expire": "t"}, {"key": ["b", "a"], "value": ["1", "2"], "t": [0, 1]}, "seconds"),
    ({"expire": "t"}, {"key": ["b", "a"], "value": ["1", "2"], "t": [10**13, None]}, "seconds"),
    (
        {"deleted": "d"},
        {"key": ["b", "a"], "value": ["1", "2"], "d": [None, False]},
        "deleted or not",
    ),
    (
        {"command": "INCRBY"},
        {"key": ["b", "a"], "value": pa.array([2**63, 2], pa.uint64())},
        "above",
    ),
    (
        {"command": "INCRBYFLOAT"},
        {"key": ["b", "a"], "value": [float("nan"), 2.0]},
        "not a finite",
    ),
    ({"command": "XADD"}, {"key": ["b", "a"], "n": pa.array([None, 2], INT)}, "every field"),
    ({}, {"key": ["b", "a"], "value": pa.array([2_932_897, 2_932_896], pa.date32())}, "years 0 to"),
    (
        {"command": "HSET"},
        {"key": ["b", "a"], "at": pa.array([10**18, 0], pa.timestamp("us", "UTC"))},
        "column 'at' is outside the years",
    ),
]


@pytest.mark.parametrize(("settings", "rows", "reason"), REFUSED)
def test_rows_are_refused_before_anything_is_decided(
    redis_server: RedisServer,
    redis: Any,
    tmp_path: Path,
    settings: dict[str, Any],
    rows: dict[str, Any],
    reason: str,
) -> None:
    """Each goes to the dead-letter sink once; the other row takes effect."""
    store = Store(redis_server.url, tmp_path, **settings)
    store.sink.check(pa.table(rows).schema, QUERY)
    store.write(0, rows)
    [(found, why)] = store.refused
    assert found.num_rows == 1
    assert reason in why
    assert redis.exists(store.key("a"))
    assert not redis.exists(store.key("b"))
    with pytest.raises(RowsRefused, match=reason.replace("(", r"\(")):
        store.sink.prepare(iter(pa.table(rows).to_batches()), Part(part_id(1)))


def test_half_of_the_ledgers_mark_may_be_in_the_prefix(
    redis_server: RedisServer, redis: Any, tmp_path: Path
) -> None:
    prefix = f"{tmp_path.name}:beadline:"
    store = Store(redis_server.url, tmp_path, prefix=prefix)
    store.write(0, {"key": ["ledger:q:head", "ledger", None, "a"], "value": list("1234")})
    assert [rows.num_rows for rows, _ in store.refused] == [1, 1]
    assert "Beadline's own" in store.refused[1][1]
    assert redis.mget(f"{prefix}ledger", f"{prefix}a") == [b"2", b"4"]


def test_a_row_that_is_too_large_as_a_whole(
    redis_server: RedisServer, redis: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(refused, "_ROW_BYTES_MAX", 100)
    store = Store(redis_server.url, tmp_path, command="HSET")
    rows = {"key": ["b", "a"], "x": ["x" * 60, "x" * 60], "y": ["y" * 60, None]}
    store.write(0, rows)
    [(large, why)] = store.refused
    assert large.column("key").to_pylist() == ["b"]
    assert "larger than 100 bytes" in why
    assert redis.exists(store.key("a"))


def test_a_row_that_deletes_may_have_any_date(
    redis_server: RedisServer, redis: Any, tmp_path: Path
) -> None:
    store = Store(redis_server.url, tmp_path, deleted="gone")
    redis.set(store.key("a"), "old")
    value = pa.array([2_932_897], pa.date32())
    store.write(0, {"key": ["a"], "value": value, "gone": [True]})
    assert store.refused == []
    assert not redis.exists(store.key("a"))


def test_publish_writes_redelivered_rows_again(
    redis_server: RedisServer, redis: Any, tmp_path: Path
) -> None:
    store = Store(redis_server.url, tmp_path, command="RPUSH")
    batches = pa.table({"key": ["a", "a"], "value": ["1", "2"]}).to_batches()
    for _ in range(2):
        store.sink.publish(iter(batches), Part(part_id(0)))
    assert redis.lrange(store.key("a"), 0, -1) == [b"1", b"2", b"1", b"2"]


def test_two_sinks_of_one_query_on_the_same_keys(
    redis_server: RedisServer, redis: Any, tmp_path: Path
) -> None:
    """Their ledgers are told apart by name; whose staged parts are whose, by the coordinator."""
    store = Store(redis_server.url, tmp_path, command="INCRBY", into="total")
    parts = []
    for name in ("first", "second"):
        id_ = replace(part_id(0), sink=name)
        made = store.sink.prepare(iter(pa.table({"value": [1, 2]}).to_batches()), Part(id_))
        assert made is not None
        parts.append(Prepared(id_, 2, made))
    assert {one.id for one in store.sink.in_doubt(QUERY, "under-test")} == {
        part.id for part in parts
    }
    for _ in range(2):
        for part in parts:
            store.sink.commit(epoch_id(0), [part])
    assert redis.get(store.key("total")) == b"6"
