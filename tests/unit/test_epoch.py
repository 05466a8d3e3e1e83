"""The states of an epoch: every move that is not legal is a bug, found where it is made."""

from __future__ import annotations

import pytest

from beadline.protocol.epoch import MOVES, Epoch, State
from tests.model.model import Make, ModelBatch, ModelWorld, at_least_once, make_coordinator

LEGAL = {
    (State.PLANNED, State.PREPARED),
    (State.PLANNED, State.PUBLISHED),
    (State.PREPARED, State.DECIDED),
    (State.DECIDED, State.COMMITTED),
    (State.DECIDED, State.LOST),
    (State.LOST, State.DECIDED),
}


def epoch(state: State = State.PLANNED) -> Epoch:
    return Epoch(ModelBatch(ModelWorld(), 7), state)


@pytest.mark.parametrize("to", State)
@pytest.mark.parametrize("start", State)
def test_legal_moves_and_no_others(start: State, to: State) -> None:
    one = epoch(start)
    if (start, to) in LEGAL:
        one.move(to)
        assert one.state is to
    else:
        with pytest.raises(AssertionError, match="epoch 7 cannot go"):
            one.move(to)
        assert one.state is start


def test_every_state_says_what_may_follow() -> None:
    assert MOVES.keys() == set(State)


def test_every_state_is_reached() -> None:
    assert {State.PLANNED}.union(*MOVES.values()) == set(State)


def test_what_is_decided_ends_committed() -> None:
    """It is never aborted, nor prepared or published as if it were new."""
    reached, waiting = {State.DECIDED}, [State.DECIDED]
    while waiting:
        new = MOVES[waiting.pop()] - reached
        reached |= new
        waiting += new
    assert reached == {State.DECIDED, State.LOST, State.COMMITTED}


def test_the_way_of_an_epoch_with_a_lost_part() -> None:
    one = epoch()
    way = [State.PREPARED, State.DECIDED, State.LOST, State.DECIDED, State.COMMITTED]
    for state in way:
        one.move(state)
    assert one.state is State.COMMITTED


@pytest.mark.parametrize("of", [None, at_least_once], ids=["exactly-once", "at-least-once"])
def test_there_is_a_step_from_every_state_that_is_not_the_end(of: Make | None) -> None:
    steps = make_coordinator(ModelWorld(), of).steps
    assert steps.keys() == {state for state, moves in MOVES.items() if moves}


def test_a_decided_epoch_has_its_decision() -> None:
    with pytest.raises(AssertionError, match="without a decision"):
        _ = epoch(State.DECIDED).decided
