"""What can be seen of a transaction from outside: whose it is, and which readers it holds up.

An open transaction keeps every ``read_committed`` reader of a partition before its first record
there, whoever wrote what lies behind. The place where they stand is the last stable offset, so the
transaction to look at is the one whose first offset it is.
"""

from __future__ import annotations

from dataclasses import dataclass

from beadline.ids import PartId
from beadline.sinks.kafka.part import WriterId
from beadline.sinks.kafka.transactions import Described

UNENDED_STATES = ("Ongoing", "PrepareCommit", "PrepareAbort", "PrepareEpochFence")

Place = tuple[str, int]  # a topic's name, and the number of a partition


@dataclass(frozen=True)
class WaitingGroup:
    """A consumer group that has committed this offset, and cannot get beyond the stable one."""

    name: str
    offset: int


@dataclass(frozen=True)
class Touched:
    """One partition that a transaction has written to; None for what could not be asked.

    ``first_offset`` is the transaction's first record there, also None if it has none yet. Readers
    see what lies before ``stable_offset``; ``end_offset`` is the high watermark. ``holds`` says
    that readers stand before this transaction, and not before an earlier one; ``held_by`` names the
    one before which they do: its id, or a producer of which no coordinator knows.
    """

    topic: str
    partition: int
    first_offset: int | None = None
    stable_offset: int | None = None
    end_offset: int | None = None
    holds: bool | None = None
    held_by: str | None = None
    groups: tuple[WaitingGroup, ...] = ()

    @property
    def waiting(self) -> int | None:
        """How many offsets lie behind the stable one, the transaction's own included."""
        if self.stable_offset is None or self.end_offset is None:
            return None
        return max(0, self.end_offset - self.stable_offset)


@dataclass(frozen=True)
class Observed:
    """One transactional id as it stands on the brokers.

    ``writer`` is None for a stranger's. ``prepared`` says that the transaction has its marker, so
    that all of its part is written; ``part`` is what the marker tells, where it was found in the
    ``control_topic``.
    """

    described: Described
    writer: WriterId | None = None
    prepared: bool | None = None
    part: PartId | None = None
    control_topic: str | None = None
    partitions: tuple[Touched, ...] = ()

    @property
    def id(self) -> str:
        """The transactional id."""
        return self.described.transaction.id

    @property
    def is_open(self) -> bool:
        """Whether the coordinator holds a transaction of this id that has not ended."""
        return self.described.state in UNENDED_STATES

    @property
    def aborts_at_ms(self) -> int | None:
        """When the broker aborts it by itself, by the broker's clock; it looks every 10 s."""
        if self.described.state != "Ongoing" or self.described.started_at_ms < 0:
            return None
        return self.described.started_at_ms + self.described.timeout_ms

    def first_offset(self, place: Place) -> int | None:
        """Where the open transaction begins in a partition; None if it is not known to."""
        for touched in self.partitions:
            if (touched.topic, touched.partition) == place:
                return touched.first_offset
        return None
