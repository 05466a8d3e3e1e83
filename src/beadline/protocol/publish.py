"""At-least-once: parts are published as they finish, nothing is decided, repeats may show."""

from __future__ import annotations

from collections.abc import Sequence

from beadline.dead_letter import Refused
from beadline.errors import PartLost
from beadline.ids import EpochId
from beadline.points import reach
from beadline.protocol.commit import commit_sink
from beadline.protocol.coordinator import Coordinator, now_ms
from beadline.protocol.engine import Acks, Batch, Ticket
from beadline.protocol.prepare import failing, owners_of, prepare_sink, readers
from beadline.sink import BoundSink, Guarantee


class Publisher(Coordinator):
    """The coordinator of ``at_least_once``: same start, same recovery, no decisions.

    What an earlier exactly-once generation decided is still finished and never doubled.
    """

    mode = str(Guarantee.AT_LEAST_ONCE)

    def expect_next(self, epoch: int) -> None:
        """Without decisions there is nothing to compare with."""

    def run_undecided(self, batch: Batch) -> None:
        """Publish every sink's parts, unless a newer start has taken over."""
        self.log.check_newest()
        acks: dict[str, Acks] = {}
        owners = owners_of(self.sinks)
        with batch.sharing(readers(self.sinks)):
            for sink in self.sinks:
                refused = acks[owners[sink.name]].refused if sink.name in owners else None
                acks[sink.name] = self.publish_sink(batch, sink, refused)
        self.tell("committed", batch.number, rows={name: ack.rows for name, ack in acks.items()})

    def publish_sink(
        self, batch: Batch, sink: BoundSink, refused: Sequence[Refused] | None
    ) -> Acks:
        """Publish one sink's parts; if it cannot by itself, prepare and commit at once."""
        ticket = Ticket(self.query, self.generation, batch.number, sink.name)
        with failing(self.query, batch, sink):
            if sink.capabilities.publishes:
                return batch.publish(sink, ticket, refused) if refused != () else Acks((), 0)
            reach("prepare.before")
            acks = prepare_sink(batch, sink, ticket, refused)
        self.losers = self.losers or acks.extra_attempts
        # A ledger that has this epoch takes nothing more of it. If a power cut took Spark's plan
        # back, it would come again with more rows: so the plan must be on the disk first.
        batch.offsets()
        # No nonce: a later start must not take it for that of another decision.
        epoch = EpochId(self.query, batch.number, "", self.next_version_ms())
        if acks.prepared and commit_sink(sink, epoch, [*acks.prepared], self.helpers):
            self.log.check_newest()  # a newer start has swept it
            raise PartLost(
                f"query {self.query.name!r}, epoch {batch.number}, sink {sink.name!r}: a part was "
                "lost before it was published; the epoch is redelivered."
            )
        return acks

    def next_version_ms(self) -> int:
        """Later than every decision and everything published, so that a sink can use it."""
        decision = self.log.state.decision
        decided_ms = decision.at_ms if decision else 0
        self.version_ms = max(now_ms(), decided_ms + 1, self.version_ms + 1)
        return self.version_ms
