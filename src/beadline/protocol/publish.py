"""At-least-once: parts are published as they finish, nothing is decided, rows may repeat."""

from __future__ import annotations

from collections.abc import Sequence

from beadline.dead_letter import RefusedRow
from beadline.errors import PartLost
from beadline.ids import EpochId
from beadline.points import reach
from beadline.protocol import identity
from beadline.protocol.batch import Acks, Batch, Ticket
from beadline.protocol.commit import commit_sink
from beadline.protocol.prepare import failing, owners_of, prepare_sink, readers
from beadline.protocol.run import Run
from beadline.protocol.sweep import Sweeper
from beadline.sink import BoundSink


def publish(run: Run, sweeper: Sweeper, batch: Batch) -> None:
    """Publish every sink's parts; what an earlier exactly-once run decided is finished by then.

    The sinks' rows are computed once, and not proven the same (rule 24): by the time the second
    sink's rows are known to differ, the first one's are visible, and a ledger keeps them even if
    the epoch is redelivered. An error would cost a restart and would not make them equal.
    """
    acks: dict[str, Acks] = {}
    owners = owners_of(run.sinks)
    with batch.sharing(readers(run.sinks)):
        for sink in run.sinks:
            refused = acks[owners[sink.name]].refused if sink.name in owners else None
            acks[sink.name] = _publish_sink(run, sweeper, batch, sink, refused)
    run.tell("committed", batch.number, rows={name: ack.rows for name, ack in acks.items()})


def _publish_sink(
    run: Run, sweeper: Sweeper, batch: Batch, sink: BoundSink, refused: Sequence[RefusedRow] | None
) -> Acks:
    """Publish one sink's parts; if the sink cannot publish, prepare and commit at once."""
    ticket = Ticket(run.query, run.generation, batch.number, sink.name)
    meaning = f"{identity.meaning_published(batch.number)} The next start redelivers it."
    with failing(run, batch, sink, meaning):
        if sink.capabilities.publishes:
            acks = batch.run_publish(sink, ticket, refused) if refused != () else Acks((), 0)
        else:
            reach("prepare.before")
            acks = prepare_sink(batch, sink, ticket, refused)
    _check_sources(run, batch.number)
    if sink.capabilities.publishes:
        return acks
    if acks.extra_attempts:
        sweeper.expect()
    # A ledger that has this epoch accepts nothing more of it. If Spark's plan were lost in a power
    # cut, the epoch would be redelivered with more rows: so the plan must be on the disk first.
    batch.offsets()
    # No nonce: a later start must not mistake it for another decision's.
    epoch = EpochId(run.query, batch.number, "", _next_version_ms(run))
    if acks.prepared and commit_sink(sink, epoch, [*acks.prepared], run.helpers):
        run.log.check_newest()  # a newer start has swept it
        raise PartLost(
            f"query {run.name!r}, epoch {batch.number}, sink {sink.name!r}: a part was "
            "lost before it was published; the epoch is redelivered."
        )
    return acks


def _check_sources(run: Run, epoch: int) -> None:
    """What was read must still be what the offsets were counted in; asked after reading.

    No decision records a source that is first read after the claim, so the run remembers it.
    """
    known = {**run.sources, **identity.known_sources(run.log.state)}
    meaning = identity.meaning_published(epoch)
    run.sources = identity.sources_read(run.name, run.progress, known, meaning)


def _next_version_ms(run: Run) -> int:
    """Return one later than every decision and everything published, for sinks that use it."""
    decision = run.log.state.decision
    decided_ms = decision.at_ms if decision else 0
    run.version_ms = max(run.now_ms(), decided_ms + 1, run.version_ms + 1)
    return run.version_ms
