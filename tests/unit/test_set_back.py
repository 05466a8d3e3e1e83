"""A target that holds less than it acknowledged stops the start; one that is rightly behind not."""

from __future__ import annotations

from dataclasses import replace

import pytest

from beadline.errors import CheckpointProblem
from beadline.testing.model import ModelWorld, Setting, drive
from beadline.testing.model_world import NAME
from tests.unit.test_identity import die, refused, run


@pytest.mark.parametrize("held", [None, 0])
def test_a_target_was_set_back(held: int | None) -> None:
    """A backup was restored, or a replica took over that lagged behind."""
    world = ModelWorld()
    run(world, 2)
    seen = world.servers["ledger1"].seen
    newest = seen.pop(NAME)
    if held is not None:
        seen[NAME] = replace(newest, epoch=held, nonce="")
    has = "nothing of this query" if held is None else f"epoch {held}"
    back = rf"'ledger1' \(ledger1\) has acknowledged epoch 1 .* now holds {has}.*drop=.\"ledger1"
    with refused(world, back, CheckpointProblem):
        run(world, 3)
    with refused(world, back, CheckpointProblem):
        drive(world, drop=["parts0"], epochs=3)
    seen[NAME] = newest  # restored
    run(world, 3)
    world.check_end()


def test_a_target_that_was_set_back_is_taken_as_it_is() -> None:
    """Said once: the next start does not ask again, though nothing was decided in between."""
    world = ModelWorld()
    run(world, 2)
    world.servers["ledger1"].seen.clear()
    drive(world, drop=["ledger1"], epochs=2)
    run(world, 2)
    run(world, 3)
    world.check_end()


def test_a_target_that_was_set_back_behind_an_unfinished_decision() -> None:
    """What was decided and not yet finished is not missing."""
    world = ModelWorld()
    die(world, "decide.after", 2)
    run(world, 3)
    world.check_end()


def test_epochs_without_rows_leave_a_target_where_it_is() -> None:
    """A dead letter sink that is given nothing is behind, and has lost nothing."""
    world = ModelWorld(Setting(epochs=4, dead_letter="ledger"))
    for epochs in range(1, 5):
        run(world, epochs)
        if epochs == 2:
            assert world.servers["ledger-dead-letter"].seen[NAME].epoch == 0
    world.check_end()


def test_a_sink_that_was_moved_and_brought_nothing_yet_has_lost_nothing() -> None:
    """It is known where an epoch went only by the claim under which it was decided."""
    world = ModelWorld()
    run(world, 1)
    world.move("ledger1")
    for epochs in (1, 1, 3):
        run(world, epochs)
    assert len(world.servers["ledger1"].rows()) == 8


def test_a_sink_that_was_dropped_and_comes_back_has_lost_nothing() -> None:
    world = ModelWorld()
    die(world, "decide.after", 2)
    drive(world, names=["parts0"], drop=["ledger1"], epochs=2)
    for epochs in (2, 2, 3):
        run(world, epochs)
    assert sorted(world.servers["ledger1"].rows()) == sorted(world.rows(0) + world.rows(2))
