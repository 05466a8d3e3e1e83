"""Slots: small numbers for long-lived writers, whose number is limited.

A Kafka producer that is kept between epochs needs a name that no other live producer has, and the
broker remembers every name for days, so there must not be a new one for every worker process. So
the driver keeps a table of who used which slot and sends it along with every epoch. A worker takes
a slot that is its own and not yet used in this epoch; one that has none is a guest, and takes a
slot without an owner, chosen by its partition and attempt, so that no two guests choose the same. A
guest owns its slot from the next epoch on. Between two epochs no part that counts is in progress,
so a slot may be taken from a worker that was not seen for a while: if it wakes up, it is fenced by
the slot's new owner.
"""

from __future__ import annotations

import json
import os
import uuid
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

SLOTS = "beadline.slots"
# Spark tries a task 4 times unless told otherwise.
_ATTEMPTS = 8
_FORGET_EPOCHS = 20

SlotTable = Mapping[str, tuple[int, ...]]


@dataclass
class SlotOwners:
    """The driver's table of one sink."""

    seen: dict[str, int] = field(default_factory=dict)
    owned: dict[str, tuple[int, ...]] = field(default_factory=dict)
    epochs: int = 0

    def to_text(self) -> str:
        """Return the table as it travels with an epoch."""
        return json.dumps(self.owned)

    def learn(self, taken: Iterable[tuple[str, int]]) -> None:
        """Record which worker took which slot in the epoch that has just run."""
        self.epochs += 1
        for worker, slot in taken:
            self.seen[worker] = self.epochs
            slots = {*self.owned.get(worker, ()), slot}
            self.owned[worker] = tuple(sorted(slots))
        for worker, epoch in list(self.seen.items()):
            if epoch <= self.epochs - _FORGET_EPOCHS:
                del self.seen[worker], self.owned[worker]


class WorkerSlots:
    """What one worker process knows: its name, and the slots it took in the running epoch."""

    def __init__(self) -> None:
        self._pid = 0
        self._name = ""
        self._taken: dict[str, tuple[str, set[int]]] = {}

    @property
    def name(self) -> str:
        """A name for this process only: a fork is another worker."""
        if self._pid != os.getpid():
            self._pid, self._name, self._taken = os.getpid(), uuid.uuid4().hex, {}
        return self._name

    def take(self, writer: str, epoch: str, table: SlotTable, partition: int, attempt: int) -> int:
        """Return a slot for one part; ``writer`` names the sink of one start of one query."""
        mine = table.get(self.name, ())
        before, taken = self._taken.get(writer, ("", set()))
        if before != epoch:
            taken = set()
        free = [slot for slot in mine if slot not in taken]
        slot = free[0] if free else _guest(table, partition, attempt)
        taken.add(slot)
        self._taken[writer] = (epoch, taken)
        return slot


def parse(text: str | None) -> SlotTable:
    """Read the table as it travelled; empty if there is none."""
    return {worker: tuple(slots) for worker, slots in json.loads(text or "{}").items()}


def _guest(table: SlotTable, partition: int, attempt: int) -> int:
    """Return the slot for this attempt, of those without an owner."""
    owned = sorted(slot for slots in table.values() for slot in slots)
    slot = partition * _ATTEMPTS + attempt % _ATTEMPTS
    for other in owned:
        if other <= slot:
            slot += 1
    return slot
