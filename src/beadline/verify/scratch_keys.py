"""Redis and HBase: keys under a prefix of their own, a table of their own."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from beadline.sink import LEDGER
from beadline.verify.scratch import ScratchLocation, ScratchStore
from beadline.verify.scratch_databases import elsewhere

if TYPE_CHECKING:
    from beadline.sinks import HBaseSink, RedisSink

_REDIS_LEDGER = b"beadline:ledger:"
_ADDS = ("LPUSH", "RPUSH", "XADD")


def _clone_redis(sink: RedisSink, place: ScratchLocation) -> RedisSink:
    staging = place.folder / "redis-staging"
    return replace(sink, prefix=f"{place.tag}:{sink.prefix}", staging=str(staging))


def _client(sink: RedisSink) -> Any:
    from redis import Redis
    from redis.cluster import RedisCluster

    kind: Any = RedisCluster if sink.cluster else Redis
    return kind.from_url(sink.url, socket_timeout=10)


def _keys(sink: RedisSink, client: Any) -> list[bytes]:
    return sorted(set(client.scan_iter(match=pattern(sink.prefix), count=1000)))


def pattern(prefix: str) -> str:
    """The pattern for SCAN to find a prefix's keys; a prefix may contain pattern characters."""
    return re.sub(r"([\\*?\[\]])", r"\\\1", prefix) + "*"


def _shown_redis(sink: RedisSink) -> Iterator[tuple[Any, ...]]:
    """One row per element of a list or stream, per field of a hash, per value."""
    prefix = sink.prefix.encode()
    with closing(_client(sink)) as client:
        for key in _keys(sink, client):
            name = key.removeprefix(prefix)
            if name.startswith(_REDIS_LEDGER):
                continue
            kind = client.type(key)
            if kind == b"list":
                yield from ((name, value) for value in client.lrange(key, 0, -1))
            elif kind == b"stream":
                yield from ((name, fields) for _, fields in client.xrange(key))
            elif kind == b"hash":
                yield from ((name, *pair) for pair in client.hgetall(key).items())
            elif kind == b"string":
                yield (name, client.get(key))


def _remove_redis(sink: RedisSink, query: str) -> None:
    with closing(_client(sink)) as client:
        for key in _keys(sink, client):
            client.delete(key)


def _redis_address(sink: RedisSink) -> tuple[str, int] | None:
    parts = urlsplit(sink.url)
    if parts.scheme == "unix" or sink.cluster:
        return None
    return parts.hostname or "localhost", parts.port or 6379


REDIS_STORE = ScratchStore(
    clone=_clone_redis,
    shown=_shown_redis,
    remove=_remove_redis,
    grows=lambda sink: sink.command in _ADDS,
    address=_redis_address,
    through=lambda sink, port: replace(sink, url=elsewhere(sink.url, port)),
    no_cuts="a cluster of Redis tells clients its own addresses, which lead past a proxy",
)


def _hbase(sink: HBaseSink) -> Any:
    from happybase import Connection

    return closing(Connection(sink.host, sink.port, timeout=int(sink.timeout_s * 1000)))


def _clone_hbase(sink: HBaseSink, place: ScratchLocation) -> HBaseSink:
    table = f"{sink.table}_{place.tag}"
    with _hbase(sink) as connection:
        families = [name.decode().rstrip(":") for name in connection.table(sink.table).families()]
        connection.create_table(table, {name: {} for name in families})
    return replace(sink, table=table, staging=str(place.folder / "hbase-staging"))


def _shown_hbase(sink: HBaseSink) -> Iterator[tuple[Any, ...]]:
    with _hbase(sink) as connection:
        yield from ((key, cells) for key, cells in connection.table(sink.table).scan())


def _remove_hbase(sink: HBaseSink, query: str) -> None:
    namespace, colon, _ = sink.table.rpartition(":")
    with _hbase(sink) as connection:
        connection.delete_table(sink.table, disable=True)
        ledger = connection.table(f"{namespace}{colon}{LEDGER}")
        for key, _ in ledger.scan(row_prefix=query.encode()):
            ledger.delete(key)


HBASE_STORE = ScratchStore(
    clone=_clone_hbase,
    shown=_shown_hbase,
    remove=_remove_hbase,
    grows=lambda sink: False,
    address=lambda sink: (sink.host, sink.port),
    through=lambda sink, port: replace(sink, host="127.0.0.1", port=port),
)
