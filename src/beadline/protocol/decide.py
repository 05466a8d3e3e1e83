"""Decide: one append that makes the whole epoch, all sinks together, certain."""

from __future__ import annotations

import uuid
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from beadline.decisions import Decision, DecisionLog, StoredPart
from beadline.points import reach
from beadline.protocol.engine import Acks, Batch
from beadline.sink import BoundSink, Prepared


@dataclass(frozen=True)
class Times:
    """When the steps of this epoch were, and when the epoch before it was finished."""

    started_at_ms: int
    prepared_at_ms: int
    now_ms: int
    finished_at_ms: int | None = None


def stored(acks: Acks) -> tuple[StoredPart, ...]:
    """Return the acks as the log keeps them."""
    return stored_parts(acks.prepared)


def stored_parts(parts: Sequence[Prepared[Any]]) -> tuple[StoredPart, ...]:
    """Return parts as the log keeps them."""
    return tuple(
        StoredPart(
            part.id.partition,
            part.id.attempt,
            part.id.generation,
            part.rows,
            part.checksum,
            part.committable.to_json(),
        )
        for part in parts
    )


def decide(
    log: DecisionLog,
    batch: Batch,
    generation: int,
    parts: Mapping[str, tuple[StoredPart, ...]],
    count: int,
    times: Times,
    previous: Mapping[str, int],
    sources: Mapping[str, str],
    kinds: Mapping[str, str],
    replays: int = 0,
) -> Decision:
    """Append the decision, or raise with the epoch undecided or unknown."""
    state = log.state
    assert state.claim_at is not None, "nothing is decided without a claim"
    # Strictly increasing, so that a sink can use it as a version.
    newest_ms = state.decision.at_ms if state.decision else 0
    decision = Decision(
        nonce=uuid.uuid4().hex,
        generation=generation,
        epoch=batch.number,
        offsets=batch.offsets(),
        parts=count,
        settings=batch.settings(),
        sinks=dict(parts),
        claim=state.claim_at,
        decided=state.decided_at,
        started_at_ms=times.started_at_ms,
        prepared_at_ms=times.prepared_at_ms,
        at_ms=max(times.now_ms, newest_ms + 1),
        finished_at_ms=times.finished_at_ms,
        replays=replays,
        previous=dict(previous),
        sources=dict(sources),
        kinds=dict(kinds),
    )
    reach("decide.before")
    log.append(decision)
    reach("decide.after")
    return decision


def rows_of(decision: Decision, sinks: Collection[BoundSink]) -> dict[str, int]:
    """Rows per sink that a decision was committed to: one that was dropped got none."""
    parts = {sink.name: decision.sinks.get(sink.name, ()) for sink in sinks}
    return {name: sum(part.rows for part in some) for name, some in parts.items()}
