"""``WriteAheadSink``: order, ids, progress, and what a late or repeated commit may not do."""

from __future__ import annotations

import threading
import time
import traceback
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from beadline.errors import CommitBlocked, CommitFailed, WrongCheckpoint
from beadline.ids import EpochId
from beadline.sink import Guarantee, Outcome, Part, Seen
from beadline.sinks.write_ahead import Delivery, Endpoint, Rejected, TryAgain, WriteAheadSink
from beadline.sinks.write_ahead.commit import cuts
from beadline.testing.suite.target import OTHER_QUERY, QUERY, SAME_NAME, epoch_id, part_id
from tests.unit.write_ahead_endpoints import (
    SCHEMA,
    FileEndpoint,
    commit,
    numbers,
    prepare,
    received,
    rows,
)

FINE = {Outcome.COMMITTED}
AGAIN = {Outcome.ALREADY_COMMITTED}


@dataclass(frozen=True)
class Scripted(Endpoint):
    """Takes rows into a file, but first answers as the script says; "ok" takes them."""

    path: str
    script: tuple[Any, ...] = ()
    calls: Any = None

    @property
    def name(self) -> str:
        return "scripted"

    def deliver(self, delivery: Delivery) -> None:
        number = len(self.calls)
        self.calls.append(delivery)
        answer = self.script[number] if number < len(self.script) else "ok"
        if isinstance(answer, Exception):
            raise answer
        FileEndpoint(self.path, honours_ids=False).deliver(delivery)


def scripted(folder: Path, *script: Any, **settings: Any) -> WriteAheadSink:
    endpoint = Scripted(str(folder / "received"), script, [])
    return WriteAheadSink(endpoint, folder / "wal", **{"batch_rows": 2, **settings})


def calls(sink: WriteAheadSink) -> list[Delivery]:
    found: list[Delivery] = sink.deliver.calls  # type: ignore[union-attr]
    return found


def test_parts_and_rows_arrive_in_order_in_batches(tmp_path: Path) -> None:
    sink = scripted(tmp_path)
    parts = prepare(sink, 7, rows(1, 2, 3, 4, 5), rows(6, 7, 8))
    assert commit(sink, 7, parts[::-1]) == FINE
    assert numbers(tmp_path / "received") == [1, 2, 3, 4, 5, 6, 7, 8]
    seen = [(c.epoch, c.part, c.first_row, len(c)) for c in calls(sink)]
    assert seen == [(7, 0, 0, 2), (7, 0, 2, 2), (7, 0, 4, 1), (7, 1, 0, 2), (7, 1, 2, 1)]
    first = calls(sink)[1]
    assert first.rows == rows(3, 4)
    assert first.table.schema == SCHEMA
    assert first.id == f"suite~{'a' * 32}~under-test~7~0~2+2"
    assert first.ids == [f"suite~{'a' * 32}~under-test~7~0~{row}" for row in (2, 3)]
    assert "w3" not in repr(first)


@pytest.mark.parametrize("batch_rows", [1, 2, 3, 100])
def test_ids_are_the_same_however_batches_are_cut_and_whoever_prepares(
    tmp_path: Path, batch_rows: int
) -> None:
    sink = scripted(tmp_path, batch_rows=batch_rows)
    parts = prepare(sink, 0, rows(1, 2, 3, 4), rows(5), generation=batch_rows)
    commit(sink, 0, parts)
    start = f"suite~{'a' * 32}~under-test~0~"
    ids = [entry["id"].removeprefix(start) for entry in received(tmp_path / "received")]
    assert ids == ["0~0", "0~1", "0~2", "0~3", "1~0"]


def test_cuts_do_not_depend_on_the_batches() -> None:
    table = pa.table({"n": list(range(10))})
    for chunk in range(1, 11):
        for first in range(10):
            for size in range(1, 11):
                found = cuts(iter(table.to_batches(max_chunksize=chunk)), first, size)
                tables = [piece["n"].to_pylist() for piece in found]
                assert [n for piece in tables for n in piece] == list(range(first, 10))
                assert {len(piece) for piece in tables[:-1]} <= {size}


def test_a_late_commit_has_no_effect_even_where_nobody_honours_ids(tmp_path: Path) -> None:
    sink = scripted(tmp_path)
    history = [prepare(sink, epoch, rows(epoch)) for epoch in range(3)]
    for epoch in range(3):
        assert commit(sink, epoch, history[epoch]) == FINE
    for epoch in range(3):
        assert commit(sink, epoch, history[epoch]) == AGAIN
    assert numbers(tmp_path / "received") == [0, 1, 2]


def test_a_zombie_stops_when_others_have_gone_on(tmp_path: Path) -> None:
    """It sleeps between two batches; another driver finishes its epoch and the next."""
    sink = scripted(tmp_path)
    first, second = prepare(sink, 0, rows(1, 2, 3, 4, 5, 6)), prepare(sink, 1, rows(7))
    asleep, awake = threading.Event(), threading.Event()

    class Sleepy(Endpoint):
        def deliver(self, delivery: Delivery) -> None:
            if delivery.first_row == 2 and not asleep.is_set():
                asleep.set()
                raise TryAgain("asleep, with the lock free")
            awake.wait(10)
            sink.deliver.deliver(delivery)  # type: ignore[union-attr]

    zombie = replace(sink, deliver=Sleepy(), name="scripted")
    told: list[set[Outcome]] = []
    awake.set()
    thread = threading.Thread(target=lambda: told.append(commit(zombie, 0, first)))
    thread.start()
    assert asleep.wait(10)
    assert commit(sink, 0, first) <= FINE | AGAIN
    assert commit(sink, 1, second) <= FINE | AGAIN
    thread.join(10)
    assert told[0] <= FINE | AGAIN
    assert numbers(tmp_path / "received") == [1, 2, 3, 4, 5, 6, 7]
    assert commit(zombie, 0, first) == AGAIN
    assert numbers(tmp_path / "received") == [1, 2, 3, 4, 5, 6, 7]


def test_two_drivers_deliver_each_batch_once(tmp_path: Path) -> None:
    """Without ids: the lock, and the look before each batch, are enough while nobody dies."""
    sink = scripted(tmp_path, batch_rows=1)
    for epoch in range(5):
        parts = prepare(sink, epoch, rows(*range(epoch * 20, epoch * 20 + 20)))
        threads = [threading.Thread(target=commit, args=(sink, epoch, parts)) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(30)
        assert commit(sink, epoch, parts) == AGAIN
    assert numbers(tmp_path / "received") == list(range(100))


def test_trying_again_goes_on_where_it_was(tmp_path: Path) -> None:
    sink = scripted(tmp_path, "ok", ConnectionResetError(), TimeoutError("slow"), TryAgain("503"))
    parts = prepare(sink, 0, rows(1, 2, 3, 4, 5))
    assert commit(sink, 0, parts) == FINE
    assert numbers(tmp_path / "received") == [1, 2, 3, 4, 5]
    assert [call.first_row for call in calls(sink)] == [0, 2, 2, 2, 2, 4]


def test_an_endpoint_that_stays_away_is_unknown_and_asked_again(tmp_path: Path) -> None:
    away = [TryAgain("it is on holiday", after_s=0.5)] * 50
    sink = scripted(tmp_path, "ok", *away, timeout_s=0.2)
    parts = prepare(sink, 0, rows(1, 2, 3))
    began = time.monotonic()
    result = sink.commit(epoch_id(0), parts)
    assert set(result.outcomes.values()) == {Outcome.UNKNOWN}
    assert "on holiday" in result.detail
    assert "2 of 3 rows" in result.detail
    assert len(calls(sink)) == 2, "it did not wait as long as it was asked to"
    calls(sink).extend([None] * 50)  # type: ignore[list-item]
    while commit(sink, 0, parts) != FINE:
        assert time.monotonic() - began < 5
    assert time.monotonic() - began >= 0.5
    assert numbers(tmp_path / "received") == [1, 2, 3]


def test_a_rejection_names_the_rows_and_the_next_start_goes_on_there(tmp_path: Path) -> None:
    sink = scripted(tmp_path, "ok", ZeroDivisionError("of 4111, my row"))
    parts = prepare(sink, 4, rows(1, 2, 3, 4, 5))
    with pytest.raises(CommitFailed, match="epoch 4, part 0, rows 2 to 3") as caught:
        commit(sink, 4, parts)
    assert "ZeroDivisionError, raised in deliver, test_write_ahead.py:" in str(caught.value)
    assert "4111" not in "".join(traceback.format_exception(caught.value)), "a value of a row"
    assert sink.last_seen(QUERY, "under-test") == Seen(QUERY.incarnation, 4, epoch_id(4).nonce)
    assert commit(sink, 4, parts) == FINE
    assert numbers(tmp_path / "received") == [1, 2, 3, 4, 5]


def test_a_user_who_may_not_is_not_a_rejection_of_the_rows(tmp_path: Path) -> None:
    """A function has only Python's own exceptions to say it with; drop= gives nothing up then."""
    sink = scripted(tmp_path, "ok", PermissionError("the token has expired"))
    parts = prepare(sink, 4, rows(1, 2, 3))
    with pytest.raises(CommitBlocked, match=r"rows 2 to 2: .*the token has expired"):
        commit(sink, 4, parts)
    assert commit(sink, 4, parts) == FINE
    assert numbers(tmp_path / "received") == [1, 2, 3]


def test_the_cut_of_an_epoch_changes_only_when_nothing_is_in_flight(tmp_path: Path) -> None:
    """A batch that is resent has the id that it had; after a rejection it may be smaller."""
    sink = scripted(tmp_path, *[TryAgain("?")] * 20, timeout_s=0.1)
    parts = prepare(sink, 0, rows(1, 2, 3, 4, 5, 6))
    assert commit(sink, 0, parts) == {Outcome.UNKNOWN}
    refusing = scripted(tmp_path, "ok", Rejected("413"), batch_rows=6)
    with pytest.raises(CommitFailed, match="413"):
        commit(refusing, 0, parts)
    assert [len(call) for call in calls(refusing)] == [2, 2]
    single = scripted(tmp_path, batch_rows=1)
    assert commit(single, 0, parts) == FINE
    assert [len(call) for call in calls(single)] == [1, 1, 1, 1]
    assert numbers(tmp_path / "received") == [1, 2, 3, 4, 5, 6]


def test_parallel_parts_keep_the_order_within_each(tmp_path: Path) -> None:
    at_once: list[int] = []
    gate = threading.Barrier(3)

    class Meeting(Endpoint):
        def deliver(self, delivery: Delivery) -> None:
            if delivery.first_row == 0 and delivery.part < 3:
                at_once.append(gate.wait(10))  # passes only if three are here at once
            FileEndpoint(str(tmp_path / "received"), honours_ids=False).deliver(delivery)

    sink = WriteAheadSink(Meeting(), tmp_path / "wal", name="m", batch_rows=2, parallel=3)
    parts = prepare(sink, 0, *(rows(*range(p * 10, p * 10 + 5)) for p in range(4)))
    assert commit(sink, 0, parts) == FINE
    assert len(at_once) == 3
    found = numbers(tmp_path / "received")
    for part in range(4):
        assert [n for n in found if n // 10 == part] == list(range(part * 10, part * 10 + 5))
    assert len(found) == 20


def test_another_incarnation_is_refused(tmp_path: Path) -> None:
    sink = scripted(tmp_path)
    commit(sink, 0, prepare(sink, 0, rows(1)))
    theirs = prepare(sink, 0, rows(2), query=SAME_NAME)
    with pytest.raises(WrongCheckpoint, match="another query of that name"):
        sink.commit(epoch_id(0, SAME_NAME), theirs)
    assert numbers(tmp_path / "received") == [1]


def test_half_an_epoch_of_another_incarnation_is_remembered(tmp_path: Path) -> None:
    """Its rows are out there: a start with a new checkpoint must notice, a commit must refuse."""
    sink = scripted(tmp_path, "ok", Rejected("no"))
    with pytest.raises(CommitFailed):
        commit(sink, 0, prepare(sink, 0, rows(1, 2, 3)))
    seen = sink.last_seen(SAME_NAME, "under-test")
    assert seen == Seen(QUERY.incarnation, 0, epoch_id(0).nonce)
    theirs = prepare(sink, 0, rows(4), query=SAME_NAME)
    with pytest.raises(WrongCheckpoint):
        sink.commit(epoch_id(0, SAME_NAME), theirs)
    assert sink.last_seen(OTHER_QUERY, "under-test") is None
    assert commit(sink, 0, []) == set()


def test_a_commit_after_a_newer_epoch_was_begun_has_no_effect(tmp_path: Path) -> None:
    """After drop= an epoch may stay half-delivered for good; its driver may still wake up."""
    sink = scripted(tmp_path, "ok", Rejected("no"), "ok", Rejected("no"))
    old, new = prepare(sink, 0, rows(1, 2, 3)), prepare(sink, 5, rows(4, 5, 6))
    for epoch, parts in ((0, old), (5, new)):
        with pytest.raises(CommitFailed):
            commit(sink, epoch, parts)
    assert commit(sink, 0, old) == AGAIN
    assert commit(sink, 5, new) == FINE
    assert numbers(tmp_path / "received") == [1, 2, 4, 5, 6]


def test_an_epoch_that_was_not_decided_is_delivered_again_under_other_ids(tmp_path: Path) -> None:
    """``at_least_once`` prepares it again: other content must not pass for what was taken."""
    sink = scripted(tmp_path, "ok", Rejected("no"))
    undecided = EpochId(QUERY, 0, "", 1)
    before = prepare(sink, 0, rows(1, 2, 3))
    with pytest.raises(CommitFailed):
        sink.commit(undecided, before)
    sink.abort(before)
    after = prepare(sink, 0, rows(3, 1, 2), generation=2)
    assert set(sink.commit(undecided, after).outcomes.values()) == FINE
    entries = received(tmp_path / "received")
    assert [entry["row"]["n"] for entry in entries] == [1, 2, 3, 1, 2]
    assert len({entry["id"] for entry in entries}) == 5
    assert set(sink.commit(undecided, after).outcomes.values()) == AGAIN


def test_the_guarantee_is_what_the_endpoint_makes_of_it(tmp_path: Path) -> None:
    careless = scripted(tmp_path).check(SCHEMA, QUERY)
    assert careless.guarantee is Guarantee.AT_LEAST_ONCE
    assert "honours_ids=True" in careless.raised_by
    assert "2 rows" in careless.sentence
    honest = scripted(tmp_path, honours_ids=True).check(SCHEMA, QUERY)
    assert honest.guarantee is Guarantee.EXACTLY_ONCE
    assert "honours_ids=True promises" in honest.sentence
    assert honest.shared_disk
    assert not (tmp_path / "wal").exists()


def test_parts_of_two_sinks_do_not_meet(tmp_path: Path) -> None:
    sink = scripted(tmp_path)
    mine = prepare(sink, 3, rows(1))
    commit(sink, 3, mine)
    other = replace(part_id(0), sink="second")
    staged = sink.prepare(iter(pa.Table.from_pylist(rows(2), SCHEMA).to_batches()), Part(other))
    assert staged is not None
    result = sink.commit(epoch_id(0), [replace(mine[0], id=other, committable=staged)])
    assert set(result.outcomes.values()) == FINE
    assert numbers(tmp_path / "received") == [1, 2]
