"""Commit: every sink makes its parts of a decided epoch visible; unknown is asked until known."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Protocol, TypeVar

from beadline.decisions import Decision
from beadline.errors import BeadlineError, CommitFailed, LogProblem, TargetRestored
from beadline.ids import EpochId, QueryId
from beadline.points import reach
from beadline.sink import BoundSink, Outcome, Prepared

logger = logging.getLogger("beadline")

T = TypeVar("T")
_BACK_OFF_S = (0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0)
Lost = dict[str, list[Prepared[Any]]]


class Helpers(Protocol):
    """How the protocol runs several things at once, off the thread that Spark may interrupt."""

    def run_all(self, calls: Sequence[Callable[[], T]]) -> list[T]:
        """Run every call to its end, then return the results or raise the first error."""

    def stopping(self) -> bool:
        """Whether somebody wants the query to end."""


class InOrder:
    """Runs calls one after the other, for model tests."""

    def run_all(self, calls: Sequence[Callable[[], T]]) -> list[T]:
        """Run the calls in order."""
        return [call() for call in calls]

    def stopping(self) -> bool:
        """Never."""
        return False


class Threads:
    """Runs calls on threads of Beadline's own."""

    def __init__(self, stopping: Callable[[], bool] = lambda: False) -> None:
        """``stopping`` is asked while an unknown outcome is waited for."""
        self.stopping = stopping
        self._pool = ThreadPoolExecutor(max_workers=16, thread_name_prefix="beadline")

    def run_all(self, calls: Sequence[Callable[[], T]]) -> list[T]:
        """Run the calls at once; every one ends before the first error is raised."""
        futures = [self._pool.submit(call) for call in calls]
        for future in futures:
            future.exception()
        return [future.result() for future in futures]

    def close(self) -> None:
        """End the threads."""
        self._pool.shutdown(wait=False)


def parts_of(decision: Decision, query: QueryId, sink: BoundSink) -> list[Prepared[Any]]:
    """Return one sink's parts as the log holds them, so that commit never needs memory."""
    parts = []
    for part in decision.sinks.get(sink.name, ()):
        id_ = decision.part_id(query, sink.name, part)
        try:
            committable = sink.sink.committable.from_json(part.committable)
        except (ValueError, TypeError, KeyError) as error:
            raise LogProblem(
                f"query {query.name!r}, epoch {decision.epoch}, sink {sink.name!r}, part "
                f"{part.partition}: its committable cannot be read: {error}. The epoch stays "
                "decided and nothing was touched; start with the Beadline that wrote it."
            ) from error
        parts.append(Prepared(id_, part.rows, committable, part.checksum))
    return parts


def epoch_id(decision: Decision, query: QueryId, previous: int = -1) -> EpochId:
    """Return the identity under which a decision's parts are committed to one sink."""
    return EpochId(query, decision.epoch, decision.nonce, decision.at_ms, previous)


def commit(
    decision: Decision,
    query: QueryId,
    sinks: Sequence[BoundSink],
    previous: Mapping[str, int],
    helpers: Helpers,
) -> Lost:
    """Commit every sink at once; return the parts that are proven lost, by sink.

    ``previous`` is what each sink must hold by now (rule 25).
    """

    def one(sink: BoundSink) -> tuple[str, list[Prepared[Any]]]:
        epoch = epoch_id(decision, query, previous.get(sink.name, -1))
        lost = commit_sink(sink, epoch, parts_of(decision, query, sink), helpers)
        reach("commit.between")
        return sink.name, lost

    named = [sink for sink in sinks if decision.sinks.get(sink.name)]
    results = helpers.run_all([lambda sink=sink: one(sink) for sink in named])  # type: ignore[misc]
    lost = {name: parts for name, parts in results if parts}
    if not lost:
        reach("commit.after")
    return lost


def commit_sink(
    sink: BoundSink, epoch: EpochId, parts: list[Prepared[Any]], helpers: Helpers
) -> list[Prepared[Any]]:
    """Commit one sink until every outcome is known; return what is lost."""
    lost: list[Prepared[Any]] = []
    asked = 0
    while True:
        try:
            result = sink.sink.commit(epoch, parts)
        except TargetRestored as error:
            raise TargetRestored(
                f"sink {sink.name!r} ({sink.capabilities.target}), {error}; or give its missing "
                f'rows up with start(..., drop=["{sink.name}"]), once.'
            ) from error
        except BeadlineError:
            raise
        except Exception as error:
            raise _failed(sink, epoch, f"{type(error).__name__}: {error}") from error
        lost += [p for p in parts if result.outcomes.get(p.id) is Outcome.LOST]
        # A part that the sink did not mention is as unknown as one that it called so.
        parts = [p for p in parts if result.outcomes.get(p.id, Outcome.UNKNOWN) is Outcome.UNKNOWN]
        if not parts:
            return lost
        if helpers.stopping():
            raise _failed(sink, epoch, result.detail or "the outcome is still unknown")
        why = result.detail or "the outside system does not say"
        logger.warning("sink %s, epoch %s: outcome unknown: %s", sink.name, epoch.number, why)
        time.sleep(_BACK_OFF_S[min(asked, len(_BACK_OFF_S) - 1)])
        asked += 1


def _failed(sink: BoundSink, epoch: EpochId, why: str) -> CommitFailed:
    return CommitFailed(
        f"query {epoch.query.name!r}, epoch {epoch.number}, sink {sink.name!r}: committing failed: "
        f"{why}. The epoch is decided and nothing of it is lost; the next start finishes it."
    )
