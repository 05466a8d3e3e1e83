"""Identity: do the log, Spark's checkpoint and the sinks belong to the same query?

A deleted, copied or rewound checkpoint, or two queries with one name, would silently skip rows or
duplicate them. So before anything is written, everything that remembers an epoch is asked, and any
disagreement is an error that explains the choices (rules 4 and 5).
"""

from __future__ import annotations

import uuid
from collections.abc import Mapping, Sequence

from beadline.decisions import Decision, DecisionLog, LogState
from beadline.errors import (
    NEW_QUERY,
    NOTHING_WRITTEN,
    BadSink,
    BeadlineError,
    PrepareFailed,
    WrongCheckpoint,
)
from beadline.files import same_folder
from beadline.ids import QueryId
from beadline.protocol.batch import Progress
from beadline.sink import BoundSink, Guarantee, Seen

EXACTLY_ONCE = str(Guarantee.EXACTLY_ONCE)


def identify(state: LogState, progress: Progress, name: str, checkpoint: str) -> QueryId:
    """Return the query of this checkpoint; a new incarnation if the checkpoint is new."""
    if state.claim is None:
        committed = progress.last_committed()
        if committed >= 0 or progress.offsets(0) is not None:
            raise WrongCheckpoint(
                f"checkpoint {checkpoint} holds Spark's progress up to epoch {committed} but no "
                "decision log: it was made by a query without Beadline, or its folder 'beadline' "
                "was deleted. Which rows of the last epoch are already in the sinks cannot be "
                f"known. Restore the log from a backup. {NEW_QUERY} {NOTHING_WRITTEN}"
            )
        return QueryId(name, uuid.uuid4().hex, checkpoint)
    query = state.claim.query
    if query.name != name:
        raise WrongCheckpoint(
            f"checkpoint {checkpoint} belongs to query {query.name!r}, not to {name!r}. Start it "
            f"as {query.name!r}, and all rows stay correct. {NEW_QUERY} {NOTHING_WRITTEN}"
        )
    # A link is another name for the folder, not a copy: the path in the log still leads here.
    if not same_folder(query.checkpoint, checkpoint):
        raise WrongCheckpoint(
            f"the log in {checkpoint} was written for {query.checkpoint}: the folder was copied or "
            "moved, and two queries may continue from the same place, which would double every "
            f"row. Move it back, and all rows stay correct. {NEW_QUERY} {NOTHING_WRITTEN}"
        )
    return query


def unfinished(state: LogState, progress: Progress) -> Decision | None:
    """Return the newest decision if Spark may still redeliver its epoch."""
    decision = state.decision
    if decision is not None and decision.epoch > progress.last_committed():
        return decision
    return None


def published(state: LogState, committed: int) -> int:
    """Return the newest epoch that an at-least-once start may have shown undecided; -1 for none.

    It may publish one epoch more than Spark has committed, and after a change of mode only the
    claims remember that.
    """
    if state.claim is None:
        return -1
    return state.claim.published if state.claim.mode == EXACTLY_ONCE else committed + 1


def given_up(state: LogState, decision: Decision) -> frozenset[str]:
    """Return the sinks that were dropped by name after this decision."""
    if state.claim is None or decision.generation >= state.claim.generation:
        return frozenset()
    return frozenset(state.claim.dropped)


def newest_certain(state: LogState) -> int:
    """Return the newest epoch that is certain according to the log; -1 for none."""
    decided = state.decision.epoch if state.decision else -1
    return max(decided, state.claim.base if state.claim else -1)


def check_progress(state: LogState, progress: Progress, meaning: str = NOTHING_WRITTEN) -> None:
    """Spark's checkpoint must be where the log says, at the same source positions."""
    if state.claim is None:
        return
    committed = progress.last_committed()
    certain = newest_certain(state)
    decision = state.decision
    decided = decision.epoch if decision else -1
    if committed < certain - (1 if certain == decided else 0):
        raise WrongCheckpoint(
            f"Spark's checkpoint is at epoch {committed}, but the decision log is certain up to "
            f"{certain}: the checkpoint was rewound or partly deleted, and continuing would write "
            f"rows a second time. Restore folder and log from one backup. {meaning}"
        )
    if committed > max(certain, published(state, committed)):
        raise WrongCheckpoint(
            f"Spark's checkpoint is at epoch {committed}, but the decision log ends at {certain}: "
            "the log was rewound, or another program ran on this checkpoint. Restore folder and "
            f"log from one backup. {meaning}"
        )
    if decision is not None and decision.epoch >= committed:
        check_offsets(decision, progress.offsets(decision.epoch), meaning)


def check_offsets(decision: Decision, digest: str | None, meaning: str = NOTHING_WRITTEN) -> None:
    """The epoch must have been planned with the source positions that were decided."""
    if digest == decision.offsets:
        return
    what = "are missing" if digest is None else "are not those that were decided"
    raise WrongCheckpoint(
        f"the source positions of epoch {decision.epoch} in Spark's checkpoint {what}: the "
        "checkpoint was rewound or replaced, and rows would be lost or written twice. Restore "
        f"folder and log from one backup. {meaning}"
    )


def meaning_undecided(epoch: int) -> str:
    """Return what an error means during an epoch that is not decided."""
    return f"Nothing of epoch {epoch} is decided or shown; earlier epochs are complete."


def meaning_decided(epoch: int) -> str:
    """Return what an error means during an epoch that is decided."""
    return f"Epoch {epoch} is decided, and the next start finishes it; earlier epochs are complete."


def meaning_published(epoch: int) -> str:
    """Return what an error means during an epoch whose parts show as they finish."""
    return (
        f"Some rows of epoch {epoch} may show already, and the epoch does not count as done; "
        "earlier epochs are complete."
    )


def meaning_between(state: LogState) -> str:
    """Return what an error means during a run while no epoch is decided and unfinished."""
    certain = newest_certain(state)
    before = f"Epochs up to {certain} are complete; no later one" if certain >= 0 else "No epoch"
    return f"{before} is decided."


def check_next(name: str, log: DecisionLog, epoch: int) -> None:
    """Epochs are dense: a gap means that something else moved the checkpoint."""
    certain = newest_certain(log.state)
    if epoch != certain + 1:
        log.check_newest()
        raise WrongCheckpoint(
            f"Spark started epoch {epoch}, but the decision log is at {certain}: the checkpoint "
            f"of query {name!r} was changed while it ran. {meaning_undecided(epoch)}"
        )


def check_seen(
    query: QueryId, state: LogState, progress: Progress, sinks: Sequence[BoundSink]
) -> int:
    """No sink may remember another incarnation, or an epoch that the log does not know.

    Returns the newest version that one remembers.
    """
    version_ms = 0
    committed = progress.last_committed()
    newest = max(newest_certain(state), committed, published(state, committed))
    for sink in sinks:
        seen = last_seen(sink, query, sink.name)
        if seen is None:
            continue
        where = f"sink {sink.name!r} ({sink.capabilities.target})"
        if seen.incarnation != query.incarnation:
            raise WrongCheckpoint(
                f"{where} already holds epoch {seen.epoch} of another query named {query.name!r}: "
                "the checkpoint was deleted or replaced, or two queries share the name. Restore "
                f"the old checkpoint, and all rows stay correct. {NEW_QUERY} To make this target "
                f"forget the old query: {sink.capabilities.start_over}. {NOTHING_WRITTEN}"
            )
        decision = state.decision
        other = (
            decision is not None
            and seen.epoch == decision.epoch
            and seen.nonce
            not in (
                "",
                decision.nonce,
            )
        )
        if seen.epoch > newest or (other and not decision_was_replayed(decision)):
            raise WrongCheckpoint(
                f"{where} holds epoch {seen.epoch}, which does not match the decision log (it ends "
                f"at {newest}): the checkpoint was rewound to an older state. Restore the newest "
                "checkpoint, or empty the target and what Beadline keeps next to it. "
                f"{NOTHING_WRITTEN}"
            )
        version_ms = max(version_ms, seen.version_ms)
    return version_ms


def last_seen(sink: BoundSink, query: QueryId, name: str) -> Seen | None:
    """Return what a sink's target remembers under a name; an error says that it cannot tell."""
    try:
        return sink.sink.last_seen(query, name)
    except BeadlineError:
        raise
    except Exception as error:
        raise BadSink(
            f"query {query.name!r}: sink {sink.name!r} ({sink.capabilities.target}) cannot be "
            f"asked what it holds: {type(error).__name__}: {error}. {NOTHING_WRITTEN}"
        ) from error


def decision_was_replayed(decision: Decision | None) -> bool:
    """A replay decides the epoch again with a new nonce, though some parts are committed."""
    return decision is not None and decision.replays > 0


def known_sources(state: LogState) -> dict[str, str]:
    """Return what was read so far, and which instance of it."""
    claim, decision = state.claim, state.decision
    if claim is None:
        return {}
    newer = decision is not None and decision.generation == claim.generation
    return {**claim.sources, **decision.sources} if newer and decision else claim.sources


def sources_read(
    name: str, progress: Progress, known: Mapping[str, str], meaning: str
) -> dict[str, str]:
    """Ask which instances an epoch has read, and check them; return all that are known then."""
    try:
        now = progress.sources()
    except PrepareFailed as error:  # a source does not answer, and cannot know what that means
        raise PrepareFailed(f"query {name!r}, {error} {meaning}") from None
    check_sources(name, known, now, meaning)
    return {**known, **now}


def check_sources(
    name: str, known: Mapping[str, str], now: Mapping[str, str], meaning: str = NOTHING_WRITTEN
) -> None:
    """The source must be the instance that the offsets were counted in.

    The offsets of a topic that was deleted and recreated say nothing of the new one: rows below
    them would never be read.
    """
    for source, instance in now.items():
        if known.get(source, instance) != instance:
            raise WrongCheckpoint(
                f"query {name!r} reads {source}, which was deleted and recreated (its id was "
                f"{known[source]} and is now {instance}): the positions in the checkpoint belong "
                "to the old one, and rows of the new one below them would never be read. Start "
                "with a new checkpoint folder and the positions that you want, and with sinks that "
                f"are empty or may receive its rows as new ones. {meaning}"
            )
