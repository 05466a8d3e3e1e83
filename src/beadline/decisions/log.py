"""Compare-and-append: the driver that takes the next slot has decided, every other is fenced.

Claims and decisions compete for the same next slot (rule 1), so there is no moment between
"am I still the newest?" and "then I decide". Three things make that hold for ever:

- a failed append is never taken as undecided: the slot is read back, and only its nonce counts
  (rule 3);
- retention frees old slots, so a driver that slept through two takeovers could find its slot
  empty again. After each append the log is listed: a slot above our own means that another driver
  has been here, and we are fenced whatever the create returned. Retention never deletes the newest
  claim, so there is such a slot as long as such a driver exists;
- a reader never scans downwards for the newest decision, where such a sleeper may have left a
  record: every record points, by slot and nonce, to the newest decision before it.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from beadline.decisions.record import Claim, Decision, Pointer, Record, decode, encode
from beadline.decisions.store import Store
from beadline.errors import CorruptRecord, DecisionUnknown, Fenced

KEEP_DEFAULT = 100


@dataclass(frozen=True)
class LogState:
    """What the head of the log says."""

    head: int
    claim: Claim | None
    claim_at: Pointer | None
    decision: Decision | None
    decided_at: Pointer | None


EMPTY = LogState(0, None, None, None, None)


class DecisionLog:
    """The log of one query. One instance is one driver's view of it."""

    def __init__(self, store: Store, keep: int = KEEP_DEFAULT) -> None:
        """Keep the newest ``keep`` records, in addition to those that are always kept."""
        self._store = store
        self._keep = max(keep, 2)
        self.state = EMPTY

    def open(self) -> LogState:
        """Read the head of the log.

        Retention may free a listed slot before it is read, if another driver appends in between.
        That is not corruption, so the log is then read again.
        """
        while True:
            slots = self._store.slots()
            try:
                self.state = self._head(slots[-1]) if slots else EMPTY
            except CorruptRecord:
                if self._store.slots()[-1:] == slots[-1:]:
                    raise
            else:
                return self.state

    def close(self) -> None:
        """Release what the store holds; the log can still be read."""
        self._store.close()

    def moved(self) -> bool:
        """Whether another driver has appended since this view of the log was made."""
        slots = self._store.slots()
        return bool(slots) and slots[-1] > self.state.head

    def check_newest(self) -> None:
        """Raise ``Fenced`` if another driver has appended; only an append makes it certain."""
        if self.moved():
            raise self._fenced(self.state.head + 1)

    def _head(self, slot: int) -> LogState:
        record = self._read(slot)
        here = Pointer(slot, record.nonce)
        if isinstance(record, Claim):
            return LogState(slot, record, here, self._decision(record.decided), record.decided)
        claim = self._follow(record.claim)
        if not isinstance(claim, Claim):
            raise self._broken(record.claim, "a claim")
        return LogState(slot, claim, record.claim, record, here)

    def append(self, record: Record) -> Pointer:
        """Take the next slot for ``record``, or raise ``Fenced`` or ``DecisionUnknown``."""
        slot = self.state.head + 1
        self._take(slot, record)
        slots = self._store.slots()
        if slots and slots[-1] > slot:
            raise self._fenced(slot)
        here = Pointer(slot, record.nonce)
        if isinstance(record, Claim):
            self.state = LogState(slot, record, here, self.state.decision, record.decided)
            self._store.tidy()
        else:
            self.state = LogState(slot, self.state.claim, self.state.claim_at, record, here)
        self._trim(slots)
        return here

    def history(self) -> Iterator[tuple[int, Decision]]:
        """Yield the retained decisions, newest first."""
        pointer = self.state.decided_at
        while pointer is not None:
            data = self._store.read(pointer.slot)
            if data is None:
                return  # freed by retention
            record = decode(data, self._store.path(pointer.slot), pointer.slot)
            if not isinstance(record, Decision) or record.nonce != pointer.nonce:
                return
            yield pointer.slot, record
            pointer = record.decided

    def _take(self, slot: int, record: Record) -> None:
        """Create the slot; whenever there is doubt, only what is read back counts."""
        try:
            if self._store.create(slot, encode(record, slot)):
                return
            cause: Exception | None = None
        except Exception as error:  # noqa: BLE001 (whatever it was, what is read back counts)
            cause = error
        try:
            data = self._store.read(slot)
        except Exception as error:
            raise self._unknown(slot, error) from error
        if data is None:
            raise self._unknown(slot, cause) from cause
        if decode(data, self._store.path(slot), slot).nonce != record.nonce:
            raise self._fenced(slot) from cause
        try:
            self._store.sync()  # it is ours, but what failed may have been its last sync
        except Exception as error:
            raise self._unknown(slot, error) from error

    def _trim(self, slots: list[int]) -> None:
        """Free old slots; the newest claim and the newest decision always stay."""
        kept = {p.slot for p in (self.state.claim_at, self.state.decided_at) if p}
        for slot in slots:
            if slot > self.state.head - self._keep:
                break
            if slot not in kept:
                self._store.delete(slot)

    def _read(self, slot: int) -> Record:
        data = self._store.read(slot)
        path = self._store.path(slot)
        if data is None:
            raise CorruptRecord(
                f"record {path} of the decision log is listed but cannot be read. Nothing was "
                "started, committed or aborted. Restore the file from a backup of the checkpoint."
            )
        return decode(data, path, slot)

    def _follow(self, pointer: Pointer) -> Record:
        record = self._read(pointer.slot)
        if record.nonce != pointer.nonce:
            raise self._broken(pointer, f"the record with nonce {pointer.nonce}")
        return record

    def _decision(self, pointer: Pointer | None) -> Decision | None:
        if pointer is None:
            return None
        record = self._follow(pointer)
        if not isinstance(record, Decision):
            raise self._broken(pointer, "a decision")
        return record

    def _broken(self, pointer: Pointer, expected: str) -> CorruptRecord:
        return CorruptRecord(
            f"record {self._store.path(pointer.slot)} of the decision log is not {expected}, "
            "which a newer record names. Nothing was started, committed or aborted. Restore the "
            "checkpoint folder as a whole from one backup."
        )

    def _fenced(self, slot: int) -> Fenced:
        return Fenced(
            f"slot {slot} of the decision log ({self._store.path(slot)}) was taken by a newer "
            "start of this query, which finishes what was decided; the rest is redelivered to it. "
            "Nothing more is committed by this one. Stop one of the two drivers."
        )

    def _unknown(self, slot: int, cause: Exception | None) -> DecisionUnknown:
        return DecisionUnknown(
            f"the append to {self._store.path(slot)} failed ({cause!r}) and it is not known "
            "whether it succeeded. Nothing of it was committed or aborted; the next start of the "
            "query will find out by reading the log; no rows are lost or duplicated."
        )
