"""Commits of ``HBaseSink`` that must not continue, or must say of which row they cannot."""

from __future__ import annotations

import os
import traceback
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from beadline.errors import CommitFailed, TargetRestored
from beadline.ids import EpochId
from beadline.shared.retry import Rejected
from beadline.sink import Outcome
from beadline.sinks.hbase.client import HBaseClient
from beadline.testing.servers import HBaseServer
from beadline.testing.suite.target import QUERY
from tests.servers.hbase_orders import NOW_MS, Orders, decided

OTHER_SETTINGS: list[tuple[dict[str, Any], str]] = [
    ({"deleted": None}, r"deleted was 'gone' and is None"),
    ({"family": "g"}, r"columns\['a'\] was 'f:a' and is 'g:a'"),
    ({"family": None, "columns": {"a": "f:a"}}, r"columns\['b'\] was 'f:b' and is None"),
    ({"family": None, "columns": {"new": "f:new"}}, r"columns\['new'\] was None and is 'f:new'"),
    ({"row_key": "a"}, r"row_key was 'id' and is 'a'"),
    ({"encoding": "bytes"}, r"encoding was 'text' and is 'bytes'"),
]


def outcomes(orders: Orders, epoch: int, parts: Sequence[Any]) -> set[Outcome]:
    return set(orders.try_commit(epoch, parts).outcomes.values())


@pytest.mark.parametrize(("settings", "said"), OTHER_SETTINGS)
def test_a_decided_epoch_is_not_written_under_other_settings(
    hbase_server: HBaseServer, tmp_path: Path, settings: dict[str, Any], said: str
) -> None:
    """A row that was marked as deleted would become a put; the old settings finish the epoch."""
    orders = Orders(hbase_server, tmp_path, deleted="gone").opened()
    orders.commit(0, [("x", "1", "1", False)])
    parts = orders.prepare(1, [("x", "2", "2", True), ("y", "2", "2", False)])
    changed = replace(orders.sink, **settings)
    with pytest.raises(CommitFailed, match=rf"epoch 1, sink .*{said}.*earlier settings"):
        changed.commit(decided(1), parts)
    assert orders.shows() == {"x": {"a": "1", "b": "1"}}
    assert outcomes(orders, 1, parts) == {Outcome.COMMITTED}
    assert orders.shows() == {"y": {"a": "2", "b": "2"}}


def test_settings_that_do_not_change_a_row_may_change(
    hbase_server: HBaseServer, tmp_path: Path
) -> None:
    """The same cells, said in another way; and what is no more than a way to get there."""
    orders = Orders(hbase_server, tmp_path).opened()
    parts = orders.prepare(0, [("x", "1", "1")])
    columns = {"b": "f:b", "a": "f:a"}
    same = replace(orders.sink, family=None, columns=columns, connections=1, timeout_s=10)
    assert set(same.commit(decided(0), parts).outcomes.values()) == {Outcome.COMMITTED}
    assert orders.shows() == {"x": {"a": "1", "b": "1"}}


def test_a_file_that_the_other_driver_deletes_during_the_look(
    hbase_server: HBaseServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    orders = Orders(hbase_server, tmp_path).opened()
    parts = orders.prepare(0, [("x", "1", "1")])
    real = os.path.getsize

    def overtaken(path: str) -> int:
        size = real(path)
        monkeypatch.undo()
        assert outcomes(orders, 0, parts) == {Outcome.COMMITTED}
        return size

    monkeypatch.setattr(os.path, "getsize", overtaken)
    assert outcomes(orders, 0, parts) == {Outcome.ALREADY_COMMITTED}
    assert orders.shows() == {"x": {"a": "1", "b": "1"}}


def test_a_row_that_hbase_rejects_is_named(hbase_server: HBaseServer, tmp_path: Path) -> None:
    """The sink was told a larger limit than HBase has; the rows around it are written."""
    large = "x" * (11 << 20)
    orders = Orders(hbase_server, tmp_path, cell_bytes_max=1 << 30).opened()
    others = [(f"{number:02d}", "1", "1") for number in range(20)]
    key = "Zoë" * 1000
    parts = orders.prepare(3, others, [("before", "1", "1"), (key, large, "1")])
    with pytest.raises(CommitFailed) as caught:
        orders.try_commit(3, parts)
    message = str(caught.value)
    assert "epoch 3, sink 'under-test'" in message
    file = parts[1].committable.file
    assert f"rejects row 1 of part 1 (the first is 0, in {file}): " in message
    assert "Zo" not in "".join(traceback.format_exception(caught.value)), "a key may be secret"
    assert len(message) < 2000
    assert orders.sink.last_seen(QUERY, "under-test") is None
    assert {"before", "00", "19"} <= set(orders.shows())


def test_a_call_that_is_refused_once_is_done_row_by_row(
    hbase_server: HBaseServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The table was repaired in between: then no row is to blame, and none is lost."""
    orders = Orders(hbase_server, tmp_path, deleted="gone").opened()
    real, calls = HBaseClient.mutate, []

    def mutate(client: HBaseClient, table: str, rows: Sequence[Any], at_ms: int) -> None:
        calls.append(len(rows))
        # Calls are made side by side: the puts of x and y are the one with two rows.
        if len(rows) == 2 and calls.count(2) == 1:
            raise Rejected("NoSuchColumnFamilyException")
        real(client, table, rows, at_ms)

    monkeypatch.setattr(HBaseClient, "mutate", mutate)
    orders.commit(0, [("x", "1", "1", False), ("y", "1", None, False), ("z", "1", "1", True)])
    assert calls.count(2) == 1
    assert calls.count(1) >= 2
    assert orders.shows() == {"x": {"a": "1", "b": "1"}, "y": {"a": "1"}}


def test_the_ledger_knows_the_version_of_its_epoch(
    hbase_server: HBaseServer, tmp_path: Path
) -> None:
    """So the next epoch gets a later one, also when the clock was moved back in between."""
    orders = Orders(hbase_server, tmp_path).opened()
    parts = orders.prepare(0, [("x", "1", "1")])
    orders.sink.commit(EpochId(QUERY, 0, "", NOW_MS + 77), parts)
    seen = orders.sink.last_seen(QUERY, "under-test")
    assert seen is not None
    assert seen.version_ms == NOW_MS + 77


def test_a_table_that_was_restored_is_not_written_to(
    hbase_server: HBaseServer, tmp_path: Path
) -> None:
    """The ledger has less than the decision says it must: an older snapshot took its place."""
    orders = Orders(hbase_server, tmp_path).opened()
    orders.commit(0, [("x", "1", "1")])
    parts = orders.prepare(5, [("y", "2", "2")])
    for _ in range(2):
        with pytest.raises(TargetRestored, match=r"acknowledged epoch 3.*holds epoch 0"):
            orders.sink.commit(replace(decided(5), previous=3), parts)
    assert orders.shows() == {"x": {"a": "1", "b": "1"}}
    result = orders.sink.commit(replace(decided(5), previous=0), parts)
    assert set(result.outcomes.values()) == {Outcome.COMMITTED}
