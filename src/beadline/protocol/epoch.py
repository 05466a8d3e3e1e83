"""The states of an epoch and the legal moves between them. Pure: no I/O, no clock."""

from __future__ import annotations

import enum
from dataclasses import dataclass


class State(enum.Enum):
    """Where an epoch is."""

    PLANNED = "planned"
    PREPARED = "prepared"
    DECIDED = "decided"
    COMMITTED = "committed"
    ABORTED = "aborted"
    LOST = "lost"


MOVES: dict[State, frozenset[State]] = {
    State.PLANNED: frozenset({State.PREPARED, State.ABORTED}),
    State.PREPARED: frozenset({State.DECIDED, State.ABORTED}),
    State.DECIDED: frozenset({State.COMMITTED, State.LOST}),
    State.LOST: frozenset({State.DECIDED}),  # replayed: decided again with other committables
    State.COMMITTED: frozenset(),
    State.ABORTED: frozenset(),
}


@dataclass
class EpochProgress:
    """One epoch on its way. An illegal move is a bug of the protocol, found here."""

    number: int
    state: State = State.PLANNED

    def move(self, to: State) -> None:
        """Go to the next state, if that is legal."""
        if to not in MOVES[self.state]:
            raise AssertionError(f"epoch {self.number} cannot go from {self.state} to {to}")
        self.state = to
