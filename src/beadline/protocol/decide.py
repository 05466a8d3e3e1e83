"""Decide: one append that makes the whole epoch, all sinks together, certain."""

from __future__ import annotations

import uuid
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from beadline.decisions import Decision, StoredPart
from beadline.points import reach
from beadline.protocol.batch import Batch
from beadline.protocol.epoch import Epoch
from beadline.protocol.run import Run
from beadline.protocol.targets import previous_epochs
from beadline.sink import Prepared


def decide(run: Run, epoch: Epoch) -> Decision:
    """Append the decision of a prepared epoch. If it raises, the epoch is undecided or unknown."""
    state = run.log.state
    assert state.claim is not None, "nothing is decided without a claim"
    assert state.claim_at is not None, "nothing is decided without a claim"
    now_ms = run.now_ms()
    decision = Decision(
        nonce=uuid.uuid4().hex,
        generation=run.generation,
        epoch=epoch.number,
        offsets=epoch.batch.offsets(),
        parts=max((ack.parts for ack in epoch.acks.values()), default=0),
        settings=epoch.batch.settings(),
        sinks={name: stored_parts(ack.prepared) for name, ack in epoch.acks.items()},
        claim=state.claim_at,
        decided=state.decided_at,
        started_at_ms=epoch.started_at_ms,
        prepared_at_ms=now_ms,
        at_ms=max(now_ms, run.version_ms + 1),
        finished_at_ms=run.finished_at_ms,
        previous=previous_epochs(state, run.sinks),
        sources={
            name: one for name, one in epoch.sources.items() if name not in state.claim.sources
        },
        kinds={sink.name: sink.kind for sink in run.sinks},
        event_time=epoch.batch.event_time(),
    )
    decision = _append(run, decision)
    run.tell("decided", decision.epoch, nonce=decision.nonce)
    return decision


def decide_replayed(
    run: Run, batch: Batch, before: Decision, parts: Mapping[str, tuple[StoredPart, ...]]
) -> Decision:
    """Append the decision of an epoch whose lost parts were replaced."""
    state = run.log.state
    assert state.claim_at is not None, "nothing is decided without a claim"
    return _append(
        run,
        replace(
            before,
            nonce=uuid.uuid4().hex,
            generation=run.generation,
            offsets=batch.offsets(),
            settings=batch.settings(),
            sinks=dict(parts),
            claim=state.claim_at,
            decided=state.decided_at,
            finished_at_ms=None,
            previous=previous_epochs(state, run.sinks, of_newest=True),
            replays=before.replays + 1,
        ),
    )


def _append(run: Run, decision: Decision) -> Decision:
    # Strictly increasing, so that a sink can use it as a version.
    newest = run.log.state.decision
    newest_ms = newest.at_ms if newest else 0
    decision = replace(decision, at_ms=max(decision.at_ms, newest_ms + 1))
    reach("decide.before")
    run.log.append(decision)
    reach("decide.after")
    return decision


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
