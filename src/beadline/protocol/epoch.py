"""The states of an epoch and the legal moves between them. Pure: no I/O, no clock.

The state says which step comes next (``coordinator.Coordinator.steps``), so an epoch that a crash
has left decided, or with lost parts, is carried on from there like any other.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass, field
from typing import Any

from beadline.decisions import Decision
from beadline.protocol.batch import Acks, Batch
from beadline.sink import Prepared

Lost = dict[str, list[Prepared[Any]]]  # by sink, what is proven lost


class State(enum.Enum):
    """Where an epoch is."""

    PLANNED = "planned"
    PREPARED = "prepared"
    DECIDED = "decided"
    LOST = "lost"
    COMMITTED = "committed"
    PUBLISHED = "published"


MOVES: dict[State, frozenset[State]] = {
    State.PLANNED: frozenset({State.PREPARED, State.PUBLISHED}),
    State.PREPARED: frozenset({State.DECIDED}),
    State.DECIDED: frozenset({State.COMMITTED, State.LOST}),
    State.LOST: frozenset({State.DECIDED}),  # replayed: decided again with other committables
    State.COMMITTED: frozenset(),
    State.PUBLISHED: frozenset(),
}


@dataclass
class Epoch:
    """One epoch on its way, and what the steps so far have brought.

    An epoch that fails before it is decided has no state for it: it ends with the error, what it
    prepared is swept, and Spark redelivers it.
    """

    batch: Batch
    state: State = State.PLANNED
    decision: Decision | None = None
    lost: Lost = field(default_factory=dict)
    started_at_ms: int = 0
    acks: dict[str, Acks] = field(default_factory=dict)
    sources: dict[str, str] = field(default_factory=dict)  # which instance of each was read
    replays: int = 0

    @property
    def number(self) -> int:
        """Spark's batch id."""
        return self.batch.number

    @property
    def decided(self) -> Decision:
        """The decision, in a state that has one."""
        assert self.decision is not None, f"epoch {self.number} is {self.state}, without a decision"
        return self.decision

    def move(self, to: State) -> None:
        """Go to the next state. An illegal move is a bug of the protocol, found here."""
        if to not in MOVES[self.state]:
            raise AssertionError(f"epoch {self.number} cannot go from {self.state} to {to}")
        self.state = to
