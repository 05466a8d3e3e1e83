"""``at_least_once`` through sinks that keep a ledger: never ahead of Spark's own plan on disk."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import pyarrow as pa
import pytest

from beadline.errors import Fenced, PrepareFailed, WrongCheckpoint
from beadline.ids import EpochId
from beadline.sink import CommitResult, Part, Prepared
from tests.model.model import (
    ModelBatch,
    ModelWorld,
    Setting,
    at_least_once,
    drive,
    make_coordinator,
    start_only,
)
from tests.model.server import LEDGER, PARTS, ModelCommittable, ModelSink


def test_an_epoch_is_planned_on_disk_before_a_ledger_has_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Else a power cut takes the plan back, and what comes with the next one is not taken."""
    offsets, commit = ModelBatch.offsets, ModelSink.commit
    durable: set[int] = set()

    def offsets_noted(batch: ModelBatch) -> str:
        durable.add(batch.number)
        return offsets(batch)

    def commit_looked_at(
        sink: ModelSink, epoch: EpochId, parts: Sequence[Prepared[ModelCommittable]]
    ) -> CommitResult:
        assert epoch.number in durable
        return commit(sink, epoch, parts)

    monkeypatch.setattr(ModelBatch, "offsets", offsets_noted)
    monkeypatch.setattr(ModelSink, "commit", commit_looked_at)
    world = ModelWorld(Setting(kinds=(LEDGER,), strict=False, coordinator=at_least_once))
    drive(world, at_least_once)
    assert durable == {0, 1, 2}
    world.check_end()


class Refusing(ModelSink):
    """Refuses rows, and has no dead-letter sink."""

    def without_refused(
        self, rows: Iterator[pa.RecordBatch], part: Part
    ) -> Iterator[pa.RecordBatch]:
        return ModelSink(self.server, refuses=True).without_refused(rows, part)


def test_refused_rows_name_query_epoch_sink_target_and_part() -> None:
    world = ModelWorld(Setting(kinds=(LEDGER,), sink=Refusing))
    words = r"query 'model', epoch 0, sink 'ledger0' \(ledger0\): .*row\(s\) of part \d cannot be"
    with pytest.raises(PrepareFailed, match=words):
        drive(world)


@pytest.mark.parametrize("publishes", [True, False])
@pytest.mark.parametrize("known", ["at start", "since the first epoch"])
def test_a_source_that_is_made_again_while_the_query_runs(publishes: bool, known: str) -> None:
    """Positions of the old one say nothing of the new one; no decision would compare them."""
    kind = PARTS if publishes else LEDGER
    world = ModelWorld(Setting(kinds=(kind,), strict=False, publishes=publishes))
    ids = world.read
    if known != "at start":  # it appears later, or does not answer before
        world.read = {}
    coordinator = make_coordinator(world, at_least_once)
    coordinator.start()
    world.read = ids
    for epoch in (0, 1):
        world.planned[epoch] = (4 * epoch, 4 * epoch + 4)
    coordinator.run_epoch(ModelBatch(world, 0))
    world.committed.add(0)
    ids["source"] = "second"
    with pytest.raises(WrongCheckpoint, match="deleted and recreated") as said:
        coordinator.run_epoch(ModelBatch(world, 1))
    assert "Some rows of epoch 1 may show already" in str(said.value)
    assert "decided" not in str(said.value)
    if not publishes:
        assert world.servers["ledger0"].rows() == ["0", "2", "1", "3"]  # nothing of epoch 1
    if known == "at start":
        with pytest.raises(WrongCheckpoint, match="deleted and recreated"):
            start_only(world, at_least_once)


def test_a_publisher_that_was_overtaken_publishes_nothing() -> None:
    """Nothing is decided in this mode, so nothing else would stop it."""
    world = ModelWorld(Setting(kinds=(LEDGER,), strict=False, publishes=True))
    old = make_coordinator(world, at_least_once)
    old.start()
    start_only(world, at_least_once)
    world.planned[0] = (0, 4)
    with pytest.raises(Fenced):
        old.run_epoch(ModelBatch(world, 0))
    assert world.servers["ledger0"].rows() == []
