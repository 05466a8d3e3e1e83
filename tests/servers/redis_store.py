"""What the tests of ``RedisSink`` drive: a sink on a prefix of its own, with its calls."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import pyarrow as pa

from beadline.sink import Outcome, Part, Prepared
from beadline.sinks import RedisSink
from beadline.testing.servers import RedisServer
from beadline.testing.suite.target import epoch_id, part_id

_prefixes = (f"sink-{number}:" for number in itertools.count())


class Store:
    """A sink on a prefix of its own, and the calls that the protocol would make."""

    def __init__(self, url: str, folder: Path, **settings: Any) -> None:
        given = {"prefix": next(_prefixes), "staging": folder, **settings}
        self.sink = RedisSink(url, **given)
        self.refused: list[tuple[Any, str]] = []

    def key(self, name: str) -> str:
        return f"{self.sink.prefix}{name}"

    def prepare(self, epoch: int, *shares: dict[str, Any] | pa.Table) -> list[Prepared[Any]]:
        parts = []
        for number, share in enumerate(shares):
            table = share if isinstance(share, pa.Table) else pa.table(share)
            id_ = part_id(epoch, number)
            part = Part(id_, refuse=lambda rows, why: self.refused.append((rows, why)))
            made = self.sink.prepare(iter(table.to_batches()), part)
            if made is not None:
                parts.append(Prepared(id_, made.rows, made))
        return parts

    def commit(self, epoch: int, parts: list[Prepared[Any]]) -> set[Outcome]:
        return set(self.sink.commit(epoch_id(epoch), parts).outcomes.values())

    def write(self, epoch: int, *shares: dict[str, Any] | pa.Table) -> None:
        assert self.commit(epoch, self.prepare(epoch, *shares)) == {Outcome.COMMITTED}


def ones(key: str = "n", rows: int = 200) -> dict[str, Any]:
    """Rows that each add one to a key."""
    return {"key": [key] * rows, "value": [1] * rows}


def total(server: RedisServer, store: Store, key: str = "n") -> int:
    """The sum at a key."""
    with server.client() as client:
        return int(client.get(store.key(key)) or 0)
