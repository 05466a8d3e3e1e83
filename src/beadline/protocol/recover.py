"""Recover: claim the log, sweep orphans, finish the newest decision. Before Spark starts."""

from __future__ import annotations

import os
import socket
import uuid
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial
from typing import Any

from beadline.decisions import Claim, DecisionLog
from beadline.errors import BadSink, BeadlineError, CommitFailed
from beadline.ids import PartId, QueryId
from beadline.points import reach
from beadline.protocol.commit import Helpers
from beadline.protocol.identity import EXACTLY_ONCE, known_sources, published
from beadline.protocol.targets import Found
from beadline.sink import BoundSink, Prepared


def claim(
    log: DecisionLog,
    query: QueryId,
    mode: str,
    sinks: Sequence[BoundSink],
    base: int,
    found: Found,
    sources: Mapping[str, str],
    now_ms: int,
) -> int:
    """Take the next slot for a new generation; return its number."""
    before = log.state.claim
    generation = before.generation + 1 if before else 1
    reach("claim.before")
    log.append(
        Claim(
            nonce=uuid.uuid4().hex,
            query=query,
            generation=generation,
            mode=mode,
            base=base,
            sinks={sink.name: sink.capabilities.target for sink in sinks},
            decided=log.state.decided_at,
            at_ms=now_ms,
            host=socket.gethostname(),
            pid=os.getpid(),
            dropped=tuple(sorted(found.dropped)),
            published=published(log.state, base),
            histories=tuple(found.histories),
            sources={**known_sources(log.state), **sources},
        )
    )
    reach("claim.after")
    return generation


def prepares(sink: BoundSink, mode: str) -> bool:
    """Whether a sink prepares parts in this mode, or publishes them at once."""
    return mode == EXACTLY_ONCE or not sink.capabilities.publishes


def open_sinks(query: QueryId, mode: str, sinks: Collection[BoundSink]) -> None:
    """Let every sink create what it keeps beside its target: we hold a claim by now.

    A sink that publishes keeps nothing, unless it has decided epochs to answer for.
    """
    for sink in sinks:
        if not prepares(sink, mode):
            continue
        try:
            sink.sink.open(query, sink.name)
        except BeadlineError:
            raise
        except Exception as error:
            raise BadSink(
                f"query {query.name!r}: sink {sink.name!r} cannot be opened: "
                f"{type(error).__name__}: {error}. Nothing was written to it."
            ) from error


Wanted = Callable[[Prepared[Any]], bool]


def sweep(
    query: QueryId,
    sinks: Collection[BoundSink],
    ids: Collection[PartId],
    named: Sequence[Prepared[Any]],
    wanted: Wanted,
    helpers: Helpers,
) -> int:
    """Abort the parts in doubt that are ``wanted``, but for those that a decision names.

    A sink sweeps its own, and those of names that are gone from the query: nobody else will
    (rule 27). ``ids`` are the decision's, ``named`` those of them that a sink can read.

    Only after our own claim holds a slot: before that, a part in doubt may be decided by
    somebody else the moment after we looked. Return how many there were.
    """
    names = {sink.name for sink in sinks}

    def is_decided(part: Prepared[Any]) -> bool:
        # A sink may be unable to tell which part it is, and still name the thing itself.
        return part.id in ids or any(part.committable.is_same(one.committable) for one in named)

    def one(sink: BoundSink) -> int:
        try:
            doubted = sink.sink.in_doubt(query, sink.name)
            found = [p for p in doubted if wanted(p) and not is_decided(p)]
            orphans = [p for p in found if p.id.sink == sink.name or p.id.sink not in names]
            if orphans:
                sink.sink.abort(orphans)
        except BeadlineError:
            raise
        except Exception as error:
            raise CommitFailed(
                f"query {query.name!r}, sink {sink.name!r}: sweeping orphans failed: "
                f"{type(error).__name__}: {error}. Nothing decided is touched by this; start again "
                "when the system behind the sink answers."
            ) from error
        return len(orphans)

    return sum(helpers.run_all([partial(one, sink) for sink in sinks]))
