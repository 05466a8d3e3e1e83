"""What a start finishes is committed once: not again when Spark redelivers the epoch.

"Nothing is lost" and "not tried yet" are two things: only what this very start has committed, of
this very decision, need not be committed again.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import pytest

from beadline.errors import CommitFailed
from beadline.ids import EpochId
from beadline.sink import CommitResult, Prepared
from tests.model.model import (
    ModelBatch,
    ModelSink,
    ModelWorld,
    Setting,
    drive,
    make_coordinator,
)
from tests.model.server import ModelCommittable
from tests.unit.test_identity import die

COMMITS: Counter[tuple[str, int]] = Counter()


@dataclass(frozen=True)
class Counting(ModelSink):
    """Counts the calls of ``commit``, by server and epoch."""

    def commit(self, epoch: EpochId, parts: Sequence[Prepared[ModelCommittable]]) -> CommitResult:
        COMMITS[self.server.target, epoch.number] += 1
        return super().commit(epoch, parts)


@pytest.fixture
def world() -> ModelWorld:
    """A driver has died right after it decided epoch 1."""
    world = ModelWorld(Setting(sink=Counting))
    die(world, "decide.after", 2)
    COMMITS.clear()
    return world


@pytest.mark.parametrize("drop", [(), ("ledger1",), ("ledger1", "parts0")])
def test_a_decided_epoch_is_committed_once_by_the_next_start(
    world: ModelWorld, drop: Sequence[str]
) -> None:
    """Neither again when it is redelivered, nor because drop= was left in the code."""
    drive(world, drop=drop)
    assert {(name, epoch): 1 for name in ("parts0", "ledger1") for epoch in (1, 2)} == COMMITS
    world.check_end()


def test_where_one_sink_is_stuck_the_others_are_committed_once(world: ModelWorld) -> None:
    world.servers["ledger1"].stuck = [1]
    drive(world, drop=["ledger1"])
    assert set(COMMITS.values()) == {1}
    assert sorted(world.servers["ledger1"].rows()) == sorted(world.rows(0) + world.rows(2))


def test_lost_parts_that_the_start_has_found_are_replayed_without_asking_again(
    world: ModelWorld,
) -> None:
    server = world.servers["parts0"]
    server.expire(next(iter(server.prepared)))
    drive(world)
    assert COMMITS["parts0", 1] == 2  # the start's, and that of the replacement
    world.check_end()


def test_what_was_not_tried_is_committed_when_it_is_redelivered(world: ModelWorld) -> None:
    """Spark is started again in the same run, and redelivers an epoch whose commit had failed."""
    coordinator = make_coordinator(world)
    coordinator.start()
    coordinator.run_epoch(ModelBatch(world, 1))
    world.committed.add(1)
    fail_then_redeliver(world, lambda: coordinator.run_epoch(ModelBatch(world, 2)))


def test_what_the_start_has_committed_says_nothing_of_a_later_epoch(world: ModelWorld) -> None:
    """An older driver's Spark has written that epoch's commit, so it is not redelivered."""
    coordinator = make_coordinator(world)
    coordinator.start()
    world.committed.add(1)
    fail_then_redeliver(world, lambda: coordinator.run_epoch(ModelBatch(world, 2)))


def fail_then_redeliver(world: ModelWorld, run_epoch: Callable[[], None]) -> None:
    world.planned[2] = (8, 12)
    world.servers["ledger1"].stuck = [2]
    with pytest.raises(CommitFailed, match="never takes epoch 2"):
        run_epoch()
    world.servers["ledger1"].stuck = []
    run_epoch()
    world.committed.add(2)
    world.check_end()
