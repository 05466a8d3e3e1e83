"""What the protocol needs of the engine that runs it: Spark, or a model of it in tests."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Protocol

from beadline.dead_letter import RefusedRow
from beadline.ids import PartId, QueryId
from beadline.sink import BoundSink, Part, Prepared


@dataclass(frozen=True)
class Ticket:
    """What every part of one sink in one epoch has in common."""

    query: QueryId
    generation: int
    epoch: int
    sink: str
    decided: tuple[PartId, ...] = ()

    def to_text(self) -> str:
        """Return the form in which it travels to an executor."""
        decided = [str(part) for part in self.decided]
        return json.dumps({**vars(self), "query": vars(self.query), "decided": decided})

    @classmethod
    @lru_cache(maxsize=8)
    def from_text(cls, text: str) -> Ticket:
        """Read that form, once for all the parts of an epoch that a worker prepares."""
        fields = json.loads(text)
        parts = (PartId.parse(part) for part in fields.pop("decided"))
        decided = tuple(part for part in parts if part is not None)
        return cls(query=QueryId(**fields.pop("query")), decided=decided, **fields)

    def part(self, partition: int, attempt: int) -> Part:
        """Return the part of one attempt at one partition."""
        name, incarnation = self.query.name, self.query.incarnation
        numbers = (self.generation, self.epoch, partition, attempt)
        return Part(PartId(name, incarnation, self.sink, *numbers), self.decided)


@dataclass(frozen=True)
class Acks:
    """The result of preparing or publishing one sink: one ack per partition.

    ``parts`` counts the partitions, also those with nothing to write. ``extra_attempts`` says that
    some task may have run more than once, so that losing attempts may have left parts. ``refused``
    are the rows that the sink did not take, by partition and then in its own order. ``published``
    counts the rows that are visible already. ``tags`` are those of the shared rows that the sink
    was given, by partition: a random number, drawn again each time a partition is computed. Sinks
    whose tags differ may have been given different rows. None where the rows are not shared.
    """

    prepared: tuple[Prepared[Any], ...]
    parts: int
    extra_attempts: bool = False
    refused: tuple[RefusedRow, ...] = ()
    published: int = 0
    tags: Mapping[int, int] | None = None

    @property
    def rows(self) -> int:
        """How many rows the sink took."""
        return self.published + sum(part.rows for part in self.prepared)


class Batch(Protocol):
    """The rows of one epoch.

    A sink is given the epoch's rows or, if ``refused`` is given, those instead, as one part.
    """

    @property
    def number(self) -> int:
        """The epoch's number: Spark's batch id."""

    def offsets(self) -> str:
        """Return the digest of the source positions written ahead for this epoch."""

    def settings(self) -> dict[str, str]:
        """Return the settings that decide how the rows are divided into parts."""

    def event_time(self) -> dict[str, Any]:
        """Return what people want to know about watermarks once rows are computed, or nothing."""

    def sharing(self, sinks: int) -> AbstractContextManager[None]:
        """Compute the rows once for all sinks; with several, acks of ``prepare`` have tags."""

    def run_prepare(
        self, sink: BoundSink, ticket: Ticket, refused: Sequence[RefusedRow] | None = None
    ) -> Acks:
        """Run the sink's ``prepare`` on every part."""

    def run_publish(
        self, sink: BoundSink, ticket: Ticket, refused: Sequence[RefusedRow] | None = None
    ) -> Acks:
        """Run the sink's ``publish`` on every part."""

    def reason(self, error: Exception) -> str:
        """Say in one line what went wrong: the engine can interpret its own errors."""

    def advance_state(self) -> None:
        """Run a stateful plan, only to advance its state; do nothing if it is stateless."""


class Progress(Protocol):
    """What the engine's own checkpoint says."""

    def last_committed(self) -> int:
        """Return the last epoch that the engine never redelivers; -1 for none."""

    def offsets(self, epoch: int) -> str | None:
        """Return the digest of an epoch's source positions, or None if it was never planned."""

    def sources(self) -> dict[str, str]:
        """Return which instance of each source is read now: a topic's id, by the topic's name.

        Asked at each start and before each decision, so it must be quick. A source without
        instances is left out; one that cannot be asked raises.
        """
