"""Rule 24: sinks that were given different computations of a part decide nothing."""

from __future__ import annotations

import pytest

from beadline.errors import PrepareFailed
from beadline.points import hooked
from beadline.protocol import prepare
from tests.model.model import ModelWorld, Setting, drive
from tests.model.server import LEDGER, PARTS

LOST = Setting(deterministic=False, recomputed=1, kinds=(PARTS, LEDGER, PARTS))


def rows_by_sink(world: ModelWorld) -> list[list[str]]:
    """What each sink shows, whatever the order."""
    return [sorted(server.rows()) for server in world.servers.values()]


def test_a_part_that_was_computed_again_between_two_sinks_stops_the_epoch() -> None:
    world = ModelWorld(LOST)
    with hooked(world.look):
        with pytest.raises(PrepareFailed, match=r"epoch 1: .*part\(s\) 0 of the rows again"):
            drive(world)
        assert [decision.epoch for decision in world.store.decisions] == [0]
        assert all(not server.prepared for server in world.servers.values()), "left in doubt"
        drive(world)  # the next start is given the epoch again
    first, *others = rows_by_sink(world)
    assert others == [first, first]
    assert len(first) == 3 * world.per_epoch


def test_without_the_check_two_sinks_hold_different_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prepare, "check_shared", lambda query, epoch, acks, meaning: None)
    world = ModelWorld(LOST)
    drive(world)
    first, *others = rows_by_sink(world)
    assert others != [first, first]


def test_one_sink_alone_shares_no_rows() -> None:
    world = ModelWorld(Setting(kinds=(LEDGER,), dead_letter=PARTS))
    drive(world)
    world.check_end()
