"""Before each piece the ledger is asked: what can be told of that without an HBase."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import pytest

from beadline.errors import TargetRestored
from beadline.sinks import HBaseSink
from beadline.sinks.hbase.changes import Mutations
from beadline.sinks.hbase.client import ThriftServer, put, row_of
from beadline.sinks.hbase.columns import Cells
from beadline.sinks.hbase.ledger import HBaseLedger
from beadline.sinks.hbase.write import EpochWriter
from beadline.testing.suite.target import QUERY, SINK_NAME, epoch_id


@dataclass
class Wire:
    """A Thrift connection to tables without a row."""

    sent: list[Any] = field(default_factory=list)

    def row(self, table: str, key: bytes) -> dict[bytes, bytes]:
        return {}

    def mutate(self, table: str, rows: list[Any], at_ms: int) -> None:
        self.sent += rows


class Asked:
    """A ledger table with rows of two sinks of the query, and no server before it."""

    def rows(self, table: str, prefix: bytes) -> Iterator[tuple[bytes, dict[bytes, bytes]]]:
        for sink, epoch in (("a", 7), (SINK_NAME, 3)):
            words = ("suite", "orders", sink, QUERY.incarnation)
            cell = json.dumps({"epoch": epoch, "nonce": "n"}).encode()
            yield "~".join(words).encode(), {b"f:epoch": cell}


@pytest.mark.parametrize(("name", "epoch"), [(SINK_NAME, 3), ("a", 7), ("renamed", 7)])
def test_last_seen_returns_what_the_sink_itself_wrote(
    name: str, epoch: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Or the start misses what its commit would miss, and only a start can be told to continue."""
    monkeypatch.setattr("beadline.sinks.hbase.sink.asked", lambda server, ask, limits: ask(Asked()))
    sink = HBaseSink("h", table="orders", row_key="id", family="f", staging="/tmp/x")
    seen = sink.last_seen(QUERY, name)
    assert seen is not None
    assert seen.epoch == epoch


def writer(previous: int) -> EpochWriter:
    cells: Cells = None  # type: ignore[assignment]  # asked by nothing that is called here
    server: ThriftServer = None  # type: ignore[assignment]
    epoch = epoch_id(5, previous=previous)
    return EpochWriter(server, HBaseLedger("orders"), cells, ["f"], epoch, SINK_NAME, 1)


def test_a_ledger_row_that_goes_while_the_epoch_is_written_stops_it() -> None:
    """The first look found it; an older snapshot has taken the tables' place since."""
    wire, call = Wire(), Mutations([row_of(b"x", [put(b"f:a", b"1")])], 1)
    with pytest.raises(TargetRestored, match="acknowledged epoch 3 before and now holds nothing"):
        writer(previous=3)._send(wire, call)  # type: ignore[arg-type]
    assert not wire.sent
    assert writer(previous=-1)._send(wire, call)  # type: ignore[arg-type]
    assert len(wire.sent) == 1
