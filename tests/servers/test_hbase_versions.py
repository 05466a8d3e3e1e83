"""Time is what makes HBase's writes happen once: proven on the real store, without the ledger.

Three epochs, one millisecond apart, each with every sequence of up to two rows of one key, arrive
in every order, repeated and late. What shows in the end is what one who did them in order would
have left.
"""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Iterable, Iterator
from pathlib import Path

import pytest

from beadline.ids import EpochId
from beadline.sink import Outcome, Prepared, StagedPart
from beadline.sinks.hbase.changes import last_changes, mutations, pieces
from beadline.sinks.hbase.client import put, row_of
from beadline.testing.servers import HBaseServer
from tests.servers.hbase_orders import NOW_MS, Orders, RowTuples, decided

# A put, a put with a null, a delete; in one epoch: none, one or two of them.
ACTS = ("p", "n", "d")
SEQUENCES = [seq for length in range(3) for seq in itertools.product(ACTS, repeat=length)]
HISTORIES = list(itertools.product(SEQUENCES, repeat=3))
# Each epoch at least once; in order, late, repeated, backwards.
ARRIVALS = ("012", "0120", "01210", "001122", "012012", "210", "102", "1020")


def key_of(number: int) -> str:
    return f"{number:05d}"


def rows_of(epoch: int) -> Iterator[tuple[str, str | None, str | None, bool]]:
    """The rows of all histories in one epoch."""
    for number, history in enumerate(HISTORIES):
        for place, act in enumerate(history[epoch]):
            value = f"{epoch}.{place}"
            yield key_of(number), value, None if act == "n" else value, act == "d"


def expected() -> dict[str, dict[str, str]]:
    """What is left by one who does it all in order; ``z`` is a cell that the sink does not know."""
    shown = {key_of(number): {"z": "other"} for number in range(len(HISTORIES))}
    for epoch in range(3):
        for key, a, b, gone in rows_of(epoch):
            if gone:
                shown[key] = {}
                continue
            cells = shown[key]
            for name, value in (("a", a), ("b", b)):
                cells.pop(name, None)
                if value is not None:
                    cells[name] = value
    return {key: cells for key, cells in shown.items() if cells}


def apply(orders: Orders, rows: RowTuples, at_ms: int) -> None:
    """Write an epoch as a commit does, whatever the ledger says."""
    batch = orders.batch(list(rows))
    cells = orders.sink._cells(batch.schema.names)
    with orders.client() as client:
        for piece in pieces(last_changes([batch], cells), 5000):
            for call in mutations(piece, cells, ["f", "g"], at_ms):
                client.mutate(orders.table, call.rows, call.at_ms)


@pytest.mark.sampled(4)
@pytest.mark.parametrize("arrivals", ARRIVALS)
def test_every_order_of_arrival_ends_the_same(
    hbase_server: HBaseServer, tmp_path: Path, arrivals: str
) -> None:
    orders = Orders(hbase_server, tmp_path, deleted="gone")
    with orders.client() as client:
        others = [
            row_of(key_of(n).encode(), [put(b"f:z", b"other")]) for n in range(len(HISTORIES))
        ]
        client.mutate(orders.table, others, NOW_MS - 2)
    for epoch in map(int, arrivals):
        apply(orders, list(rows_of(epoch)), NOW_MS + epoch)
    assert orders.shows() == expected()


@pytest.mark.parametrize("shares", [1, 3])
def test_the_last_change_of_a_key_counts_over_all_parts(
    hbase_server: HBaseServer, tmp_path: Path, shares: int
) -> None:
    orders = Orders(hbase_server, tmp_path, deleted="gone").opened()
    rows = [
        ("put-delete", "1", "1", False),
        ("delete-put", "1", "1", True),
        ("put-put", "1", "1", False),
        ("put-delete", "2", "2", True),
        ("delete-put", "2", "2", False),
        ("put-put", "2", None, False),
    ]
    size = len(rows) // shares
    orders.commit(0, *(rows[begin : begin + size] for begin in range(0, len(rows), size)))
    wanted = {"delete-put": {"a": "2", "b": "2"}, "put-put": {"a": "2"}}
    assert orders.shows() == wanted


def late(orders: Orders, epoch: int, parts: Iterable[Prepared[StagedPart]]) -> set[Outcome]:
    return set(orders.try_commit(epoch, list(parts)).outcomes.values())


def test_puts_and_deletes_over_epochs_replayed_and_late(
    hbase_server: HBaseServer, tmp_path: Path
) -> None:
    orders = Orders(hbase_server, tmp_path, deleted="gone").opened()
    first = orders.commit(0, [("x", "1", "1", False), ("y", "1", "1", True)])
    assert orders.shows() == {"x": {"a": "1", "b": "1"}}
    second = orders.commit(1, [("x", "2", "2", True), ("y", "2", None, False)])
    for epoch, parts in ((0, first), (1, second), (0, first)):
        assert late(orders, epoch, parts) == {Outcome.ALREADY_COMMITTED}
        assert orders.shows() == {"y": {"a": "2"}}
    orders.commit(2, [("x", "3", "3", False), ("y", "3", "3", True)])
    assert orders.shows() == {"x": {"a": "3", "b": "3"}}


def test_cells_carry_the_time_of_the_decision(hbase_server: HBaseServer, tmp_path: Path) -> None:
    orders = Orders(hbase_server, tmp_path).opened()
    orders.commit(5, [("x", "1", "2")])
    with orders.client() as client:
        found = client._calls.getRow(orders.table.encode(), b"x", {})
    assert {cell.timestamp for cell in found[0].columns.values()} == {decided(5).decided_at_ms}


def test_a_replay_shows_nothing_old(hbase_server: HBaseServer, tmp_path: Path) -> None:
    """Readers look all the time, while a past that is over is written again and again."""
    orders = Orders(hbase_server, tmp_path).opened()
    keys = [f"{number:03d}" for number in range(200)]
    epochs = [[(key, str(epoch), str(epoch)) for key in keys] for epoch in range(4)]
    orders.commit(0, epochs[0])
    seen: list[str] = []
    done = threading.Event()

    def read() -> None:
        newest = dict.fromkeys(keys, 0)
        while not done.is_set():
            for key, cells in orders.shows().items():
                for value in map(int, cells.values()):
                    if value < newest[key]:
                        seen.append(f"{key} went from {newest[key]} back to {value}")
                if len(cells) != 2 or len(set(cells.values())) != 1:
                    seen.append(f"{key} without nulls shows in part: {cells}")
                newest[key] = max(map(int, cells.values()))
        seen.append(f"the last look: {set(newest.values())}")

    readers = [threading.Thread(target=read) for _ in range(2)]
    for reader in readers:
        reader.start()
    for epoch in (1, 2, 3):
        orders.commit(epoch, epochs[epoch])
        for old in range(epoch + 1):
            apply(orders, epochs[old], decided(old).decided_at_ms)
    time.sleep(0.5)
    done.set()
    for reader in readers:
        reader.join()
    assert seen == ["the last look: {3}"] * 2


def test_a_late_ledger_row_is_hidden_too(hbase_server: HBaseServer, tmp_path: Path) -> None:
    from beadline.sinks.hbase.ledger import HBaseLedger
    from beadline.testing.suite.target import QUERY, SINK_NAME

    orders = Orders(hbase_server, tmp_path).opened()
    ledger = HBaseLedger(orders.table)
    with orders.client() as client:
        for number in (0, 2, 1):
            epoch: EpochId = decided(number)
            ledger.write(client, epoch, SINK_NAME, 0)
        seen = ledger.read(client, QUERY).last_seen()
    assert seen is not None
    assert (seen.epoch, seen.nonce) == (2, decided(2).nonce)
