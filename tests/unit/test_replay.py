"""Replay: what is proven lost is computed again, and published only if it is beyond doubt."""

from __future__ import annotations

from dataclasses import dataclass

import pytest

from beadline.errors import BeadlineError, Fenced, NotDeterministic, PartLost, WrongCheckpoint
from beadline.points import hooked
from beadline.protocol.replay import REPLAYS_MAX
from tests.model.explore import finish
from tests.model.model import (
    Crash,
    ModelBatch,
    ModelWorld,
    Setting,
    drive,
    make_coordinator,
    start_only,
)
from tests.model.server import PARTS


def decided() -> ModelWorld:
    """A driver has died right after its first decision."""
    world = ModelWorld(Setting(epochs=1, kinds=(PARTS,)))

    def die(point: str) -> None:
        if point == "decide.after":
            raise Crash(point)

    with hooked(die), pytest.raises(Crash):
        drive(world)
    return world


def expire(world: ModelWorld) -> None:
    server = world.servers["parts0"]
    server.expire(next(iter(server.prepared)))


def test_an_epoch_that_outlasts_every_transaction_stops() -> None:
    """Rule 22: a bounded number of replays, then an error that names the setting."""
    world = decided()
    expire(world)
    appended = 0

    def expire_again(point: str) -> None:
        nonlocal appended
        appended += point == "decide.after"
        assert appended <= REPLAYS_MAX, "it is replayed for ever"
        if point == "decide.after":
            expire(world)

    with hooked(expire_again), pytest.raises(PartLost, match="transaction timeout"):
        drive(world)
    assert appended == REPLAYS_MAX
    assert world.last_committed() == -1, "it stays decided"


@dataclass
class More(ModelBatch):
    """The plan gives a part more than it did: every part that was decided is among them."""

    def compute(self) -> None:
        super().compute()
        self.rows.append(("a row that nobody decided",))


def test_more_parts_than_were_decided_are_not_published() -> None:
    world = decided()
    expire(world)
    coordinator = make_coordinator(world)
    coordinator.start()
    with pytest.raises(NotDeterministic, match="has no match among the"):
        coordinator.run_epoch(More(world, 0))
    assert len(world.store.decisions) == 1
    assert not world.servers["parts0"].prepared.keys() - world.store.decided["parts0"].keys()


def test_changed_offsets_are_not_replayed() -> None:
    """Looked at again right before: the start's look may be hours old."""
    world = decided()
    expire(world)
    before = world.planned[0]

    def replanned(point: str) -> None:
        # After the epoch was found to be the decided one, before it is computed again.
        if point == "epoch.again":
            world.planned[0] = (before[0], before[1] + 4)

    with hooked(replanned), pytest.raises(WrongCheckpoint, match="source positions of epoch 0"):
        drive(world)
    assert len(world.store.decisions) == 1
    world.planned[0] = before
    finish(world)


def test_other_settings_cut_rows_in_other_parts() -> None:
    world = decided()
    expire(world)
    world.setting = Setting(epochs=1, kinds=(PARTS,), parts=4)
    with pytest.raises(BeadlineError):
        drive(world)
    assert len(world.store.decisions) == 1


def test_a_driver_that_was_overtaken_replays_nothing() -> None:
    """Its writers would take the names of the newer start's."""
    world = decided()
    expire(world)
    prepared_at: list[int] = []
    coordinator = make_coordinator(world)
    coordinator.start()

    def overtaken(point: str) -> None:
        if point == "epoch.again":
            with hooked(lambda name: None):
                start_only(world)
        if point == "prepare.before":
            prepared_at.append(1)

    with hooked(overtaken), pytest.raises(Fenced):
        coordinator.run_epoch(ModelBatch(world, 0))
    assert prepared_at == []
    finish(world)
