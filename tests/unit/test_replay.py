"""Replay: what is proven lost is computed again, and published only if it is beyond doubt."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import pytest

from beadline.dead_letter import RefusedRow
from beadline.errors import (
    BeadlineError,
    Fenced,
    NotDeterministic,
    PartLost,
    PrepareFailed,
    WrongCheckpoint,
)
from beadline.points import hooked
from beadline.protocol.batch import Acks, Ticket
from beadline.protocol.replay import REPLAYS_MAX
from beadline.sink import BoundSink
from tests.model.explore import finish
from tests.model.model import (
    Crash,
    ModelBatch,
    ModelWorld,
    Setting,
    at_least_once,
    drive,
    make_coordinator,
    start_only,
)
from tests.model.server import LEDGER, PARTS


def decided(kinds: tuple[str, ...] = (PARTS,)) -> ModelWorld:
    """A driver has died right after its first decision."""
    world = ModelWorld(Setting(epochs=1, kinds=kinds))

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


class Fails(ModelBatch):
    """A sink, or Spark, cannot prepare or publish it."""

    def run_prepare(
        self, sink: BoundSink, ticket: Ticket, refused: Sequence[RefusedRow] | None = None
    ) -> Acks:
        raise OSError("no such host")

    run_publish = run_prepare


class TwoComputations(ModelBatch):
    """Between its two sinks Spark computes a part again."""

    def run_prepare(
        self, sink: BoundSink, ticket: Ticket, refused: Sequence[RefusedRow] | None = None
    ) -> Acks:
        acks = super().run_prepare(sink, ticket, refused)
        self.tags = {part: next(self.world.attempts) for part in self.tags or {}}
        return acks


class NoAnswer(ModelBatch):
    """Its source does not say what it is when it has been read."""

    def run_prepare(
        self, sink: BoundSink, ticket: Ticket, refused: Sequence[RefusedRow] | None = None
    ) -> Acks:
        def sources() -> dict[str, str]:
            raise PrepareFailed("epoch 0: the topic does not answer.")

        self.world.sources = sources  # type: ignore[method-assign]
        return super().run_prepare(sink, ticket, refused)


@pytest.mark.parametrize(
    ("batch", "says"),
    [
        (Fails, r"epoch 0, sink 'parts0' .*no such host\. "),
        (TwoComputations, r"epoch 0: between sinks 'parts0' and 'parts1'.*different rows\. "),
        (NoAnswer, r"query 'model', epoch 0: the topic does not answer\. "),
    ],
)
@pytest.mark.parametrize("replayed", [False, True])
def test_what_a_failure_means_for_an_epoch_that_is_decided(
    batch: type[ModelBatch], says: str, replayed: bool
) -> None:
    """An epoch that is replayed may be committed in its other sinks."""
    both = (PARTS, PARTS)
    world = decided(both) if replayed else ModelWorld(Setting(epochs=1, kinds=both))
    for server in world.servers.values() if replayed else ():
        server.expire(next(iter(server.prepared)))
    coordinator = make_coordinator(world)
    coordinator.start()
    world.planned[0] = (0, 4)
    means = r"Epoch 0 (stays|is) decided" if replayed else r"Nothing of (the epoch|epoch 0) is dec"
    with pytest.raises(PrepareFailed, match=f"{says}{means}") as said:
        coordinator.run_epoch(batch(world, 0))
    assert ("Nothing of" in str(said.value)) != replayed
    between = coordinator.run.meaning_between()
    assert between.startswith("Epoch 0 is decided" if replayed else "No epoch is decided")


@pytest.mark.parametrize("publishes", [True, False])
def test_what_a_failure_means_where_rows_show_as_they_are_written(publishes: bool) -> None:
    world = ModelWorld(Setting(kinds=(LEDGER,), strict=False, publishes=publishes))
    coordinator = make_coordinator(world, at_least_once)
    coordinator.start()
    world.planned[0] = (0, 4)
    shown = "no such host. Some rows of epoch 0 may show already, .*The next start redelivers it"
    with pytest.raises(PrepareFailed, match=shown) as said:
        coordinator.run_epoch(Fails(world, 0))
    assert "decided" not in str(said.value)
