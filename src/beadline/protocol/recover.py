"""Recover: claim the log, open the sinks, finish the newest decision. Before Spark starts."""

from __future__ import annotations

import logging
import os
import socket
import uuid
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace

from beadline.decisions import Claim, Decision
from beadline.errors import (
    BadSink,
    BeadlineError,
    CheckpointProblem,
    CommitBlocked,
    CommitFailed,
    EpochFailed,
    Fenced,
    TargetRestored,
)
from beadline.points import reach
from beadline.protocol import identity
from beadline.protocol.commit import commit
from beadline.protocol.epoch import Lost
from beadline.protocol.run import Run
from beadline.protocol.sweep import Sweeper
from beadline.protocol.targets import Drop, TargetChanges, check_targets, epochs_text, spent
from beadline.sink import BoundSink, way_out

logger = logging.getLogger("beadline")

CLAIM_TRIES_MAX = 100
# ``claim`` for a run: what ``drop=`` names, and what its sinks hold.
ClaimAgain = Callable[[Collection[str], Mapping[str, int] | None], Decision | None]


@dataclass(frozen=True)
class Recovered:
    """What a start did with the newest decision: committed it, except for lost parts."""

    decision: Decision
    lost: Lost

    def is_of(self, decision: Decision) -> bool:
        """Whether this decision was recovered, and not an older one."""
        return self.decision.nonce == decision.nonce


def claim(
    run: Run, drop: Collection[str] = (), behind: Mapping[str, int] | None = None
) -> Decision | None:
    """Take the log over; return the decision that may be unfinished.

    ``behind`` are the sinks of ``drop`` whose targets hold less than they acknowledged, and what
    they hold.

    Losing a slot to a driver that still decides is not final: look again and take the next. Nor is
    a disagreement between what was read before and after that driver's append.
    """
    for _ in range(CLAIM_TRIES_MAX):
        state = run.log.open()
        run.drop = replace(Drop.parse(drop).after(state.claim), behind=behind or {})
        before = run.progress.last_committed()
        try:
            run.query = identity.identify(state, run.progress, run.name, run.checkpoint)
            identity.check_progress(state, run.progress)
            run.version_ms = identity.check_seen(run.query, state, run.progress, run.sinks)
            sources = run.progress.sources()
            pending = identity.unfinished(state, run.progress)
            if pending is None:  # or what is decided is finished first: `check_recovered_sources`
                identity.check_sources(run.name, identity.known_sources(state), sources)
            certain = max(identity.newest_certain(state), before)
            found = check_targets(run.query, state, pending, certain, run.sinks, run.drop)
        except CheckpointProblem:
            if run.log.moved() or run.progress.last_committed() != before:
                continue
            raise
        try:
            _append_claim(run, found, sources)
        except Fenced:
            continue
        _tell_found(run, found, pending)
        return pending
    raise Fenced(
        f"query {run.name!r}: {CLAIM_TRIES_MAX} times in a row another driver took the next slot "
        "of the decision log. Stop that driver of this query first."
    )


def _append_claim(run: Run, found: TargetChanges, sources: Mapping[str, str]) -> None:
    """Take the next slot for a new generation."""
    state, base = run.log.state, run.progress.last_committed()
    generation = state.claim.generation + 1 if state.claim else 1
    reach("claim.before")
    run.log.append(
        Claim(
            nonce=uuid.uuid4().hex,
            query=run.query,
            generation=generation,
            mode=str(run.mode),
            base=base,
            sinks={sink.name: sink.capabilities.target for sink in run.sinks},
            decided=state.decided_at,
            at_ms=run.now_ms(),
            host=socket.gethostname(),
            pid=os.getpid(),
            dropped=tuple(sorted(found.dropped)),
            published=identity.published(state, base),
            histories=tuple(found.histories),
            sources={**sources, **identity.known_sources(state)},
            words=run.drop.words,
        )
    )
    reach("claim.after")
    run.generation = generation


def _tell_found(run: Run, found: TargetChanges, pending: Decision | None) -> None:
    """Report from where each sink has rows, and which it will never have; rows do not show it."""
    here = [one for one in found.histories if one.until is None]
    lacks = {one.name: epochs_text(one.missing) for one in here if one.missing}
    run.tell("claimed", since={one.name: one.since for one in here}, lacks=lacks)
    for one in here:
        later = f"has rows from epoch {one.since} on" if one.since else ""
        if lacks.get(one.name) and one.name not in found.given_up:
            both = f"{later} and lacks" if later else "lacks"
            logger.warning(
                "query %s: sink %s %s the rows of %s", run.name, one.name, both, lacks[one.name]
            )
        elif later and one.name not in found.added:
            logger.info("query %s: sink %s %s", run.name, one.name, later)
    for name, epoch in found.added.items():
        run.tell("added", epoch, sink=name)
        logger.warning(
            "query %s: sink %s is new and has rows from epoch %s on; those of earlier epochs "
            "are not in it",
            *(run.name, name, epoch),
        )
    now = {sink.name: sink.capabilities.target for sink in run.sinks}
    for name, target in found.removed.items():
        what = f"now writes to {now[name]}" if name in now else "was removed from the query"
        run.tell("removed", sink=name)
        logger.warning(
            "query %s: sink %s (%s) %s. If a crash left something prepared there, it is aborted "
            "if another sink of this query uses the same place (the same database, cluster "
            'or folder). If none does, start once with that sink and drop=["%s"], or roll it '
            "back by hand",
            *(run.name, name, target, what, name),
        )
    for name, spans in found.given_up.items():
        epochs = epochs_text(spans)
        run.tell("dropped", pending.epoch if pending else None, sink=name, epochs=epochs)
        logger.warning(
            "query %s: sink %s lacks the rows of %s for good: they were given up by drop=",
            *(run.name, name, epochs),
        )


def open_sinks(run: Run) -> None:
    """Let every sink create what it keeps next to its target: we hold a claim now.

    A sink that publishes keeps nothing, unless it has decided epochs to answer for.
    """
    for sink in run.sinks:
        if not run.prepares(sink):
            continue
        try:
            sink.sink.open(run.query, sink.name)
        except BeadlineError:
            raise
        except Exception as error:
            raise BadSink(
                f"query {run.name!r}: sink {sink.name!r} cannot be opened: "
                f"{type(error).__name__}: {error}. Nothing was written to it."
            ) from error


def finish(
    run: Run, pending: Decision, drop: Collection[str], claim: ClaimAgain, sweeper: Sweeper
) -> Recovered:
    """Commit a decided epoch, once to each sink; lost parts wait for Spark to redeliver it.

    A sink that ``drop=`` names is tried before the others, so that nothing is given up that can
    still be committed. What it cannot take is given up by a separate claim: later starts must know
    it too.
    """
    names = run.drop.names
    stuck: list[str] = []
    lost: Lost = {}
    for sink in [sink for sink in run.kept(pending) if sink.name in names]:
        try:
            found = _try_commit(run, pending, sink)
        except TargetRestored as restored:
            # Its name gives up what it lacks, and no more: it may still take this epoch.
            if (held := restored.held) is None:
                raise
            claim(drop, {sink.name: held})
            found = _try_commit(run, pending, sink)
        if found is None:
            stuck.append(sink.name)
        else:
            lost |= found
    if stuck:
        claim([*drop, *(f"{name}@{pending.epoch}" for name in stuck)], None)
        sweeper.sweep_older()
    others = [sink for sink in run.kept(pending) if sink.name not in names]
    lost |= _commit_unnamed(run, pending, others)
    run.tell("recovered", pending.epoch, lost=sorted(lost))
    return Recovered(pending, lost)


def _commit_unnamed(run: Run, decision: Decision, sinks: Sequence[BoundSink]) -> Lost:
    """Commit a decided epoch; if a given ``drop=`` is spent, an error says so.

    The start before may have died between its claim, which spends a name, and giving anything up.
    """
    names = sorted(run.drop.spent & {sink.name for sink in sinks})
    said = "".join(spent(run.drop, name, decision.epoch) for name in names)
    if said:
        logger.warning("query %s:%s", run.name, said)
    try:
        return commit(run, decision, sinks)
    except TargetRestored:
        raise  # the next start reports what is missing, with the epoch to name
    except CommitFailed as error:
        kind = CommitBlocked if isinstance(error, CommitBlocked) else CommitFailed
        raise kind(f"{error}{said}") from error


def _try_commit(run: Run, decision: Decision, sink: BoundSink) -> Lost | None:
    """Commit a decided epoch to one sink; None if it does not take it, now or by a replay.

    An unknown outcome is waited for, however long: the rows may have been written, and if the
    system is only down, giving up would lose what can still be committed. Nor is an epoch given up
    over an error that says nothing about it: a person corrects that, and the next start commits it.
    """
    run.tell("trying", decision.epoch, sink=sink.name)
    try:
        lost = commit(run, decision, [sink])
    except TargetRestored as error:
        if error.held is not None:
            raise
        logger.warning("query %s: sink %s is stuck: %s", run.name, sink.name, error)
        return None
    except CommitBlocked as error:
        epoch = decision.epoch
        raise CommitBlocked(
            f"{error} drop= gave up nothing of epoch {epoch}: {way_out(sink.name, epoch)}"
        ) from error
    except EpochFailed as error:
        logger.warning("query %s: sink %s is stuck: %s", run.name, sink.name, error)
        return None
    return lost if all(part.checksum is not None for part in lost.get(sink.name, ())) else None


def check_recovered_sources(run: Run, recovered: Recovered) -> None:
    """Compare the sources if a start had something to finish, which comes first (rule 15)."""
    epoch = recovered.decision.epoch
    lost = ", ".join(sorted(recovered.lost))
    meaning = f"The rows of epoch {epoch}, which was decided before, are complete in every sink" + (
        f" except for {lost}: parts that the outside system has lost cannot be computed again from "
        "another topic."
        if lost
        else "; nothing else was written."
    )
    known = identity.known_sources(run.log.state)
    identity.check_sources(run.name, known, run.progress.sources(), meaning)
