"""The files of ``WriteAheadSink``: safe in a power cut, tidied, and named for starting over."""

from __future__ import annotations

import os
import time
from fnmatch import fnmatch
from pathlib import Path

from beadline.points import hooked
from beadline.sink import Outcome
from beadline.sinks.write_ahead import WriteAheadSink
from beadline.testing.suite.durable import Disk, watched
from beadline.testing.suite.target import OTHER_QUERY, QUERY, SAME_NAME
from tests.unit.write_ahead_endpoints import SCHEMA, FileEndpoint, commit, prepare, rows


def sink_in(folder: Path, honours_ids: bool = True) -> WriteAheadSink:
    endpoint = FileEndpoint(str(folder / "received"), honours_ids)
    return WriteAheadSink(endpoint, folder / "wal", "shop", batch_rows=2)


def files_in(folder: Path) -> set[str]:
    return {str(path) for path in (folder / "wal").rglob("*") if path.is_file()}


def test_progress_survives_a_power_cut(tmp_path: Path) -> None:
    """What is accepted is on the disk before the next batch goes out: else many would go twice."""
    sink = sink_in(tmp_path, honours_ids=False)
    parts = prepare(sink, 0, rows(1, 2, 3, 4), rows(5, 6))
    disk = Disk(volatile=("*.lock", "received"))
    problems: list[list[str]] = []

    def look(point: str) -> None:
        if point == "ledger.after":
            problems.append(disk.problems())

    with watched(disk), hooked(look):
        assert commit(sink, 0, parts) == {Outcome.COMMITTED}
    assert problems == [[]] * 5, "three batches, the ledger, and before parts are discarded"


def test_what_a_crash_left_half_written_goes_at_a_start_an_hour_later(tmp_path: Path) -> None:
    """A younger one may be a living driver's; and what is not ours stays."""
    sink = sink_in(tmp_path)
    sink.open(QUERY, "under-test")
    assert not (tmp_path / "wal").exists()
    commit(sink, 0, prepare(sink, 0, rows(1)))
    state = tmp_path / "wal" / "shop" / "state"
    names = {".beadline-tmp-old": 4000, ".beadline-tmp-young": 60, "theirs": 4000}
    for name, age_s in names.items():
        (state / name).write_text("half")
        os.utime(state / name, (time.time() - age_s,) * 2)
    before = files_in(tmp_path)
    sink.open(QUERY, "under-test")
    assert before - files_in(tmp_path) == {str(state / ".beadline-tmp-old")}


def test_starting_over_names_every_file_of_the_query_and_no_other(tmp_path: Path) -> None:
    sink = sink_in(tmp_path)
    commit(sink, 0, prepare(sink, 0, rows(1)))
    prepare(sink, 1, rows(2))
    prepare(sink, 1, rows(2), query=SAME_NAME)  # of another checkpoint: nobody sweeps it
    mine = files_in(tmp_path)
    prepare(sink, 1, rows(3), query=OTHER_QUERY)
    words = sink.check(SCHEMA, QUERY).start_over.split()
    patterns = [word for word in words if "*" in word]
    named = {path for path in files_in(tmp_path) if any(fnmatch(path, p) for p in patterns)}
    assert named == mine
