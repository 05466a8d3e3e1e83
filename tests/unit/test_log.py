"""The decision log: who is overtaken is fenced, it stays short, and nothing is guessed round."""

from __future__ import annotations

from pathlib import Path

import pytest

from beadline.decisions import DecisionLog, FileStore
from beadline.errors import CorruptRecord, Fenced
from tests.memory_store import MemoryStore
from tests.unit.logs import claim, decision, on_disk, opened


@pytest.fixture(params=["memory", "files"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> MemoryStore | FileStore:
    return MemoryStore() if request.param == "memory" else on_disk(tmp_path)


def test_an_empty_log_says_nothing(store: MemoryStore) -> None:
    log = DecisionLog(store)
    state = log.open()
    assert (state.head, state.claim, state.decision) == (0, None, None)
    assert list(log.history()) == []


def test_what_was_appended_is_read_by_the_next(store: MemoryStore) -> None:
    log = opened(store, epochs=3)
    again = DecisionLog(store)
    assert again.open() == log.state
    assert again.state.decision is not None
    assert again.state.decision.epoch == 2
    again.append(claim(again))
    third = DecisionLog(store)
    assert third.open() == again.state
    assert third.state.decision == log.state.decision


def test_slots_are_dense(store: MemoryStore) -> None:
    """A slot that is skipped is one that another driver may take unnoticed (rule 1)."""
    log = DecisionLog(store)
    log.open()
    for slot in range(1, 8):
        record = claim(log) if slot % 3 == 1 else decision(log)
        assert log.append(record).slot == slot
        assert store.slots() == list(range(1, slot + 1))
    assert DecisionLog(store).open().head == 7


def test_history_is_newest_first(store: MemoryStore) -> None:
    log = opened(store, epochs=3)
    log.append(claim(log))
    log.append(decision(log))
    assert [(slot, record.epoch) for slot, record in log.history()] == [
        (6, 3),
        (4, 2),
        (3, 1),
        (2, 0),
    ]


def test_history_ends_where_retention_began() -> None:
    log = opened(MemoryStore(), keep=3, epochs=10)
    assert [record.epoch for _, record in log.history()] == [9, 8, 7]


def test_a_newer_claim_fences(store: MemoryStore) -> None:
    old = opened(store, epochs=1)
    new = opened(store)
    # It may have committed epochs before.
    with pytest.raises(Fenced, match=r"newer start.*Nothing more is committed by this one\."):
        old.append(decision(old))
    with pytest.raises(Fenced):
        old.check_newest()
    new.check_newest()
    new.append(decision(new))


def test_one_who_slept_through_two_takeovers_is_fenced_though_its_slot_is_free() -> None:
    store = MemoryStore()
    old = opened(store, keep=2, epochs=1)
    opened(store, keep=2)
    newest = opened(store, keep=2, epochs=3)
    assert old.state.head + 1 not in store.data, "the slot is to be free for this test"
    with pytest.raises(Fenced):
        old.append(decision(old))
    assert DecisionLog(store).open() == newest.state, "what the sleeper left is not read"
    newest.append(decision(newest))
    assert old.state.head + 1 not in store.data, "and it is swept"


@pytest.mark.parametrize("keep", [2, 10])
def test_retention_is_bounded_and_spares_what_is_needed(keep: int) -> None:
    class Counting(MemoryStore):
        deletes = 0

        def delete(self, slot: int) -> None:
            self.deletes += 1
            super().delete(slot)

    store = Counting()
    log = opened(store, keep=keep)
    first = log.state.claim_at
    for _ in range(300):
        before = store.deletes
        log.append(decision(log))
        assert store.deletes - before <= 1, "an epoch costs the same, early or late"
        assert len(store.data) <= keep + 1
    assert first is not None
    assert first.slot in store.data, "the newest claim stays"
    assert DecisionLog(store).open() == log.state
    opened(store, keep=keep)
    assert first.slot not in store.data
    assert len(store.data) <= keep + 1


def test_many_starts_without_a_decision_keep_the_newest_decision() -> None:
    store = MemoryStore()
    log = opened(store, keep=2, epochs=1)
    for _ in range(20):
        opened(store, keep=2)
    assert DecisionLog(store).open().decision == log.state.decision
    assert len(store.data) <= 4


@pytest.mark.parametrize(("slot", "other"), [(4, 3), (4, 1), (1, 4), (1, 2)])
def test_a_file_that_was_exchanged_is_named(slot: int, other: int) -> None:
    """Head or claim, by one of the same kind or another."""
    store = MemoryStore()
    opened(store, epochs=3)
    store.data[slot] = store.data[other]
    with pytest.raises(CorruptRecord, match=f"memory:{slot}"):
        DecisionLog(store).open()


@pytest.mark.parametrize("slot", [1, 4])
def test_a_record_of_another_history_is_named(slot: int) -> None:
    """Right place, right kind, but not the one that newer records point to."""
    store, other = MemoryStore(), MemoryStore()
    log = opened(store, epochs=3)
    log.append(claim(log))
    opened(other, epochs=3)
    store.data[slot] = other.data[slot]
    if slot == 1:
        store.data.pop(5)
    with pytest.raises(CorruptRecord, match=f"memory:{slot}"):
        DecisionLog(store).open()


def test_a_record_that_is_needed_and_gone_is_named() -> None:
    store = MemoryStore()
    opened(store, epochs=2)
    del store.data[1]
    with pytest.raises(CorruptRecord, match="memory:1"):
        DecisionLog(store).open()


def test_strange_files_beside_the_records_are_passed_over(tmp_path: Path) -> None:
    store = on_disk(tmp_path)
    log = opened(store, epochs=1)
    folder = tmp_path / "log"
    for name in (".beadline-tmp-x", "README", "0000000000000000009.bak", ".crc", "12"):
        (folder / name).write_text("?")
    assert store.slots() == [1, 2]
    assert DecisionLog(store).open() == log.state


def test_a_reader_is_not_misled_by_a_driver_that_moves_on() -> None:
    """Listed, then freed by retention before it was read: read again, do not cry corruption."""

    class Moving(MemoryStore):
        busy: DecisionLog | None = None

        def read(self, slot: int) -> bytes | None:
            busy, self.busy = self.busy, None
            if busy is not None:
                for _ in range(4):
                    busy.append(decision(busy))
            return super().read(slot)

    store = Moving()
    running = opened(store, keep=2, epochs=3)
    store.busy = running
    assert DecisionLog(store).open() == running.state
