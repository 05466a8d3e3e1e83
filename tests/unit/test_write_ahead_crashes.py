"""``WriteAheadSink``: processes that are killed, torn writes, and files that are gone.

At-least-once is measured here: the endpoint drops nothing, so its file shows each repeat.
"""

from __future__ import annotations

import os
import signal
import threading
import time
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from beadline.errors import CommitFailed, CorruptRecord, WrongCheckpoint
from beadline.sink import Outcome, Prepared, StagedPart
from beadline.sinks.write_ahead import Delivery, Rejected, TryAgain, WriteAheadSink
from beadline.testing.suite.target import QUERY, SAME_NAME, epoch_id
from tests.unit.write_ahead_endpoints import (
    Deadly,
    FileEndpoint,
    commit,
    commit_in_child,
    ended,
    numbers,
    prepare,
    rows,
)

FINE = {Outcome.COMMITTED}
AGAIN = {Outcome.ALREADY_COMMITTED}
Parts = list[Prepared[StagedPart]]
ALL = [1, 2, 3, 4, 5, 6, 7, 8]


def deadly(
    folder: Path, first_row: int, when: str, part: int = 0, **settings: Any
) -> WriteAheadSink:
    endpoint = Deadly(str(folder / "received"), first_row, when, part)
    return WriteAheadSink(endpoint, folder / "wal", batch_rows=2, **settings)


def killed(
    folder: Path, first_row: int, when: str, part: int, **settings: Any
) -> tuple[WriteAheadSink, Parts]:
    """A process has died in the delivery of two parts of four rows: the sink, and the parts."""
    sink = deadly(folder, first_row, when, part, **settings)
    parts = prepare(sink, 0, rows(1, 2, 3, 4), rows(5, 6, 7, 8))
    assert ended(commit_in_child(sink, 0, parts)) == -signal.SIGKILL
    return sink, parts


def left(folder: Path) -> list[str]:
    """What stays of an epoch that is finished: its ledger, and the empty hands of the lock."""
    names = {path.name for path in (folder / "wal").rglob("*") if path.is_file()}
    return sorted(name.partition("~")[2] for name in names)


def repeated(folder: Path) -> list[int]:
    return [n for n, times in Counter(numbers(folder / "received")).items() if times > 1]


@pytest.mark.parametrize(("part", "first_row"), [(0, 0), (0, 2), (1, 0), (1, 2)])
def test_killed_before_delivery_nothing_comes_twice(
    tmp_path: Path, part: int, first_row: int
) -> None:
    sink, parts = killed(tmp_path, first_row, "before", part)
    assert numbers(tmp_path / "received") == ALL[: part * 4 + first_row]
    assert commit(sink, 0, parts) == FINE
    assert numbers(tmp_path / "received") == ALL
    assert left(tmp_path) == ["under-test.ledger", "under-test.lock"]


@pytest.mark.parametrize(("part", "first_row"), [(0, 0), (0, 2), (1, 0), (1, 2)])
def test_killed_between_delivery_and_progress_that_one_batch_comes_twice(
    tmp_path: Path, part: int, first_row: int
) -> None:
    """The honest limit of at-least-once: this batch and no other."""
    sink, parts = killed(tmp_path, first_row, "after", part)
    assert commit(sink, 0, parts) == FINE
    batch = ALL[part * 4 + first_row : part * 4 + first_row + 2]
    assert repeated(tmp_path) == batch
    assert Counter(numbers(tmp_path / "received")) == Counter(ALL + batch)
    assert commit(sink, 0, parts) == AGAIN


# The process reaches each for four batches and for the ledger itself; by the second once more,
# before the staged parts are discarded.
POINTS = [("ledger.before", number) for number in range(1, 6)]
POINTS += [("ledger.after", number) for number in range(1, 7)]


@pytest.mark.parametrize(("point", "count"), POINTS)
def test_killed_at_the_crash_points(tmp_path: Path, point: str, count: int) -> None:
    sink = WriteAheadSink(
        FileEndpoint(str(tmp_path / "received"), honours_ids=False), tmp_path / "wal", batch_rows=2
    )
    parts = prepare(sink, 0, rows(1, 2, 3, 4), rows(5, 6, 7, 8))
    child = commit_in_child(sink, 0, parts, crash=f"{point}#{count}")
    assert ended(child) == -signal.SIGKILL
    finished = point == "ledger.after" and count >= 5
    assert commit(sink, 0, parts) == (AGAIN if finished else FINE)
    in_flight = point == "ledger.before" and count < 5
    assert repeated(tmp_path) == (ALL[count * 2 - 2 : count * 2] if in_flight else [])
    assert set(numbers(tmp_path / "received")) == set(ALL)
    assert left(tmp_path) == ["under-test.ledger", "under-test.lock"]
    assert commit(sink, 1, prepare(sink, 1, rows(9))) == FINE
    assert commit(sink, 0, parts) == AGAIN
    assert numbers(tmp_path / "received")[-1] == 9


def test_killed_with_parallel_parts_at_most_their_batches_come_twice(tmp_path: Path) -> None:
    sink, parts = killed(tmp_path, 2, "after", 1, parallel=2)
    assert commit(sink, 0, parts) == FINE
    assert set(numbers(tmp_path / "received")) == set(ALL)
    assert set(repeated(tmp_path)) <= {3, 4, 7, 8}
    assert {7, 8} <= set(repeated(tmp_path))


def test_a_row_is_known_by_its_id_when_it_comes_again(tmp_path: Path) -> None:
    """What makes exactly-once of it, with an endpoint that honours ids."""
    path = tmp_path / "received"
    parts = prepare(deadly(tmp_path, 2, "after"), 0, rows(1, 2, 3, 4, 5))
    assert ended(commit_in_child(deadly(tmp_path, 2, "after"), 0, parts)) == -signal.SIGKILL
    honest = WriteAheadSink(FileEndpoint(str(path)), tmp_path / "wal", "deadly", honours_ids=True)
    assert commit(honest, 0, parts) == FINE
    assert numbers(path) == [1, 2, 3, 4, 5]


def test_a_process_that_is_stopped_holds_others_up_and_nothing_more(tmp_path: Path) -> None:
    """It has the lock, and a batch on its way: nobody can know. Killed, it gives the lock up."""
    sink = WriteAheadSink(Slow(str(tmp_path / "received")), tmp_path / "wal", "slow", timeout_s=0.3)
    parts = prepare(sink, 0, rows(1, 2, 3))
    child = commit_in_child(sink, 0, parts)
    deadline_s = time.monotonic() + 30
    while not (tmp_path / "received.begun").exists():
        assert time.monotonic() < deadline_s
        time.sleep(0.01)
    os.kill(child.pid, signal.SIGSTOP)
    result = sink.commit(epoch_id(0), parts)
    assert set(result.outcomes.values()) == {Outcome.UNKNOWN}
    assert f"process {child.pid} on " in result.detail
    os.kill(child.pid, signal.SIGKILL)
    assert ended(child) == -signal.SIGKILL
    assert commit(sink, 0, parts) == FINE
    assert numbers(tmp_path / "received") == [1, 2, 3]


class Slow(FileEndpoint):
    """The first delivery takes a minute, unless it is ended."""

    def deliver(self, delivery: Delivery) -> None:
        begun = Path(self.path + ".begun")
        if not begun.exists():
            begun.touch()
            time.sleep(60)
        super().deliver(delivery)


def test_processes_that_race_deliver_each_batch_once(tmp_path: Path) -> None:
    sink = WriteAheadSink(
        FileEndpoint(str(tmp_path / "received"), honours_ids=False), tmp_path / "wal", batch_rows=1
    )
    parts = prepare(sink, 0, rows(*range(50)), rows(*range(50, 100)))
    children = [commit_in_child(sink, 0, parts) for _ in range(3)]
    assert [ended(child) for child in children] == [0, 0, 0]
    assert numbers(tmp_path / "received") == list(range(100))


class Stops(FileEndpoint):
    """Takes the first batch only."""

    def deliver(self, delivery: Delivery) -> None:
        if numbers(self.path):
            raise Rejected("not today")
        super().deliver(delivery)


def half_delivered(folder: Path) -> tuple[WriteAheadSink, Parts, Path]:
    """An epoch of which the first batch is delivered, and where its progress is."""
    path = str(folder / "received")
    stops = WriteAheadSink(Stops(path, False), folder / "wal", batch_rows=2)
    parts = prepare(stops, 0, rows(1, 2, 3, 4), rows(5, 6, 7, 8))
    with pytest.raises(CommitFailed, match="not today"):
        commit(stops, 0, parts)
    sink = WriteAheadSink(FileEndpoint(path, False), folder / "wal", batch_rows=2)
    (progress,) = (folder / "wal").rglob("*.progress")
    return sink, parts, progress


def test_a_torn_line_is_as_if_it_were_not_there(tmp_path: Path) -> None:
    """At every length: the line that says that a batch was taken is written half."""
    sink, parts, progress = half_delivered(tmp_path)
    stops = replace(sink, deliver=Stops(str(tmp_path / "received"), False))
    whole = progress.read_bytes()
    header, first, *_ = whole.splitlines(keepends=True)
    for length in range(len(first)):
        progress.write_bytes(header + first[:length])
        (tmp_path / "received").write_text("")
        with pytest.raises(CommitFailed, match="rows 2 to 3"):
            commit(stops, 0, parts)
        assert numbers(tmp_path / "received") == [1, 2], "the batch whose line was torn came again"
        assert progress.read_bytes() == whole
    assert commit(sink, 0, parts) == FINE
    assert numbers(tmp_path / "received") == ALL


def test_damaged_files_stop_it_and_are_named(tmp_path: Path) -> None:
    sink, parts, progress = half_delivered(tmp_path)
    whole = progress.read_bytes()
    progress.write_bytes(whole.replace(b'"to":2', b'"to":4'))
    with pytest.raises(CorruptRecord, match=r"\.progress cannot be used: its line at byte"):
        commit(sink, 0, parts)
    progress.write_bytes(b"")
    with pytest.raises(CorruptRecord, match=r"its lines are malformed|does not begin"):
        commit(sink, 0, parts)
    progress.write_bytes(whole)
    assert commit(sink, 0, parts) == FINE
    (ledger,) = (tmp_path / "wal").rglob("*.ledger")
    ledger.write_bytes(ledger.read_bytes().replace(b'"epoch":0', b'"epoch":9'))
    with pytest.raises(CorruptRecord, match=r"\.ledger cannot be used"):
        sink.last_seen(QUERY, "under-test")
    with pytest.raises(CorruptRecord, match=r"\.ledger cannot be used"):
        commit(sink, 0, parts)
    assert numbers(tmp_path / "received") == ALL


def test_a_staged_file_that_is_gone_is_lost_or_stops_what_was_begun(tmp_path: Path) -> None:
    sink, parts, _ = half_delivered(tmp_path)
    unsent = prepare(sink, 1, rows(9), rows(10))
    for part in (parts[0], unsent[1]):
        Path(part.committable.file.removeprefix("file:")).unlink()
    with pytest.raises(CommitFailed, match=r"part 0 from row 2 on cannot be delivered.* is gone"):
        commit(sink, 0, parts)
    result = sink.commit(epoch_id(1), unsent)
    assert set(result.outcomes.values()) == {Outcome.LOST}, "nothing of it has gone out"
    assert numbers(tmp_path / "received") == [1, 2]


def test_an_epoch_that_was_begun_goes_on_with_the_same_parts_only(tmp_path: Path) -> None:
    sink, parts, _ = half_delivered(tmp_path)
    others = prepare(sink, 0, rows(4, 3, 2, 1), rows(5, 6, 7, 8), generation=2)
    with pytest.raises(CommitFailed, match="started with a different set of parts"):
        commit(sink, 0, others)
    assert numbers(tmp_path / "received") == [1, 2]
    assert commit(sink, 0, parts) == FINE
    assert numbers(tmp_path / "received") == ALL


def test_a_driver_goes_on_behind_what_another_has_delivered(tmp_path: Path) -> None:
    """They take turns at one epoch, and each looks again before each batch."""
    path, waiting = str(tmp_path / "received"), threading.Event()

    class AfterYou(FileEndpoint):
        def deliver(self, delivery: Delivery) -> None:
            if numbers(path) == [1, 2] and not waiting.is_set():
                waiting.set()
                raise TryAgain("after you", after_s=1.5)  # meanwhile the lock is free
            super().deliver(delivery)

    class OneMore(FileEndpoint):
        def deliver(self, delivery: Delivery) -> None:
            if len(numbers(path)) >= 4:
                raise Rejected("one is enough")
            super().deliver(delivery)

    one = WriteAheadSink(AfterYou(path, False), tmp_path / "wal", batch_rows=2)
    parts = prepare(one, 0, rows(1, 2, 3, 4), rows(5, 6, 7, 8))
    told: list[set[Outcome]] = []
    thread = threading.Thread(target=lambda: told.append(commit(one, 0, parts)))
    thread.start()
    assert waiting.wait(20)
    with pytest.raises(CommitFailed, match="one is enough"):
        commit(replace(one, deliver=OneMore(path, False)), 0, parts)
    thread.join(20)
    assert told == [FINE]
    assert numbers(path) == ALL


def test_another_incarnation_is_noticed_under_the_name_of_another_sink(tmp_path: Path) -> None:
    sink = WriteAheadSink(FileEndpoint(str(tmp_path / "received")), tmp_path / "wal")
    commit(sink, 0, prepare(sink, 0, rows(1)))
    (part,) = prepare(sink, 0, rows(2), query=SAME_NAME)
    elsewhere = replace(part, id=replace(part.id, sink="second"))
    with pytest.raises(WrongCheckpoint, match="another query of that name"):
        sink.commit(epoch_id(0, SAME_NAME), [elsewhere])
    assert numbers(tmp_path / "received") == [1]
