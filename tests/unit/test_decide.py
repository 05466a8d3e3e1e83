"""What a decision holds beside its parts, and what writers are told of the decisions before."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass

import pyarrow as pa
import pytest

from beadline.points import hooked
from beadline.protocol.run import Run
from beadline.sink import Part
from tests.model.model import ModelWorld, Setting, drive
from tests.model.server import PARTS, ModelCommittable, ModelSink

TOLD: list[Part] = []


@dataclass(frozen=True)
class Told(ModelSink):
    """Keeps what every call of ``prepare`` is told."""

    def prepare(self, rows: Iterator[pa.RecordBatch], part: Part) -> ModelCommittable | None:
        TOLD.append(part)
        return super().prepare(rows, part)


@pytest.fixture
def world() -> ModelWorld:
    TOLD.clear()
    return ModelWorld(Setting(epochs=4, kinds=(PARTS,), sink=Told))


def test_versions_grow_though_the_clock_stands_still_or_goes_back(
    world: ModelWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A sink may use them as a version: of two that are equal, one would not be written."""
    clock = iter([1000, 1000, 1000, 900] * 100)
    monkeypatch.setattr(Run, "now_ms", lambda run: next(clock))
    drive(world, epochs=2)
    drive(world)
    versions = [decision.at_ms for decision in world.store.decisions]
    assert versions == sorted(set(versions))
    assert len(versions) == 4


def test_each_decision_names_the_one_before(world: ModelWorld) -> None:
    drive(world, epochs=2)
    drive(world)
    decisions = world.store.decisions
    assert decisions[0].decided is None
    for before, after in itertools.pairwise(decisions):
        assert after.decided is not None
        assert after.decided.nonce == before.nonce


def test_a_writer_receives_the_decided_parts_of_the_two_epochs_before(world: ModelWorld) -> None:
    """Writers live on by the epoch's parity: of an epoch they know when the one after is done."""
    drive(world)
    decided = world.store.decided["parts0"]
    for part in TOLD:
        wanted = {id_ for id_ in decided if part.id.epoch - 2 <= id_.epoch < part.id.epoch}
        assert set(part.decided) == wanted


def test_a_writer_receives_nothing_of_an_earlier_start(world: ModelWorld) -> None:
    drive(world, epochs=2)
    TOLD.clear()
    drive(world, epochs=3)
    assert [part.decided for part in TOLD] == [(), ()]


def test_a_writer_receives_nothing_where_an_epoch_is_computed_again(world: ModelWorld) -> None:
    """Rule 17: it would continue under a name whose late commit is that of the decided part."""
    decided = 0

    def expire(point: str) -> None:
        nonlocal decided
        decided += point == "decide.after"
        if point == "decide.after" and decided == 3:
            TOLD.clear()
            server = world.servers["parts0"]
            server.expire(next(iter(server.prepared)))

    with hooked(expire):
        drive(world, epochs=3)
    assert [part.decided for part in TOLD] == [(), ()]
