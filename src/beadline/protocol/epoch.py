"""The states of an epoch and the legal moves between them. Pure: no I/O, no clock.

The state says which step comes next (``coordinator.Coordinator.steps``), so an epoch that a crash
left decided, or with lost parts, continues from there like any other.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass, field
from typing import Any

from beadline.decisions import Decision
from beadline.protocol.batch import Acks, Batch
from beadline.sink import Prepared

Lost = dict[str, list[Prepared[Any]]]  # by sink, the parts that are proven lost


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
    """One epoch in progress, and the results of the steps so far.

    There is no state for an epoch that fails before it is decided: it ends with the error, its
    prepared parts are swept, and Spark redelivers it.
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
        """Go to the next state. An illegal move is a bug in the protocol, caught here."""
        if to not in MOVES[self.state]:
            raise AssertionError(f"epoch {self.number} cannot go from {self.state} to {to}")
        self.state = to
