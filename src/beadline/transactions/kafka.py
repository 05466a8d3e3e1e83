"""Observes the transactions of a Kafka cluster: whose they are, and which readers they hold up.

An open transaction keeps every ``read_committed`` reader of a partition before its first record
there, whatever follows it. The position where they stop is the last stable offset, so the
transaction that holds them up is the one whose first offset it is. What the coordinators say is
required; everything else (who is held up, which part it is) is left out if this user may not see
it, and a note says so.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from beadline.ids import PartId
from beadline.sinks.kafka.client import UNENDED_STATES, Described, Transaction, TransactionClient
from beadline.sinks.kafka.markers import CONTROL_PARTITION, Reader
from beadline.sinks.kafka.part import WriterId
from beadline.sinks.kafka.settings import KafkaSettings, said

_ASK_TIMEOUT_S = 10.0
_NO_OFFSET = -1

Place = tuple[str, int]  # a topic's name, and the number of a partition


@dataclass(frozen=True)
class WaitingGroup:
    """A consumer group that has committed this offset, and cannot read past the stable one."""

    name: str
    offset: int


@dataclass(frozen=True)
class Touched:
    """One partition that a transaction has written to; None for what could not be asked.

    ``first_offset`` is the transaction's first record there, also None if it has none yet. Readers
    see everything before ``stable_offset``; ``end_offset`` is the high watermark. ``holds`` says
    that readers are held up by this transaction, and not by an earlier one; ``held_by`` names the
    one that holds them up: its id, or a producer that no coordinator knows.
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
        """How many offsets follow the stable one, including the transaction's own."""
        if self.stable_offset is None or self.end_offset is None:
            return None
        return max(0, self.end_offset - self.stable_offset)


@dataclass(frozen=True)
class Observed:
    """One transactional id as it stands on the brokers.

    ``writer`` is None for one that is not Beadline's. ``prepared`` says that the transaction has
    its marker, so its part is completely written; ``part`` is what the marker says, if it was found
    in the ``control_topic``.
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
        """Where the open transaction begins in a partition; None if that is not known."""
        for touched in self.partitions:
            if (touched.topic, touched.partition) == place:
                return touched.first_offset
        return None


@dataclass
class Inspector:
    """Queries one cluster. ``notes`` collects, in sentences, what could not be found out."""

    client: TransactionClient
    settings: KafkaSettings
    notes: list[str] = field(default_factory=list)

    def open_now(self) -> list[Described]:
        """Return every transaction that any coordinator holds open, the oldest first."""
        described = self.client.describe(self.client.list(UNENDED_STATES)).values()
        found = [one for one in described if one.state in UNENDED_STATES]
        return sorted(found, key=lambda one: (one.started_at_ms, one.transaction.id))

    def inspect(
        self,
        chosen: Sequence[Described],
        control_topic: Callable[[WriterId], str],
        everything: Iterable[Described] = (),
    ) -> list[Observed]:
        """Find out everything about some transactions.

        ``control_topic`` says where the markers of a writer are. ``everything`` is what else is
        open, so that it can be named if it holds readers up.
        """
        names = {one.transaction.producer_id: one.transaction.id for one in (*everything, *chosen)}
        places = sorted({place for one in chosen for place in one.partitions})
        starts = self._starts(places)
        stable = self._ends(places, committed=True)
        ends = self._ends(places, committed=False)
        groups = self._groups({p: at for p, at in stable.items() if at < ends.get(p, at)})
        shared = {
            place: Touched(
                *place,
                stable_offset=stable.get(place),
                end_offset=ends.get(place),
                held_by=_holder(starts.get(place, {}), stable.get(place), names),
                groups=tuple(groups.get(place, ())),
            )
            for place in places
        }
        parts = self._parts(chosen, control_topic)
        observed = []
        for one in chosen:
            producer = one.transaction.producer_id
            touched = tuple(_at(shared[p], starts.get(p), producer) for p in one.partitions)
            writer = WriterId.parse(one.transaction.id)
            if writer is None:
                observed.append(Observed(one, partitions=touched))
            else:
                prepared, part = parts[one.transaction]
                topic = control_topic(writer)
                observed.append(Observed(one, writer, prepared, part, topic, touched))
        return observed

    def _parts(
        self, chosen: Sequence[Described], control_topic: Callable[[WriterId], str]
    ) -> dict[Transaction, tuple[bool | None, PartId | None]]:
        """Return, for each of ours, whether it has a marker, and its part if that was found.

        An id may have had many transactions under one producer id and epoch, each with a marker.
        So one that has not written to the control topic has none, whatever an older one left there.
        If that topic does not exist, a different one was configured, and it is unknown. For a
        transaction that has ended, the coordinator no longer knows where it wrote.
        """
        found: dict[Transaction, tuple[bool | None, PartId | None]] = {}
        markers: dict[tuple[str, str], dict[Transaction, PartId] | None] = {}
        for one in chosen:
            writer = WriterId.parse(one.transaction.id)
            if writer is None:
                continue
            if one.state not in UNENDED_STATES:
                found[one.transaction] = (None, None)
                continue
            topic = control_topic(writer)
            if (topic, writer.query) not in markers:
                markers[topic, writer.query] = self._markers(topic, writer.query)
            some = markers[topic, writer.query]
            prepared = None if some is None else (topic, CONTROL_PARTITION) in one.partitions
            part = some.get(one.transaction) if some and prepared else None
            found[one.transaction] = (prepared, part)
        return found

    def _markers(self, topic: str, query: str) -> dict[Transaction, PartId] | None:
        """Return the newest marker of each transaction, as far as the end of the topic shows."""
        from confluent_kafka import KafkaException

        try:
            if topic not in self._admin.list_topics(timeout=_ASK_TIMEOUT_S).topics:
                self._note(f"there is no control topic {topic!r}, so parts of {query} are unknown")
                return None
            markers = Reader(self.settings).open_now(topic)
            found = [marker for marker in markers if marker.part.query == query]
        except (KafkaException, TimeoutError) as error:
            self._note(f"control topic {topic!r}: parts of {query} are unknown: {said(error)}")
            return None
        return {marker.transaction: marker.part for marker in found}

    def _starts(self, places: Sequence[Place]) -> dict[Place, dict[int, int]]:
        """Return, per partition, where the open transaction of each producer begins.

        One partition that cannot be queried fails a request for many; then each is queried alone.
        """
        from kafka import TopicPartition
        from kafka.errors import KafkaError

        try:
            asked = [TopicPartition(*place) for place in places]
            return _open_starts(self.client.admin.describe_producers(asked))
        except KafkaError:
            pass
        found: dict[Place, dict[int, int]] = {}
        for place in places:
            try:
                answer = self.client.admin.describe_producers([TopicPartition(*place)])
                found.update(_open_starts(answer))
            except KafkaError as error:
                self._note(f"{_text(place)}: producers cannot be queried: {type(error).__name__}")
        return found

    def _ends(self, places: Sequence[Place], committed: bool) -> dict[Place, int]:
        """Return the last stable offsets, or the high watermarks."""
        from confluent_kafka import IsolationLevel, KafkaException, TopicPartition

        if not places:
            return {}
        level = "READ_COMMITTED" if committed else "READ_UNCOMMITTED"
        latest = _admin().OffsetSpec.latest()
        answers = self._admin.list_offsets(
            {TopicPartition(*place): latest for place in places},
            isolation_level=IsolationLevel[level],
            request_timeout=_ASK_TIMEOUT_S,
        )
        found = {}
        for at, future in answers.items():
            try:
                found[(at.topic, at.partition)] = future.result().offset
            except KafkaException as error:
                place = _text((at.topic, at.partition))
                self._note(f"{place}: offsets cannot be queried: {said(error)}")
        return found

    def _groups(self, stable: Mapping[Place, int]) -> dict[Place, list[WaitingGroup]]:
        """Return the consumer groups that are at or before the stable offset of partitions."""
        from confluent_kafka import ConsumerGroupTopicPartitions, KafkaException, TopicPartition

        found: dict[Place, list[WaitingGroup]] = {}
        if not stable:
            return found
        places = [TopicPartition(*place) for place in stable]
        try:
            listed = self._admin.list_consumer_groups(request_timeout=_ASK_TIMEOUT_S)
            names = sorted(each.group_id for each in listed.result().valid)
            answers = {
                name: self._admin.list_consumer_group_offsets(
                    [ConsumerGroupTopicPartitions(name, places)], request_timeout=_ASK_TIMEOUT_S
                )[name]
                for name in names
            }
        except KafkaException as error:
            self._note(f"consumer groups cannot be queried: {said(error)}")
            return found
        for name, future in answers.items():
            try:
                committed = future.result().topic_partitions
            except KafkaException as error:
                self._note(f"consumer group {name!r} cannot be queried: {said(error)}")
                continue
            for at in committed:
                place = (at.topic, at.partition)
                if at.error is None and 0 <= at.offset <= stable.get(place, _NO_OFFSET):
                    found.setdefault(place, []).append(WaitingGroup(name, at.offset))
        return found

    @property
    def _admin(self) -> Any:
        if not hasattr(self, "_made"):
            self._made = _admin().AdminClient({**self.settings.client(), "log_level": 0})
        return self._made

    def _note(self, text: str) -> None:
        if text not in self.notes:
            self.notes.append(text)


def _admin() -> Any:
    """Without its types: they leave out some of the names that it exports."""
    return importlib.import_module("confluent_kafka.admin")


def _open_starts(answer: Mapping[Any, Any]) -> dict[Place, dict[int, int]]:
    return {
        (at.topic, at.partition): {
            each.producer_id: each.current_transaction_start_offset
            for each in state.active_producers
            if each.current_transaction_start_offset != _NO_OFFSET
        }
        for at, state in answer.items()
    }


def _holder(starts: Mapping[int, int], stable: int | None, names: Mapping[int, str]) -> str | None:
    for producer, first in starts.items():
        if first == stable:
            return names.get(producer, f"producer {producer}")
    return None


def _at(touched: Touched, starts: Mapping[int, int] | None, producer: int) -> Touched:
    """Return a partition as one producer's transaction has it."""
    if starts is None:
        return touched
    first = starts.get(producer)
    stable = touched.stable_offset
    holds = None if stable is None else first == stable
    return replace(touched, first_offset=first, holds=holds)


def _text(place: Place) -> str:
    return f"{place[0]}[{place[1]}]"
