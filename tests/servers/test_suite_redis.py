"""The conformance suite on ``RedisSink``: commands that repeat well, and those that do not.

Chunks are made tiny, so that an epoch is several scripts and a crash falls between them.
"""

from __future__ import annotations

import itertools
import re
from collections import Counter
from collections.abc import Collection, Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from beadline.sink import AnySink
from beadline.sinks import RedisSink
from beadline.sinks.redis import chunks
from beadline.testing.servers import RedisCluster, RedisServer
from beadline.testing.suite import *  # noqa: F403
from beadline.testing.suite import Row, SinkHarness

# Each case with two of the seven harnesses, chosen by the seed; with BEADLINE_LONG=1 all of them.
pytestmark = pytest.mark.sampled(2)

_prefixes = (f"suite-{number}:" for number in itertools.count())
LEDGER = "beadline:ledger:"


class SetHarness(SinkHarness):
    schema = pa.schema([("key", pa.string()), ("value", pa.string())])
    settings: dict[str, Any] = {}  # noqa: RUF012 (never changed)

    def __init__(self, server: RedisServer | RedisCluster, redis: Any, folder: Path) -> None:
        self.url = server.url
        self.secrets = (server.password,)
        self.redis = redis
        self.folder = folder

    def fresh(self, schema: pa.Schema) -> AnySink:
        return RedisSink(self.url, prefix=next(_prefixes), staging=self.folder, **self.settings)

    def visible(self, sink: AnySink) -> list[Row]:
        assert isinstance(sink, RedisSink)
        found = self.redis.scan_iter(match=f"{sink.prefix}*", count=1000)
        names = [key.decode(errors="surrogateescape").removeprefix(sink.prefix) for key in found]
        keys = [name for name in names if not name.startswith(LEDGER)]
        wholes = {key: f"{sink.prefix}{key}".encode(errors="surrogateescape") for key in keys}
        return [row for key, whole in wholes.items() for row in self.shown(whole, key)]

    def shown(self, whole: bytes, key: str) -> list[Row]:
        return [{"key": key, "value": self.redis.get(whole).decode(errors="surrogateescape")}]

    def leftovers(self, sink: AnySink) -> Collection[str]:
        assert isinstance(sink, RedisSink)
        folder = Path(sink.staging_area.folder.removeprefix("file:"))
        return [path.name for path in folder.glob("*") if path.suffix != ".acknowledged"]

    def plant_stranger(self, sink: AnySink) -> str | None:
        assert isinstance(sink, RedisSink)
        folder = Path(sink.staging_area.folder.removeprefix("file:"))
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "notes.txt").write_text("mine")
        return "notes.txt"

    def unreachable(self, sink: AnySink) -> AbstractContextManager[AnySink]:
        assert isinstance(sink, RedisSink)
        dead = re.sub(r"(@[^:/]+):\d+", r"\1:1", sink.url)
        assert dead != sink.url
        return nullcontext(replace(sink, url=dead, timeout_s=2))

    def row(self, number: int, version: int = 0) -> Row:
        return {"key": str(number), "value": f"{number}.{version}"}

    def expected(self, rows: list[Row]) -> list[Row]:
        return list({row["key"]: row for row in rows}.values())

    def odd_rows(self) -> tuple[pa.Schema, list[Row]]:
        words = ["", " ", "NULL", "nil", "\\N", "'", '"', "%s", "ß ö 漢 🧵", "a\r\nb", "007", "\0"]
        rows = [{"key": words[-index], "value": word} for index, word in enumerate(words)]
        return self.schema, rows


class HashHarness(SetHarness):
    """A hash for each key; a field that is missing is a null."""

    settings = {"command": "HSET", "key": "id"}  # noqa: RUF012
    schema = SinkHarness.schema

    def shown(self, whole: bytes, key: str) -> list[Row]:
        found = {
            name.decode(errors="surrogateescape"): text.decode(errors="surrogateescape")
            for name, text in self.redis.hgetall(whole).items()
        }
        amount = found.get("amount")
        word = next((name for name in found if name != "amount"), None)
        return [
            {
                "id": int(key),
                word or self.odd_column: found.get(word or ""),
                "amount": None if amount is None else float(amount),
            }
        ]

    def row(self, number: int, version: int = 0) -> Row:
        return SinkHarness.row(self, number, version)

    def expected(self, rows: list[Row]) -> list[Row]:
        return list({row["id"]: row for row in rows}.values())

    def odd_rows(self) -> tuple[pa.Schema, list[Row]]:
        schema, rows = SinkHarness.odd_rows(self)
        return schema, [
            row for row in rows if any(row[name] is not None for name in schema.names[1:])
        ]


class StreamHarness(HashHarness):
    """Entries of one stream, which are never the same twice."""

    settings = {"command": "XADD", "into": "stream"}  # noqa: RUF012

    def shown(self, whole: bytes, key: str) -> list[Row]:
        return [self.entry(fields) for _, fields in self.redis.xrange(whole)]

    def entry(self, fields: dict[bytes, bytes]) -> Row:
        found = {
            name.decode(errors="surrogateescape"): text.decode(errors="surrogateescape")
            for name, text in fields.items()
        }
        amount = found.pop("amount", None)
        number = found.pop("id", None)
        word = next(iter(found), self.odd_column)
        shown = None if amount is None else float(amount)
        id_ = None if number is None else int(number)
        return {"id": id_, word: found.get(word), "amount": shown}

    def expected(self, rows: list[Row]) -> list[Row]:
        return rows


class ListHarness(SetHarness):
    """Values pushed to the list of their key."""

    settings = {"command": "LPUSH"}  # noqa: RUF012

    def shown(self, whole: bytes, key: str) -> list[Row]:
        return [
            {"key": key, "value": text.decode(errors="surrogateescape")}
            for text in self.redis.lrange(whole, 0, -1)
        ]

    def expected(self, rows: list[Row]) -> list[Row]:
        return rows


class SumHarness(SetHarness):
    """Totals, which show each row that is written twice or not at all."""

    settings = {"command": "INCRBY"}  # noqa: RUF012
    schema = pa.schema([("key", pa.string()), ("value", pa.int64())])

    def shown(self, whole: bytes, key: str) -> list[Row]:
        return [{"key": key, "value": int(self.redis.get(whole))}]

    def row(self, number: int, version: int = 0) -> Row:
        return {"key": str(number), "value": 10**version}

    def expected(self, rows: list[Row]) -> list[Row]:
        totals: Counter[str] = Counter()
        for row in rows:
            totals[row["key"]] += row["value"]
        return [{"key": key, "value": total} for key, total in totals.items()]

    def odd_rows(self) -> tuple[pa.Schema, list[Row]]:
        numbers = [0, -1, 2**53 + 1, 2**63 - 1, -(2**63)]
        return self.schema, [{"key": str(number), "value": number} for number in numbers]


ALONE = (SetHarness, HashHarness, StreamHarness, ListHarness, SumHarness)
IN_CLUSTER = (SetHarness, SumHarness)


@pytest.fixture(
    params=[
        *(("redis_server", each) for each in ALONE),
        *(("redis_cluster", e) for e in IN_CLUSTER),
    ],
    ids=lambda param: f"{param[0]}-{param[1].__name__}",
)
def harness(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[SinkHarness]:
    from redis import Redis
    from redis.cluster import RedisCluster as ClusterClient

    monkeypatch.setattr(chunks, "ROWS_MAX", 2)
    monkeypatch.setattr(chunks, "SORTED_ROWS_MAX", 2)
    name, kind = request.param
    server = request.getfixturevalue(name)
    client = ClusterClient if name == "redis_cluster" else Redis
    with client.from_url(server.url) as redis:
        yield kind(server, redis, tmp_path)
