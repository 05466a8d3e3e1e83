"""A driver that a newer start has taken over from touches nothing: no sweep, no end of writers."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace

import pytest

from beadline.errors import CommitFailed, Fenced
from beadline.ids import EpochId, PartId, QueryId
from beadline.points import hooked
from beadline.protocol.coordinator import Coordinator
from beadline.sink import CommitResult, Prepared
from tests.model.model import (
    ModelBatch,
    ModelSink,
    ModelWorld,
    Setting,
    make_coordinator,
    start_only,
)
from tests.model.server import ModelCommittable
from tests.model.world import NAME

ENDED: list[str] = []
DURING_CLOSE: list[Callable[[], None]] = []
AWAY: set[str] = set()
ABORTED: list[tuple[str, str]] = []


@dataclass(frozen=True)
class Watched(ModelSink):
    """Notes whose writers are ended; another process may do something while it looks for them."""

    def close(self, query: QueryId, name: str) -> Callable[[], None]:
        for act in DURING_CLOSE:
            act()
        return lambda: ENDED.append(self.server.target)

    def abort(self, parts: Sequence[Prepared[ModelCommittable]]) -> None:
        ABORTED.extend((self.kind, part.id.sink) for part in parts)
        super().abort(parts)

    def commit(self, epoch: EpochId, parts: Sequence[Prepared[ModelCommittable]]) -> CommitResult:
        if self.server.target in AWAY:
            raise CommitFailed("the server is away")
        return super().commit(epoch, parts)


@pytest.fixture
def world() -> ModelWorld:
    for kept in (ENDED, DURING_CLOSE, AWAY, ABORTED):
        kept.clear()
    return ModelWorld(Setting(sink=Watched))


def started(world: ModelWorld) -> Coordinator:
    coordinator = make_coordinator(world)
    coordinator.start()
    return coordinator


def open_transaction(world: ModelWorld, query: QueryId) -> PartId:
    """Another process writes a part, and which part it is cannot be told yet (as with Kafka)."""
    part = PartId(query.name, query.incarnation, "parts0", 0, 0, 0, 0)
    world.servers["parts0"].prepared[part] = ("a row",)
    return part


@pytest.mark.parametrize(
    "act",
    [
        lambda old: old.sweeper.sweep_older(),
        lambda old: old.sweeper.later(),
        lambda old: old.close(),
    ],
    ids=["older", "later", "close"],
)
def test_nothing_is_swept(world: ModelWorld, act: Callable[[Coordinator], None]) -> None:
    """What is in doubt now may be the newer start's, in the middle of its epoch."""
    old = started(world)
    new = started(world)
    part = open_transaction(world, new.run.query)
    with pytest.raises(Fenced):
        act(old)
    assert part in world.servers["parts0"].prepared
    assert ENDED == []


def test_losers_are_not_swept_either(world: ModelWorld) -> None:
    old = started(world)
    new = started(world)
    part = open_transaction(world, new.run.query)
    old.sweeper.expect()
    with pytest.raises(Fenced):
        old.sweeper.before_epoch()
    assert part in world.servers["parts0"].prepared


def test_writers_are_not_ended_if_a_newer_start_comes_while_they_are_looked_for(
    world: ModelWorld,
) -> None:
    """They may be the newer start's by then."""
    old = started(world)
    DURING_CLOSE.append(lambda: start_only(world))
    with pytest.raises(Fenced):
        old.close()
    assert ENDED == []


def test_writers_are_ended_by_a_clean_stop(world: ModelWorld) -> None:
    coordinator = started(world)
    orphan = open_transaction(world, coordinator.run.query)
    coordinator.close()
    assert orphan not in world.servers["parts0"].prepared, "nothing of ours stays open"
    assert sorted(ENDED) == sorted(world.servers)


def test_writers_of_an_epoch_that_is_not_finished_stay(world: ModelWorld) -> None:
    """To end them would abort what was decided."""
    coordinator = started(world)
    world.planned[0] = (0, 4)
    AWAY.add("parts0")
    with pytest.raises(CommitFailed, match="away"):
        coordinator.run_epoch(ModelBatch(world, 0))
    waiting = dict(world.servers["parts0"].prepared)
    assert waiting
    coordinator.close()
    assert ENDED == []
    assert world.servers["parts0"].prepared == waiting
    AWAY.clear()
    started(world).run_epoch(ModelBatch(world, 0))
    assert len(world.servers["parts0"].rows()) == 4


def test_a_start_that_loses_its_slot_to_a_driver_that_still_decides_takes_the_next(
    world: ModelWorld,
) -> None:
    """That driver is alive and does not know yet: its decision is no reason to give up."""
    old = started(world)
    decided = 0

    def decide(point: str) -> None:
        nonlocal decided
        if point == "claim.before" and decided < 2:
            world.planned[decided] = (4 * decided, 4 * decided + 4)
            decided += 1
            with hooked(lambda name: None):
                old.run_epoch(ModelBatch(world, decided - 1))
            world.committed.add(decided - 1)

    with hooked(decide):
        new = started(world)
    assert decided == 2
    assert new.run.generation == 2
    with pytest.raises(Fenced):
        old.sweeper.sweep_older()
    for server in world.servers.values():
        assert len(server.rows()) == 8


def test_each_sink_sweeps_its_own_where_two_share_a_server(world: ModelWorld) -> None:
    """Another sink of the query may know more of its part than can be seen on the server."""
    world.servers["ledger1"] = world.servers["parts0"]
    coordinator = started(world)
    for sink in ("parts0", "ledger1", "renamed-since"):
        part = PartId(NAME, coordinator.run.query.incarnation, sink, 0, 0, 0, 0)
        world.servers["parts0"].prepared[part] = ("a row",)
    coordinator.sweeper.sweep_older()
    assert world.servers["parts0"].prepared == {}
    assert {(kind, sink) for kind, sink in ABORTED if sink != "renamed-since"} == {
        ("parts", "parts0"),
        ("ledger", "ledger1"),
    }


@dataclass(frozen=True)
class Vague(Watched):
    """Cannot tell which parts those of another sink are (as with Kafka's control topics)."""

    def in_doubt(self, query: QueryId, name: str) -> Iterable[Prepared[ModelCommittable]]:
        return [
            part if part.id.sink == name else replace(part, id=replace(part.id, partition=99))
            for part in super().in_doubt(query, name)
        ]


def test_a_sink_sweeps_its_own_although_the_one_beside_it_knows_it_by_another_id() -> None:
    ABORTED.clear()
    world = ModelWorld(Setting(sink=Vague))
    world.servers["ledger1"] = world.servers["parts0"]
    coordinator = started(world)
    part = PartId(NAME, coordinator.run.query.incarnation, "ledger1", 0, 0, 0, 0)
    world.servers["parts0"].prepared[part] = ("a row",)
    coordinator.sweeper.sweep_older()
    assert ABORTED == [("ledger", "ledger1")]
