"""The coordinator: the whole protocol on one screen.

    start      claim the log → sweep orphans → finish the newest decision
    run_epoch  prepare → decide → commit → return, or finish what was decided before

Kill the process between any two lines and the next start ends in the same place.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Collection, Sequence
from typing import Any

from beadline.decisions import Decision, DecisionLog
from beadline.errors import BeadlineError, CheckpointProblem, Fenced, WrongCheckpoint
from beadline.ids import QueryId
from beadline.observe import Event, Listener, ignore
from beadline.points import reach
from beadline.protocol import identity, replay
from beadline.protocol.commit import Helpers, InOrder, Lost, commit, parts_of
from beadline.protocol.decide import Times, decide, rows_of, stored
from beadline.protocol.engine import Acks, Batch, Progress
from beadline.protocol.epoch import EpochProgress, State
from beadline.protocol.prepare import prepare
from beadline.protocol.recover import claim, open_sinks, sweep
from beadline.protocol.targets import (
    Drop,
    Found,
    check_targets,
    epochs_text,
    is_since,
    previous_epochs,
)
from beadline.sink import BoundSink, Prepared

logger = logging.getLogger("beadline")

CLAIM_TRIES_MAX = 100
SWEEP_EVERY_S = 30.0


def now_ms() -> int:
    """The wall clock, for people; nothing is decided by it."""
    return time.time_ns() // 1_000_000


class Coordinator:
    """One start of one query: triggers, collects acks, decides, notifies."""

    mode = identity.EXACTLY_ONCE
    query: QueryId

    def __init__(
        self,
        name: str,
        checkpoint: str,
        sinks: Sequence[BoundSink],
        log: DecisionLog,
        progress: Progress,
        helpers: Helpers | None = None,
        listener: Listener = ignore,
    ) -> None:
        """Nothing is read or written before ``start``."""
        self.name = name
        self.checkpoint = checkpoint
        self.sinks = list(sinks)
        self.log = log
        self.progress = progress
        self.helpers = helpers or InOrder()
        self.listener = listener
        self.generation = 0
        self.finished_at_ms: int | None = None
        self.version_ms = 0  # the newest that a sink has seen, by an earlier start's clock
        self.lost: Lost = {}
        self.finished: list[Decision] = []  # the last two of this generation
        self.running = threading.Lock()
        self.losers = False
        self.swept_at_s = time.monotonic()
        self.sources: dict[str, str] = {}

    def start(self, drop: Collection[str] = ()) -> None:
        """Claim, finish, sweep: everything that must be settled before Spark runs."""
        pending = self.claim(drop)
        open_sinks(self.query, self.mode, self.sinks)
        # First the orphans: readers are held up by them, and finishing may have to wait.
        self.sweep_older()
        if pending is not None:
            reach("recover.before")
            self.give_up_stuck(pending, Drop.parse(drop).names)
            self.lost = self.commit(pending, self.kept(pending))
            self.tell("recovered", pending.epoch, lost=sorted(self.lost))
            reach("recover.after")
        reach("start.after")

    def claim(self, drop: Collection[str] = ()) -> Decision | None:
        """Take the log over; return the decision that may be unfinished.

        A slot lost to a driver that still decides is no defeat: look again and take the next. Nor
        is a disagreement between what was read before and after that driver moved on.
        """
        for _ in range(CLAIM_TRIES_MAX):
            state = self.log.open()
            before = self.progress.last_committed()
            try:
                self.query = identity.identify(state, self.progress, self.name, self.checkpoint)
                identity.check_progress(state, self.progress)
                self.version_ms = identity.check_seen(self.query, state, self.progress, self.sinks)
                sources = self.progress.sources()
                identity.check_sources(self.name, state, sources)
                pending = identity.unfinished(state, self.progress)
                settled = max(identity.settled_epoch(state), before)
                found = check_targets(self.query, state, pending, settled, self.sinks, drop)
            except CheckpointProblem:
                if self.log.moved() or self.progress.last_committed() != before:
                    continue
                raise
            base = self.progress.last_committed()
            try:
                self.generation = claim(
                    self.log, self.query, self.mode, self.sinks, base, found, sources, now_ms()
                )
            except Fenced:
                continue
            self.tell_found(found, pending)
            return pending
        raise Fenced(
            f"query {self.name!r}: {CLAIM_TRIES_MAX} times in a row somebody else took the next "
            "slot of the decision log. Another driver of this query is running: stop it first."
        )

    def give_up_stuck(self, pending: Decision, names: Collection[str]) -> None:
        """Give up, for the sinks that ``drop=`` names, a decided epoch that cannot be committed.

        It is tried first, so that nothing is given up which can be shown. The claim that says so
        is a new one: whoever comes after us must know it too.
        """
        named = [sink for sink in self.kept(pending) if sink.name in names]
        if stuck := [sink.name for sink in named if not self.can_commit(pending, sink)]:
            self.claim([f"{name}@{pending.epoch}" for name in stuck])
            self.sweep_older()

    def can_commit(self, decision: Decision, sink: BoundSink) -> bool:
        """Whether a sink takes a decided epoch, now or by a replay."""
        try:
            lost = self.commit(decision, [sink])
        except Fenced:
            raise
        except BeadlineError as error:
            logger.warning("query %s: sink %s is stuck: %s", self.name, sink.name, error)
            return False
        return all(part.checksum is not None for part in lost.get(sink.name, ()))

    def tell_found(self, found: Found, pending: Decision | None) -> None:
        """Say from where each sink has rows, and which it will never have; rows do not show it."""
        here = [one for one in found.histories if one.until is None]
        lacks = {one.name: epochs_text(one.missing) for one in here if one.missing}
        self.tell("claimed", since={one.name: one.since for one in here}, lacks=lacks)
        for name, epoch in found.added.items():
            self.tell("added", epoch, sink=name)
            logger.warning(
                "query %s: sink %s is new and has rows from epoch %s on; those of earlier epochs "
                "are not in it",
                *(self.name, name, epoch),
            )
        for name, target in found.removed.items():
            self.tell("removed", sink=name)
            logger.warning(
                "query %s: sink %s (%s) is not among the sinks any more. If a crash left something "
                "prepared there, it is aborted only where another sink of this query uses the same "
                "system: else start once more with that sink",
                *(self.name, name, target),
            )
        for name, spans in found.given_up.items():
            epochs = epochs_text(spans)
            self.tell("dropped", pending.epoch if pending else None, sink=name, epochs=epochs)
            logger.warning(
                "query %s: sink %s lacks the rows of %s for good: they were given up by drop=",
                *(self.name, name, epochs),
            )

    def run_epoch(self, batch: Batch) -> None:
        """Carry one epoch through. Returns only after every sink has committed (rule 11)."""
        with self.running:
            self.run_one(batch)

    def run_one(self, batch: Batch) -> None:
        """The same, while nothing else sweeps."""
        reach("epoch.begin")
        decision = self.log.state.decision
        if decision is not None and decision.epoch == batch.number:
            self.finish_again(decision, batch)
        else:
            self.expect_next(batch.number)
            self.sweep_losers()
            self.run_undecided(batch)
            self.sweep_behind()
        reach("epoch.return")

    def run_undecided(self, batch: Batch) -> None:
        """The normal case: prepare, decide, commit."""
        self.log.check_newest()  # or our writers would take the names of a newer start's
        progress = EpochProgress(batch.number)
        started = now_ms()
        acks = self.prepare(batch, self.sinks)
        progress.move(State.PREPARED)
        decision = self.decide(batch, acks, started)
        progress.move(State.DECIDED)
        self.finish(decision, batch, progress)

    def finish_again(self, decision: Decision, batch: Batch) -> None:
        """Spark redelivered a decided epoch: finish it, and let its state move on (rule 16)."""
        identity.check_offsets(decision, batch.offsets())
        reach("epoch.again")
        progress = EpochProgress(batch.number, State.DECIDED)
        replayed = self.finish(decision, batch, progress)
        if not replayed:
            batch.advance_state()

    def finish(self, decision: Decision, batch: Batch, progress: EpochProgress) -> bool:
        """Commit until nothing is lost; return whether parts had to be computed again."""
        lost, self.lost = self.lost, {}
        lost = lost or self.commit(decision, self.kept(decision))
        replays = 0
        while lost:
            progress.move(State.LOST)
            replays += 1
            decision = replay.replay(self, decision, batch, lost, replays)
            progress.move(State.DECIDED)
            lost = self.commit(decision, self.kept(decision))
        progress.move(State.COMMITTED)
        self.finished = [*self.finished[-1:], decision]
        self.finished_at_ms = now_ms()
        self.tell("committed", decision.epoch, rows=rows_of(decision, self.kept(decision)))
        return replays > 0

    def prepare(
        self, batch: Batch, sinks: Sequence[BoundSink], again: bool = False
    ) -> dict[str, Acks]:
        """Every sink's parts, durable and invisible; on failure what was prepared is swept.

        When an epoch is prepared again, writers are told nothing of what was decided, so that none
        goes on under a name that the decision has: its late commit would be ours (rule 17).
        """
        decided = {} if again else self.decided_parts()
        try:
            acks = prepare(batch, sinks, self.query, self.generation, decided)
            self.check_sources(batch.number)
        except Exception:
            self.losers = True
            self.sweep_quietly()  # or the next start does; what failed first is what counts
            raise
        self.losers = self.losers or any(ack.extra_attempts for ack in acks.values())
        self.tell("prepared", batch.number, acks={n: len(a.prepared) for n, a in acks.items()})
        return acks

    def decide(self, batch: Batch, acks: dict[str, Acks], started_at_ms: int) -> Decision:
        """The one durable append of the epoch."""
        parts = {name: stored(ack) for name, ack in acks.items()}
        count = max((ack.parts for ack in acks.values()), default=0)
        at_ms = max(now_ms(), self.version_ms + 1)
        times = Times(started_at_ms, now_ms(), at_ms, self.finished_at_ms)
        previous = previous_epochs(self.log.state, self.sinks)
        known = self.log.state.claim.sources if self.log.state.claim else {}
        sources = {name: one for name, one in self.sources.items() if name not in known}
        kinds = {sink.name: sink.kind for sink in self.sinks}
        decision = decide(
            self.log, batch, self.generation, parts, count, times, previous, sources, kinds
        )
        self.tell("decided", decision.epoch, nonce=decision.nonce)
        return decision

    def check_sources(self, epoch: int) -> None:
        """What was read must still be what the offsets were counted in; asked after reading."""
        now = self.progress.sources()
        meaning = f"Nothing of epoch {epoch} is decided or shown; earlier epochs are complete."
        identity.check_sources(self.name, self.log.state, now, meaning)
        self.sources = {**identity.known_sources(self.log.state), **now}

    def commit(self, decision: Decision, sinks: Sequence[BoundSink]) -> Lost:
        """Every sink at once; what comes back is proven lost."""
        previous = previous_epochs(self.log.state, sinks, of_newest=True)
        return commit(decision, self.query, sinks, previous, self.helpers)

    def sweep_losers(self) -> None:
        """Abort what lost a race of attempts; between two epochs nothing of ours is in doubt.

        Now and then all the same: an attempt that a retried stage left behind is in no ack.
        """
        if self.losers or time.monotonic() - self.swept_at_s > SWEEP_EVERY_S:
            self.sweep(lambda part: part.id.generation <= self.generation)
            self.losers = False
            self.swept_at_s = time.monotonic()

    def sweep_quietly(self) -> None:
        """The same, where another sweep follows."""
        try:
            self.sweep_losers()
        except BeadlineError:
            logger.exception("query %s: a sweep failed", self.name)

    def sweep_behind(self) -> None:
        """At once, for readers are held up by losers; again before the next epoch, for the slow."""
        if self.losers:
            self.sweep_quietly()
            self.losers = True

    def sweep_older(self) -> None:
        """Abort what older generations left."""
        self.sweep(lambda part: part.id.generation < self.generation)

    def sweep_later(self) -> None:
        """Again a little later, for tasks that died slowly; not beside an epoch that runs."""
        if not self.running.acquire(blocking=False):
            self.losers = True  # the next epoch sweeps before it begins
            return
        try:
            self.sweep_older()
        finally:
            self.running.release()

    def close(self) -> None:
        """After a clean stop: nothing stays open, unless a newer start has taken over."""
        self.sweep(lambda part: part.id.generation <= self.generation)
        pending = identity.unfinished(self.log.state, self.progress)
        if pending is not None and pending not in self.finished:
            return  # decided and not finished: what is open of it must stay so
        for sink in self.sinks:
            if (end_writers := sink.sink.close(self.query, sink.name)) is not None:
                self.log.check_newest()  # or they may be a newer start's
                end_writers()

    def sweep(self, wanted: Any) -> None:
        """Abort wanted parts in doubt, never one that the newest decision names."""
        self.log.check_newest()  # what is in doubt now may be a newer generation's
        decision = self.log.state.decision
        ids, named = set(), []
        if decision is not None:
            dropped = identity.given_up(self.log.state, decision)
            ids = {i for i in decision.part_ids(self.query) if i.sink not in dropped}
            named = [p for sink in self.kept(decision) for p in self.parts(decision, sink)]
        if count := sweep(self.query, self.sinks, ids, named, wanted, self.helpers):
            self.tell("swept", orphans=count)

    def parts(self, decision: Decision, sink: BoundSink) -> list[Prepared[Any]]:
        """One sink's parts in a decision."""
        return parts_of(decision, self.query, sink)

    def decided_parts(self) -> dict[str, tuple[Any, ...]]:
        """The ids decided and finished last, by sink: what a long-lived writer needs to know."""
        return {
            sink.name: tuple(p.id for d in self.finished for p in self.parts(d, sink))
            for sink in self.sinks
        }

    def kept(self, decision: Decision) -> list[BoundSink]:
        """The sinks of ours that a decision was made for, and that have not given it up.

        Under the same name there may be another one now, which knows nothing of it.
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

    def expect_next(self, epoch: int) -> None:
        """Epochs are dense: a gap means that somebody else moved the checkpoint."""
        settled = identity.settled_epoch(self.log.state)
        if epoch != settled + 1:
            self.log.check_newest()
            raise WrongCheckpoint(
                f"Spark gave epoch {epoch}, but the decision log is at {settled}: the checkpoint "
                f"of query {self.query.name!r} was changed while it ran. Nothing was written."
            )

    def tell(self, kind: str, epoch: int | None = None, **details: Any) -> None:
        """Tell whoever listens; what goes wrong there must not touch the epoch."""
        event = Event(kind, self.query.name, self.generation, epoch, details)
        logger.info("%s", event)
        try:
            self.listener(event)
        except Exception:
            logger.exception("a listener failed on %s", event)
