"""Slots: no two live writers share one, and their number is bounded, whatever dies."""

from __future__ import annotations

import random

from beadline.spark.slots import SlotOwners, WorkerSlots, parse

PARTS = 16


def named(number: int) -> WorkerSlots:
    """A worker process of its own, as far as names go."""
    worker = WorkerSlots()
    worker.name  # noqa: B018 (it is made at the first look)
    worker._name = f"worker-{number}"
    return worker


def epoch(
    owners: SlotOwners, number: int, workers: list[WorkerSlots], chance: random.Random
) -> list[int]:
    """Every part, each on some worker; returns the slots."""
    table = parse(owners.to_text())
    taken = []
    for partition in range(PARTS):
        worker = chance.choice(workers)
        slot = worker.take("sink", str(number), table, partition, 0)
        taken.append((worker.name, slot))
    owners.learn(taken)
    return [slot for _, slot in taken]


def test_workers_that_live_on_keep_their_slots() -> None:
    owners, worker = SlotOwners(), named(0)
    used: set[int] = set()
    for number in range(50):
        slots = epoch(owners, number, [worker], random.Random(number))
        assert len(set(slots)) == PARTS
        used.update(slots)
    assert len(used) == PARTS


def test_slots_stay_few_though_every_worker_dies_after_each_epoch() -> None:
    owners = SlotOwners()
    used: set[int] = set()
    half = set()
    for number in range(400):
        workers = [named(4 * number + each) for each in range(4)]
        slots = epoch(owners, number, workers, random.Random(number))
        assert len(set(slots)) == PARTS
        used.update(slots)
        if number == 200:
            half = set(used)
    # Eight for each part, for its attempts, and those of workers seen in the last 20 epochs.
    assert max(used) < (8 + 20) * PARTS
    assert used == half  # nothing grows with the epochs


def test_attempts_of_one_part_never_share_a_slot() -> None:
    """Two that run at once, the older one slow to die: each is a guest, on a worker of its own."""
    table = {"somebody": (0, 3, 8)}
    slots = [
        named(attempt).take("sink", "7", table, partition, attempt)
        for partition in range(PARTS)
        for attempt in range(4)
    ]
    assert len(set(slots)) == len(slots)
    assert not {0, 3, 8} & set(slots)
