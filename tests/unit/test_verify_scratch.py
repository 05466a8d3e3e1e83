"""Scratch targets of ``beadline verify``: made like the real ones, read by a stranger, removed."""

from __future__ import annotations

import sqlite3
import subprocess
import sys
from collections import Counter
from contextlib import closing
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from beadline.errors import UsageError
from beadline.points import POINTS
from beadline.sinks import FileSink, MemorySink, SqliteSink
from beadline.verify import scratch
from beadline.verify.compare import Reference, RunProgress, SinkContents, ViolationKind
from beadline.verify.scratch import ScratchLocation, store_of
from beadline.verify.scratch_databases import elsewhere
from beadline.verify.watch import SinkWatcher
from tests.kill.broken.sinks import OwnSink


def fill(path: Any, *rows: int) -> None:
    with closing(sqlite3.connect(path)) as database:
        database.execute("CREATE TABLE IF NOT EXISTS t (id INTEGER PRIMARY KEY)")
        database.executemany("INSERT INTO t VALUES (?)", [(row,) for row in rows])
        database.commit()


def test_sqlite_is_cloned_with_its_keys_and_without_its_rows(tmp_path: Path) -> None:
    real = SqliteSink(tmp_path / "real.db", "t")
    fill(real.path, 1, 2)
    store = store_of("t", real)
    clone = store.clone(real, ScratchLocation(tmp_path / "scratch", "v1"))
    assert clone.path != real.path
    assert scratch.shown("t", clone) == SinkContents(Counter())
    fill(clone.path, 7)
    with pytest.raises(sqlite3.IntegrityError):
        fill(clone.path, 7)
    assert scratch.shown("t", clone).rows == Counter([(7,)])
    assert scratch.shown("t", real).rows == Counter([(1,), (2,)])
    store.remove(clone, "query")
    assert not Path(clone.path).exists()
    assert Path(real.path).exists()


def test_an_open_transaction_is_not_seen_and_not_disturbed(tmp_path: Path) -> None:
    sink = SqliteSink(tmp_path / "o.db", "t")
    fill(sink.path, 1)
    with closing(sqlite3.connect(sink.path, isolation_level=None)) as writer:
        writer.execute("BEGIN IMMEDIATE")
        writer.execute("INSERT INTO t VALUES (2)")
        assert scratch.shown("t", sink).rows == Counter([(1,)])
        writer.execute("COMMIT")
    assert scratch.shown("t", sink).rows == Counter([(1,), (2,)])


def test_files_are_read_by_name_of_column_and_path(tmp_path: Path) -> None:
    sink = FileSink(str(tmp_path / "real"), partition_by="day")
    store = store_of("files", sink)
    clone = store.clone(sink, ScratchLocation(tmp_path / "scratch", "v1"))
    folder = Path(clone.path) / "day=1"
    folder.mkdir(parents=True)
    pq.write_table(pa.table({"b": [1, 1], "a": ["x", "x"]}), folder / "part-0.parquet")
    (Path(clone.path) / "_SUCCESS").touch()
    ((row, count),) = scratch.shown("files", clone).rows.items()
    assert row == ("day=1", ("a", "x"), ("b", 1))
    assert count == 2
    store.remove(clone, "query")
    assert not Path(clone.path).exists()


def test_a_sink_of_ones_own_is_found_by_its_methods(tmp_path: Path) -> None:
    sink = OwnSink(tmp_path / "own.db", "t")
    store = store_of("own", sink)
    clone = store.clone(sink, ScratchLocation(tmp_path, "v1"))
    assert Path(clone.path).name == "v1.db"
    assert store.grows(clone)
    fill(clone.path, 3)
    assert scratch.shown("own", clone).rows == Counter([(3,)])
    store.remove(clone, "query")
    assert not Path(clone.path).exists()


def test_the_error_of_an_unknown_sink_says_what_it_needs() -> None:
    with pytest.raises(UsageError, match=r"'rows' \(MemorySink\).*scratch\(self, tag\).*shown"):
        store_of("rows", MemorySink("m"))


def test_a_url_through_a_proxy() -> None:
    assert elsewhere("mysql://u:p%40@db:3306/x?a=1", 99) == "mysql://u:p%40@127.0.0.1:99/x?a=1"
    assert elsewhere("redis://cache/2", 99) == "redis://127.0.0.1:99/2"


def test_the_watch_notes_what_it_sees_under_the_fault_that_is_on(tmp_path: Path) -> None:
    sink = OwnSink(tmp_path / "own.db", "t")
    fill(sink.path, 1)
    reference = Reference(
        "own", {0: SinkContents(Counter([(1,)])), 1: SinkContents(Counter([(1,), (2,)]))}
    )
    watch = SinkWatcher({"own": sink}, {"own": reference}, lambda: RunProgress(-1, 0))
    watch.fault = "decide.before"
    watch.look()
    assert watch.found == []
    fill(sink.path, 2)
    watch.start()
    watch.stop()
    watch.look()
    assert [(fault, each.kind) for fault, each in watch.found] == [
        ("decide.before", ViolationKind.ABORTED)
    ]


def test_points_that_are_come_by_leave_word(tmp_path: Path) -> None:
    code = "from beadline.points import reach; reach('decide.after'); reach('decide.after')"
    environment = {"BEADLINE_POINTS_SEEN": str(tmp_path), "PATH": ""}
    subprocess.run([sys.executable, "-c", code], env=environment, check=True, timeout=60)
    assert [path.name for path in tmp_path.iterdir()] == ["decide.after"]
    assert "decide.after" in POINTS
