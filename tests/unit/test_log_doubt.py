"""An append in doubt: what is read back is what counts (rules 2 and 3)."""

from __future__ import annotations

import multiprocessing
import uuid
from collections.abc import Callable
from dataclasses import replace
from multiprocessing.synchronize import Barrier
from pathlib import Path

import pytest

from beadline.decisions import DecisionLog, Pointer
from beadline.decisions.record import encode
from beadline.errors import CorruptRecord, DecisionUnknown, Fenced
from beadline.files.base import TEMPORARY
from beadline.files.local import LocalFiles, local_path
from beadline.points import hooked
from tests.memory_store import MemoryStore
from tests.unit.logs import claim, decision, on_disk, opened

SLOTS = 1000


class Failing(MemoryStore):
    """A store whose next ``create`` or ``read`` goes wrong in one way."""

    before: Callable[[int, bytes], None] | None = None
    after: Exception | None = None
    reading: Exception | None = None

    def create(self, slot: int, data: bytes) -> bool:
        if self.before is not None:
            self.before(slot, data)
        created = super().create(slot, data)
        if self.after is not None:
            raise self.after
        return created

    def read(self, slot: int) -> bytes | None:
        if self.reading is not None:
            raise self.reading
        return super().read(slot)


def refuse(slot: int, data: bytes) -> None:
    raise OSError("disk full")


def test_a_create_that_raised_but_landed_is_decided() -> None:
    store = Failing()
    log = opened(store)
    store.after = OSError("interrupted")
    record = decision(log)
    assert log.append(record) == Pointer(2, record.nonce)
    store.after = None
    assert log.state.decision == record
    log.append(decision(log))


def test_a_record_that_landed_but_cannot_be_synced_is_unknown(tmp_path: Path) -> None:
    """Its name could be gone after a power cut, so nobody may act on it."""
    store = on_disk(tmp_path)
    log = opened(store)

    class Unsynced(LocalFiles):
        def create_exclusive(self, uri: str, data: bytes) -> bool:
            super().create_exclusive(uri, data)
            raise OSError("the folder could not be synced")

        def sync_folder(self, uri: str) -> None:
            raise OSError("nor now")

    store._files = Unsynced()
    says = "nor now.*Nothing of it was committed or aborted"
    with pytest.raises(DecisionUnknown, match=says):
        log.append(decision(log))


def test_a_claim_removes_what_crashes_have_left(tmp_path: Path) -> None:
    store = on_disk(tmp_path)
    opened(store)
    left = Path(local_path(store.path(1))).parent / f"{TEMPORARY}1-of-a-crash"
    left.write_bytes(b"half a record")
    opened(on_disk(tmp_path))
    assert not left.exists()


def test_a_create_that_found_its_own_record_is_decided() -> None:
    """A client that repeats a request by itself is told that the name is taken: by it."""
    store = Failing()
    log = opened(store)
    store.before = store.data.__setitem__
    record = decision(log)
    assert log.append(record) == Pointer(2, record.nonce)


def test_a_create_that_raised_and_is_absent_is_unknown() -> None:
    store = Failing()
    log = opened(store)
    store.before = refuse
    with pytest.raises(DecisionUnknown, match="disk full"):
        log.append(decision(log))
    assert log.state.decision is None


def test_a_slot_that_was_taken_and_freed_again_is_unknown() -> None:
    store = Failing()
    log = opened(store)
    store.create = lambda slot, data: False  # type: ignore[method-assign]
    with pytest.raises(DecisionUnknown):
        log.append(decision(log))


@pytest.mark.parametrize("raises", [False, True])
def test_a_slot_taken_by_another_is_fenced(raises: bool) -> None:
    store = Failing()
    log = opened(store)
    other = replace(decision(log), nonce="other")

    def overtaken(slot: int, data: bytes) -> None:
        store.data[slot] = encode(other, slot)
        if raises:
            raise OSError("interrupted")

    store.before = overtaken
    with pytest.raises(Fenced):
        log.append(decision(log))


def test_a_slot_that_cannot_be_read_back_is_unknown() -> None:
    store = Failing()
    log = opened(store)
    store.after = OSError("interrupted")
    store.reading = OSError("the name node is in safe mode")
    with pytest.raises(DecisionUnknown, match="safe mode"):
        log.append(decision(log))


def test_a_slot_that_holds_rubbish_is_named_and_left_alone() -> None:
    """Rule 3: an interrupted write left an empty file under the final name."""
    store = Failing()
    log = opened(store)
    store.before = lambda slot, data: store.data.__setitem__(slot, b"")
    with pytest.raises(CorruptRecord, match="memory:2"):
        log.append(decision(log))
    store.before = None
    with pytest.raises(CorruptRecord, match="memory:2"):
        DecisionLog(store).open()
    assert store.data[2] == b""


def race(folder: str, start: Barrier, winners: multiprocessing.Queue[list[int]]) -> None:
    """One of two drivers: try for every slot, at the same moment as the other."""
    store = on_disk(Path(folder))
    mine = uuid.uuid4().hex.encode()
    won = []
    for slot in range(1, SLOTS + 1):
        if slot % 50 == 1:
            start.wait()
        if store.create(slot, mine):
            won.append(slot)
        data = store.read(slot)
        assert (data == mine) == (bool(won) and won[-1] == slot), slot
    winners.put(won)


def test_two_processes_race_for_a_thousand_slots(tmp_path: Path) -> None:
    """Rule 2, on real files with real fsync: every slot has exactly one winner."""
    context = multiprocessing.get_context("spawn")
    start, winners = context.Barrier(2), context.Queue()
    both = [context.Process(target=race, args=(str(tmp_path), start, winners)) for _ in range(2)]
    for process in both:
        process.start()
    won = [winners.get(timeout=120) for _ in both]
    for process in both:
        process.join(60)
        assert process.exitcode == 0
    assert sorted(won[0] + won[1]) == list(range(1, SLOTS + 1))
    assert min(map(len, won)) > 0, "no race: one process won everything"
    store = on_disk(tmp_path)
    assert store.slots() == list(range(1, SLOTS + 1))
    assert not list((tmp_path / "log").glob(".beadline-tmp-*"))


def test_a_claim_that_another_driver_tidies_away_is_written_again(tmp_path: Path) -> None:
    """Three starts at once: one removes temporary files just as another has written its own."""
    second, third = DecisionLog(on_disk(tmp_path)), DecisionLog(on_disk(tmp_path))
    opened(on_disk(tmp_path))
    second.open()
    third.open()
    tidied: list[bool] = []

    def hook(point: str) -> None:
        if point == "append.written" and not tidied:
            tidied.append(True)
            on_disk(tmp_path).tidy()

    record = claim(third)
    with hooked(hook):
        assert third.append(record) == Pointer(2, record.nonce)
    with pytest.raises(Fenced):
        second.append(claim(second))
