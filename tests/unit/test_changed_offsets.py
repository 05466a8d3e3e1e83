"""Source positions that change under a decided epoch are noticed, whenever they change."""

from __future__ import annotations

import pytest

from beadline.errors import WrongCheckpoint
from beadline.points import hooked
from tests.model.model import PLANNED, ModelWorld, drive
from tests.unit.test_identity import die, refused, run


@pytest.mark.parametrize("planned", [None, (4, 9)], ids=["missing", "others"])
def test_of_an_epoch_that_spark_has_committed(planned: tuple[int, int] | None) -> None:
    """The next epoch begins where this one ended: rows between the two would never be read."""
    world = ModelWorld()
    run(world, 2)
    before = world.planned.pop(1)
    if planned:
        world.planned[1] = planned
    with refused(world, "source positions of epoch 1"):
        run(world, 3)
    world.planned[1] = before
    run(world, 3)
    world.check_end()


def test_while_the_query_runs() -> None:
    """Another program plans the epoch again between our start and Spark's call."""
    world = ModelWorld()
    die(world, "decide.after", 2)
    shown = {name: sorted(server.rows()) for name, server in world.servers.items()}
    decided = world.planned[1]

    def replanned(point: str) -> None:
        if point == PLANNED:
            world.planned[1] = (decided[0], decided[1] + 4)

    with hooked(replanned), pytest.raises(WrongCheckpoint, match="source positions of epoch 1"):
        drive(world)
    for name, server in world.servers.items():
        assert sorted(server.rows()) == sorted([*shown[name], *world_rows(world, decided)])
    world.planned[1] = decided
    run(world, 3)
    world.check_end()


def world_rows(world: ModelWorld, span: tuple[int, int]) -> list[str]:
    return [world.row(number, 0) for number in range(*span)]
