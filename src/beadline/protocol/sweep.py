"""Sweep: parts in doubt that were never decided are aborted (presumed abort).

There are four kinds of leftovers. Older generations leave what they had prepared when they died. A
task attempt that lost its race, or that a retried stage left behind, is in no ack. A prepare that
failed leaves what it had made. And a sink that was removed from the query, or moved to another
target, leaves parts that only the other sinks of the query will look for (rule 27).
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from functools import partial
from typing import Any, TypeVar

from beadline.errors import BeadlineError, CommitFailed, UsageError, without_meaning
from beadline.protocol import identity
from beadline.protocol.run import Run
from beadline.sink import BoundSink, Prepared

logger = logging.getLogger("beadline")

SWEEP_EVERY_S = 30.0
PartTest = Callable[[Prepared[Any]], bool]
T = TypeVar("T")


class Sweeper:
    """Aborts what one run finds in doubt. ``due`` says that there may be something to abort."""

    def __init__(self, run: Run) -> None:
        """Nothing is looked at before the claim."""
        self.run = run
        self.due = False
        self._swept_at_s = time.monotonic()

    def expect(self) -> None:
        """Parts that no ack names may be in doubt: the next epoch begins with a sweep."""
        self.due = True

    def before_epoch(self) -> None:
        """Abort losing attempts; between two epochs nothing of ours is in doubt.

        Also now and then without a reason: an attempt that a retried stage left behind is in no
        ack.
        """
        if self.due or time.monotonic() - self._swept_at_s > SWEEP_EVERY_S:
            self.sweep_ours()
            self.due = False
            self._swept_at_s = time.monotonic()

    def after_epoch(self) -> None:
        """At once, as open parts hold readers up; again before the next epoch, for late tasks."""
        if self.due:
            self._quietly()
            self.due = True

    def after_failure(self) -> None:
        """What was prepared will not be decided. If this fails too, the next start sweeps."""
        self.due = True
        self._quietly()

    def later(self) -> None:
        """Abort older generations' parts again, for late tasks (rule 7); not during an epoch."""
        if not self.run.in_epoch.acquire(blocking=False):
            self.expect()
            return
        try:
            self.sweep_older()
        finally:
            self.run.in_epoch.release()

    def sweep_older(self) -> None:
        """Abort what older generations left."""
        self.sweep(lambda part: part.id.generation < self.run.generation)

    def sweep_ours(self) -> None:
        """Abort what this and older generations left; not while our own tasks prepare."""
        self.sweep(lambda part: part.id.generation <= self.run.generation)

    def sweep(self, wanted: PartTest) -> None:
        """Abort wanted parts in doubt, never one that the newest decision names.

        Only after our own claim holds a slot: before that, another driver may decide a part in
        doubt the moment after we looked.
        """
        run = self.run
        run.log.check_newest()  # what is in doubt now may be a newer generation's
        is_decided = self._decided()
        listed: dict[str, list[Prepared[Any]]] = {}

        def abort(sink: BoundSink, is_orphan: PartTest) -> int:
            found = [part for part in listed[sink.name] if wanted(part) and not is_decided(part)]
            orphans = [part for part in found if is_orphan(part)]
            if orphans:
                self._ask(sink, lambda: sink.sink.abort(orphans))
            return len(orphans)

        def its_own(sink: BoundSink) -> int:
            doubted = self._ask(sink, lambda: list(sink.sink.in_doubt(run.query, sink.name)))
            listed[sink.name] = doubted
            return abort(sink, lambda part: part.id.sink == sink.name)

        def left_to_nobody(part: Prepared[Any]) -> bool:
            listed_there = listed.get(part.id.sink, ())
            # Also by the committable itself: its id may be known to only one of two sinks.
            return part.id not in ids and not any(
                part.committable.is_same(one.committable) for one in listed_there
            )

        # Each aborts its own first. For a name that is gone, or has another target by now, orphans
        # are those that no sink of that name has listed (rule 27).
        count = sum(run.helpers.run_all([partial(its_own, sink) for sink in run.sinks]))
        ids = {part.id for name, parts in listed.items() for part in parts if part.id.sink == name}
        others = [partial(abort, sink, left_to_nobody) for sink in run.sinks]
        count += sum(run.helpers.run_all(others))
        if count:
            run.tell("swept", orphans=count)

    def _ask(self, sink: BoundSink, act: Callable[[], T]) -> T:
        """Run a call that needs the sink's system; an error says that the sweep failed."""
        try:
            return act()
        except UsageError as error:
            raise self._failed(sink, without_meaning(str(error))) from error
        except BeadlineError:
            raise
        except Exception as error:
            raise self._failed(sink, f"{type(error).__name__}: {error}") from error

    def _failed(self, sink: BoundSink, why: str) -> CommitFailed:
        return CommitFailed(
            f"query {self.run.name!r}, sink {sink.name!r}: sweeping orphans failed: {why}. Nothing "
            "decided is affected; start again when the system behind the sink answers."
        )

    def _decided(self) -> PartTest:
        """Return whether the newest decision names a part in doubt."""
        run, decision = self.run, self.run.log.state.decision
        if decision is None:
            return lambda part: False
        dropped = identity.given_up(run.log.state, decision)
        ids = {id_ for id_ in decision.part_ids(run.query) if id_.sink not in dropped}
        named = [part for sink in run.kept(decision) for part in run.parts(decision, sink)]
        # A sink may be unable to tell which part it is, and still name the thing itself.
        return lambda part: (
            part.id in ids or any(part.committable.is_same(one.committable) for one in named)
        )

    def _quietly(self) -> None:
        """Sweep where another sweep follows: the error that came first is the one to report."""
        try:
            self.before_epoch()
        except BeadlineError:
            logger.exception("query %s: a sweep failed", self.run.name)
