"""The states of an epoch: every move that is not legal is a bug, found where it is made."""

from __future__ import annotations

import pytest

from beadline.protocol.epoch import MOVES, EpochProgress, State

LEGAL = {
    (State.PLANNED, State.PREPARED),
    (State.PLANNED, State.ABORTED),
    (State.PREPARED, State.DECIDED),
    (State.PREPARED, State.ABORTED),
    (State.DECIDED, State.COMMITTED),
    (State.DECIDED, State.LOST),
    (State.LOST, State.DECIDED),
}


@pytest.mark.parametrize("to", State)
@pytest.mark.parametrize("start", State)
def test_legal_moves_and_no_others(start: State, to: State) -> None:
    progress = EpochProgress(7, start)
    if (start, to) in LEGAL:
        progress.move(to)
        assert progress.state is to
    else:
        with pytest.raises(AssertionError, match="epoch 7 cannot go"):
            progress.move(to)
        assert progress.state is start


def test_every_state_says_what_may_follow() -> None:
    assert MOVES.keys() == set(State)


def test_what_is_decided_is_never_aborted() -> None:
    reached, waiting = {State.DECIDED}, [State.DECIDED]
    while waiting:
        new = MOVES[waiting.pop()] - reached
        reached |= new
        waiting += new
    assert State.ABORTED not in reached
    assert State.COMMITTED in reached


def test_the_way_of_an_epoch_with_a_lost_part() -> None:
    progress = EpochProgress(0)
    way = [State.PREPARED, State.DECIDED, State.LOST, State.DECIDED, State.COMMITTED]
    for state in way:
        progress.move(state)
    assert progress.state is State.COMMITTED
