"""The committable of a Kafka part, and the writers' transactional ids.

An id is made of the query, its incarnation, the sink, the writer's slot and the epoch's parity. No
generation, epoch or attempt is in it, so their number is bounded, whatever the number of epochs and
restarts: the broker remembers each for a week. Two sets by parity, because a producer that a
decision names must not begin again before the next decision is finished (rule 17).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from beadline.sink import Committable, Json, PartId, QueryId
from beadline.sinks.kafka.client import Transaction

_PREFIX = "beadline-txn"
_SEPARATOR = "~"


def default_control_topic(query: str) -> str:
    """Return where the markers of a query go, unless its sink names another topic."""
    return f"beadline-{query}"


@dataclass(frozen=True)
class KafkaPart(Committable):
    """An open transaction, flushed, and the topic that its marker is in.

    Producer id and epoch say which transaction of this id is meant: the broker refuses to end any
    other. The marker is one of the transaction's records; whether it is visible is the proof of
    what became of all of them. ``topics`` are those that its rows went to, each with the id that it
    had before the first of them was sent: a topic with another id by now was deleted and recreated,
    and the rows went with the old one. Version 1 did not know them.
    """

    version: ClassVar[int] = 2

    transactional_id: str
    producer_id: int
    producer_epoch: int
    control_topic: str
    topics: tuple[tuple[str, str], ...] = ()

    @classmethod
    def of(
        cls,
        transaction: Transaction,
        control_topic: str,
        topics: tuple[tuple[str, str], ...] = (),
    ) -> KafkaPart:
        """Return what ends a transaction from anywhere."""
        numbers = (transaction.producer_id, transaction.producer_epoch)
        return cls(transaction.id, *numbers, control_topic, topics)

    @classmethod
    def upgrade(cls, version: int, fields: Json) -> Json:
        """Version 1 had no topics."""
        return fields if version == 1 else super().upgrade(version, fields)

    @property
    def instance(self) -> str:
        """The id of its topic, if there is but one; the sink that names its topic has no other."""
        return self.topics[0][1] if len(self.topics) == 1 else ""

    def is_same(self, other: Committable) -> bool:
        """Whether it is the same transaction; where its marker is, may be unknown or changed."""
        return isinstance(other, KafkaPart) and self.transaction == other.transaction

    @property
    def transaction(self) -> Transaction:
        """The transaction, as the broker identifies it."""
        return Transaction(self.transactional_id, self.producer_id, self.producer_epoch)


@dataclass(frozen=True)
class WriterId:
    """Who writes: one slot of one sink of one query, in even or odd epochs."""

    query: str
    incarnation: str
    sink: str
    slot: int
    parity: int

    @classmethod
    def of(cls, part: PartId, slot: int) -> WriterId:
        """Return the writer of a part."""
        return cls(part.query, part.incarnation, part.sink, slot, part.epoch % 2)

    def __str__(self) -> str:
        """Return the transactional id."""
        fields = (_PREFIX, self.query, self.incarnation, self.sink, self.slot, self.parity)
        return _SEPARATOR.join(map(str, fields))

    @classmethod
    def parse(cls, text: str) -> WriterId | None:
        """Read a transactional id; None for one that is not Beadline's."""
        fields = text.split(_SEPARATOR)
        if len(fields) != 6 or fields[0] != _PREFIX:
            return None
        if not (fields[4].isdecimal() and fields[5] in ("0", "1")):
            return None
        return cls(fields[1], fields[2], fields[3], int(fields[4]), int(fields[5]))

    def belongs_to(self, query: QueryId) -> bool:
        """Whether it is a writer of this incarnation of this query."""
        return self.query == query.name and self.incarnation == query.incarnation

    def unknown_part(self) -> PartId:
        """Return an id for a transaction without a marker: its part is not known."""
        return PartId(self.query, self.incarnation, self.sink, 0, 0, self.slot, self.parity)
