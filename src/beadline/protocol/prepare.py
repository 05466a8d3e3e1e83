"""Prepare: every sink makes its parts of the epoch durable and invisible."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace

from beadline.dead_letter import RefusedRow, checksum
from beadline.errors import BeadlineError, PrepareFailed, RowsRefused, UsageError, without_meaning
from beadline.ids import PartId, QueryId
from beadline.points import reach
from beadline.protocol import identity
from beadline.protocol.batch import Acks, Batch, Ticket
from beadline.protocol.epoch import Epoch
from beadline.protocol.run import Run
from beadline.protocol.sweep import Sweeper
from beadline.protocol.targets import replaced
from beadline.sink import BoundSink


def prepare(
    run: Run,
    sweeper: Sweeper,
    epoch: Epoch,
    sinks: Sequence[BoundSink],
    decided: Mapping[str, tuple[PartId, ...]],
) -> dict[str, Acks]:
    """Return these sinks' acks; if it raises, nothing is decided and prepared parts are swept.

    ``decided`` is what long-lived writers are told about earlier epochs, by sink.
    """
    try:
        acks = _collect(run, epoch.batch, sinks, decided)
        _check_targets(run, epoch.number, sinks, acks)
        epoch.sources = _check_sources(run, epoch.number)
    except Exception:
        sweeper.after_failure()
        raise
    if any(ack.extra_attempts for ack in acks.values()):
        sweeper.expect()
    run.tell("prepared", epoch.number, acks={n: len(a.prepared) for n, a in acks.items()})
    return acks


def _collect(
    run: Run,
    batch: Batch,
    sinks: Sequence[BoundSink],
    decided: Mapping[str, tuple[PartId, ...]],
) -> dict[str, Acks]:
    """Prepare one sink after the other, all from the same rows."""
    reach("prepare.before")
    acks: dict[str, Acks] = {}
    owners = owners_of(sinks)
    with batch.sharing(readers(sinks)):
        for sink in sinks:
            if acks:
                reach("prepare.between")
            last = decided.get(sink.name, ())
            ticket = Ticket(run.query, run.generation, batch.number, sink.name, last)
            refused = acks[owners[sink.name]].refused if sink.name in owners else None
            with failing(run, batch, sink, _meaning(run, batch.number)):
                acks[sink.name] = prepare_sink(batch, sink, ticket, refused)
            check_shared(run.query, batch.number, acks, _meaning(run, batch.number))
    reach("prepare.after")
    return acks


def _check_targets(
    run: Run, epoch: int, sinks: Sequence[BoundSink], acks: Mapping[str, Acks]
) -> None:
    """What was written must be in the targets that the start found; asked after writing."""
    for sink in sinks:
        if why := replaced(run.log.state, sink, acks[sink.name].prepared):
            raise PrepareFailed(f"query {run.name!r}, epoch {epoch}, {why} {_meaning(run, epoch)}")


def _is_decided(run: Run, epoch: int) -> bool:
    """Whether it is being replayed."""
    decision = run.log.state.decision
    return decision is not None and decision.epoch == epoch


def _meaning(run: Run, epoch: int) -> str:
    """Say what a failure means: an epoch that is replayed may be committed in other sinks."""
    if _is_decided(run, epoch):
        return f"Epoch {epoch} stays decided; the next start tries again to finish it."
    return "Nothing of the epoch is decided; it is redelivered by the next start."


def _check_sources(run: Run, epoch: int) -> dict[str, str]:
    """Sources must still be the instances that the offsets were counted in; asked after reading."""
    replayed = _is_decided(run, epoch)
    meaning = identity.meaning_decided(epoch) if replayed else identity.meaning_undecided(epoch)
    known = identity.known_sources(run.log.state)
    return identity.sources_read(run.name, run.progress, known, meaning)


def check_shared(query: QueryId, epoch: int, acks: Mapping[str, Acks], meaning: str) -> None:
    """Sinks of one epoch must have been given the same rows (rule 24)."""
    tagged = [(name, ack.tags) for name, ack in acks.items() if ack.tags is not None]
    for (one, first), (other, tags) in itertools.pairwise(tagged):
        if first == tags:
            continue
        parts = sorted(p for p in first.keys() | tags.keys() if first.get(p) != tags.get(p))
        raise PrepareFailed(
            f"query {query.name!r}, epoch {epoch}: between sinks {one!r} and {other!r} Spark "
            f"computed part(s) {', '.join(map(str, parts))} of the rows again (an executor was "
            f"lost, or a task was attempted twice), so the two may hold different rows. {meaning}"
        )


def owners_of(sinks: Sequence[BoundSink]) -> dict[str, str]:
    """Return, for the name of each dead-letter sink, the sink whose refused rows it receives."""
    return {sink.dead_letter: sink.name for sink in sinks if sink.dead_letter}


def readers(sinks: Sequence[BoundSink]) -> int:
    """How many sinks read the epoch's own rows; a dead-letter sink does not."""
    owners = owners_of(sinks)
    return sum(sink.name not in owners for sink in sinks)


def prepare_sink(
    batch: Batch, sink: BoundSink, ticket: Ticket, refused: Sequence[RefusedRow] | None
) -> Acks:
    """Prepare one sink: from the epoch's rows or, for a dead-letter sink, from the refused rows.

    A checksum of refused rows is always kept: unless the owner refuses the same rows again when it
    is replayed, the target has changed, and rows could show in both sinks or in neither.
    """
    if refused is None:
        return counted(batch.run_prepare(sink, ticket))
    if not refused:
        return Acks((), 0)  # nearly every epoch, so no job is run for it
    acks = counted(batch.run_prepare(sink, ticket, refused))
    content = checksum(refused)
    prepared = tuple(replace(part, checksum=content) for part in acks.prepared)
    return replace(acks, prepared=prepared)


def counted(acks: Acks) -> Acks:
    """A sink must hold as many rows as it was given, by its own count (rule 26)."""
    for part in acks.prepared:
        held = part.committable.rows_held
        if held is not None and held != part.rows:
            raise RuntimeError(
                f"part {part.id.partition} was given {part.rows} rows, and the outside system has "
                f"{held}: rows were lost or duplicated on the way"
            )
    return acks


@contextmanager
def failing(run: Run, batch: Batch, sink: BoundSink, meaning: str) -> Iterator[None]:
    """Turn any error from a sink or Spark into one that says where it was, and what it means."""
    try:
        yield
    except Exception as error:
        # Raised on an executor, these arrive wrapped in one of Spark's errors; on the driver, as
        # they are.
        ours = isinstance(error, BeadlineError)
        if ours and not isinstance(error, RowsRefused | UsageError):
            raise
        reason = without_meaning(str(error) if ours else batch.reason(error))
        raise PrepareFailed(
            f"query {run.name!r}, epoch {batch.number}, sink {sink.name!r} "
            f"({sink.capabilities.target}): preparing failed: {reason}. {meaning}"
        ) from error
