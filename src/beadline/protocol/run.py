"""One run of one query: what every step of the protocol receives and remembers."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from beadline.decisions import Decision, DecisionLog
from beadline.errors import LogProblem
from beadline.ids import PartId, QueryId
from beadline.observe import Event, Listener, ignore
from beadline.protocol import identity
from beadline.protocol.batch import Progress
from beadline.protocol.targets import Drop, is_since
from beadline.protocol.threads import Helpers, InOrder
from beadline.sink import BoundSink, Guarantee, Prepared

logger = logging.getLogger("beadline")


@dataclass
class Run:
    """From one start of a query to its end: one generation, if its claim succeeds.

    The claim sets ``query``, ``generation`` and ``drop``: what may be given up. ``version_ms`` is
    the newest version that a sink has seen. ``finished`` are the last two decisions that this run
    has finished. ``sources`` are those that an at-least-once run has read. ``in_epoch`` is held
    while an epoch is processed.
    """

    name: str
    checkpoint: str
    sinks: Sequence[BoundSink]
    log: DecisionLog
    progress: Progress
    mode: Guarantee = Guarantee.EXACTLY_ONCE
    helpers: Helpers = field(default_factory=InOrder)
    listener: Listener = ignore
    query: QueryId = field(init=False)
    drop: Drop = field(default_factory=lambda: Drop.parse(()), init=False)
    generation: int = field(default=0, init=False)
    version_ms: int = field(default=0, init=False)
    finished: list[Decision] = field(default_factory=list, init=False)
    finished_at_ms: int | None = field(default=None, init=False)
    sources: dict[str, str] = field(default_factory=dict, init=False)
    in_epoch: threading.Lock = field(default_factory=threading.Lock, init=False)

    @property
    def decides(self) -> bool:
        """Whether epochs are decided; at-least-once publishes them instead."""
        return self.mode is Guarantee.EXACTLY_ONCE

    def prepares(self, sink: BoundSink) -> bool:
        """Whether a sink prepares parts in this mode, or publishes them at once."""
        return self.decides or not sink.capabilities.publishes

    @staticmethod
    def now_ms() -> int:
        """The wall clock, for people and for versions; no decision depends on it."""
        return time.time_ns() // 1_000_000

    def unfinished(self) -> Decision | None:
        """Return the newest decision if Spark may still redeliver its epoch."""
        return identity.unfinished(self.log.state, self.progress)

    def left_open(self) -> Decision | None:
        """Return the same unless this run has seen every sink commit it."""
        pending = self.unfinished()
        return None if pending in self.finished else pending

    def meaning_between(self) -> str:
        """Return what an error means between two calls of Spark, or after one that failed."""
        pending = self.left_open()
        if pending is None:
            return identity.meaning_between(self.log.state)
        return identity.meaning_decided(pending.epoch)

    def parts(self, decision: Decision, sink: BoundSink) -> list[Prepared[Any]]:
        """Return one sink's parts as the log holds them, so that commit never needs memory."""
        parts = []
        for part in decision.sinks.get(sink.name, ()):
            id_ = decision.part_id(self.query, sink.name, part)
            try:
                committable = sink.sink.committable.from_json(part.committable)
            except (ValueError, TypeError, KeyError) as error:
                raise LogProblem(
                    f"query {self.name!r}, epoch {decision.epoch}, sink {sink.name!r}, part "
                    f"{part.partition}: its committable cannot be read: {error}. The epoch stays "
                    "decided and nothing was changed; start with the Beadline version that wrote "
                    "it."
                ) from error
            parts.append(Prepared(id_, part.rows, committable, part.checksum))
        return parts

    def kept(self, decision: Decision) -> list[BoundSink]:
        """Return our sinks that a decision lists and that have not given it up.

        There may be another sink under the same name now, which knows nothing of it.
        """
        dropped = identity.given_up(self.log.state, decision)
        return [
            sink
            for sink in self.sinks
            if sink.name in decision.sinks
            and sink.name not in dropped
            and decision.is_of_kind(sink.name, sink.kind)
            and is_since(self.log.state, sink, decision.epoch)
        ]

    def note_finished(self, decision: Decision) -> None:
        """Remember that every sink has committed an epoch, and report it."""
        self.finished = [*self.finished[-1:], decision]
        self.finished_at_ms = self.now_ms()
        rows = {
            sink.name: sum(part.rows for part in decision.sinks.get(sink.name, ()))
            for sink in self.kept(decision)  # one that was dropped got none
        }
        self.tell("committed", decision.epoch, rows=rows)

    def decided_parts(self) -> dict[str, tuple[PartId, ...]]:
        """Return the ids last decided and finished, by sink: what a long-lived writer must know."""
        return {
            sink.name: tuple(part.id for d in self.finished for part in self.parts(d, sink))
            for sink in self.sinks
        }

    def tell(self, kind: str, epoch: int | None = None, **details: Any) -> None:
        """Tell the listener; its errors must not affect the epoch."""
        event = Event(kind, self.name, self.generation, epoch, details)
        logger.info("%s", event)
        try:
            self.listener(event)
        except Exception:
            logger.exception("a listener failed on %s", event)
