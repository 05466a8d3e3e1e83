"""Markers: how anybody can find out, long afterwards, what became of a transaction.

An error from the broker is no proof: "committed, and the id was used again" and "timed out and
aborted" are answered alike (rule 12). So every transaction ends with a record in a control topic
of the query (rule 20): one partition, compacted, its key the transactional id. A transaction is
visible as a whole, so it was committed if its marker shows under ``read_committed``, and aborted if
a reader has gone past the marker's place without seeing it; that place is found by reading what is
not visible too. The topic belongs to one query: in a
shared one, a stranger's open transaction would keep readers from going past anything.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any

from beadline.ids import PartId
from beadline.sinks.kafka import options as kafka_options
from beadline.sinks.kafka.part import KafkaPart
from beadline.sinks.kafka.transactions import Transaction

PARTITION = 0
TAIL_RECORDS = 2_000
_READ_TIMEOUT_S = 10.0
_LEADER_TIMEOUT_S = 30.0
_TRY_S = 2.0
_PAUSE_S = 0.1
LAG = "min.compaction.lag.ms"
TOPIC_SETTINGS = {
    "cleanup.policy": "compact",
    # Small segments, so that compaction keeps up: a start reads the end of this topic.
    "segment.bytes": "4194304",
    "min.cleanable.dirty.ratio": "0.1",
    "delete.retention.ms": "60000",
    # What became of the newest epoch must be answerable, aborted markers included, after an outage
    # too. What is in the newest segment is never compacted; a marker may be the last of another.
    LAG: "86400000",
}


@dataclass(frozen=True)
class Marker:
    """The last record of a transaction: which part it is, and which transaction."""

    transactional_id: str
    producer_id: int
    producer_epoch: int
    part: PartId

    @property
    def transaction(self) -> Transaction:
        """Which one it was written in."""
        return Transaction(self.transactional_id, self.producer_id, self.producer_epoch)

    def to_bytes(self) -> bytes:
        """Return the record's value; its key is the transactional id."""
        fields = {"part": str(self.part), "producer": [self.producer_id, self.producer_epoch]}
        return json.dumps({"version": 1, **fields}).encode()

    def is_of(self, part: KafkaPart) -> bool:
        """Whether it was written in the transaction that a committable names."""
        return self.transaction == part.transaction

    @classmethod
    def read(cls, key: bytes | None, value: bytes | None) -> Marker | None:
        """Read a record of the control topic; None for what is not a marker."""
        try:
            fields = json.loads(value or b"")
            part = PartId.parse(fields["part"])
            producer_id, producer_epoch = fields["producer"]
            name = (key or b"").decode()
        except (ValueError, KeyError, TypeError):
            return None
        return None if part is None else cls(name, producer_id, producer_epoch, part)


class NoMarker(LookupError):
    """A marker is not where it must be, so that nothing can ever be proven."""


class Reader:
    """Reads one cluster's control topics."""

    def __init__(self, servers: str, options: kafka_options.Options) -> None:
        self._settings = kafka_options.client(servers, options)

    def fates(self, topic: str, wanted: Mapping[PartId, KafkaPart]) -> dict[PartId, bool | None]:
        """Say of each part whether it was committed; None if that cannot be told yet.

        First its marker is looked for among all records, visible or not; so it is known where it
        must show. Raises ``NoMarker`` if it is not there: then nothing can be proven.
        """
        places = self._places(topic, wanted)
        found: dict[PartId, bool | None] = dict.fromkeys(wanted)
        with self._consumer("read_committed") as consumer:
            stable = (_limits(consumer, topic) or (0, 0))[1]
            ended = {part: offset for part, offset in places.items() if offset < stable}
            if not ended:
                return found
            first, last = min(ended.values()), max(ended.values())
            seen = {offset for offset, _ in _read(consumer, topic, first, last + 1)}
        return {**found, **{part: offset in seen for part, offset in ended.items()}}

    def _places(self, topic: str, wanted: Mapping[PartId, KafkaPart]) -> dict[PartId, int]:
        """Return the offset of each part's marker, committed or not; from the end backwards."""
        with self._consumer("read_uncommitted") as consumer:
            low, end = _limits(consumer, topic) or (0, 0)
            back = TAIL_RECORDS
            while True:
                begin = max(low, end - back)
                found = {
                    marker.part: offset
                    for offset, marker in _read(consumer, topic, begin, end)
                    if marker.part in wanted and marker.is_of(wanted[marker.part])
                }
                if len(found) == len(wanted):
                    return found
                if begin == low:
                    break
                back *= 8
        missing = [part for part in wanted if part not in found]
        raise NoMarker(
            f"control topic {topic!r} does not hold the marker of {missing[0]} (any more), nor "
            f"those of {len(missing) - 1} other parts: somebody deleted or emptied it, and Kafka "
            f"itself has forgotten transaction {wanted[missing[0]].transactional_id}"
        )

    def open_now(self, topic: str) -> list[Marker]:
        """Return the markers that transactions which are still open may have written.

        Those lie beyond the last stable offset; so may others that have ended, and the newest of
        an id comes last.
        """
        with self._consumer("read_committed") as consumer:
            limits = _limits(consumer, topic)
        if limits is None:
            return []
        with self._consumer("read_uncommitted") as consumer:
            end = (_limits(consumer, topic) or limits)[1]
            return [marker for _, marker in _read(consumer, topic, limits[1], end)]

    def newest(self, topic: str, query: str) -> list[Marker]:
        """Return a query's visible markers at the end of the topic, oldest first.

        As far back as needed to find any: aborted ones and strangers' may be in between.
        """
        with self._consumer("read_committed") as consumer:
            limits = _limits(consumer, topic)
            if limits is None:
                return []
            low, end = limits
            back = TAIL_RECORDS
            while True:
                begin = max(low, end - back)
                read = _read(consumer, topic, begin, end)
                markers = [marker for _, marker in read if marker.part.query == query]
                if markers or begin == low:
                    return markers
                back *= 8

    @contextmanager
    def _consumer(self, isolation: str) -> Iterator[Any]:
        from confluent_kafka import Consumer

        consumer = Consumer(
            {
                **self._settings,
                "group.id": "beadline-markers",  # never joined, never committed
                "isolation.level": isolation,
                "enable.auto.commit": False,
                "enable.partition.eof": True,
                "auto.offset.reset": "error",
                # The end of the topic is told by an answer without records, for which the broker
                # would wait: half a second in every look, while readers are held up.
                "fetch.wait.max.ms": 10,
            }
        )
        try:
            yield consumer
        finally:
            consumer.close()


def _limits(consumer: Any, topic: str) -> tuple[int, int] | None:
    """Return the first offset and the end for this isolation level; None if there is no topic."""
    from confluent_kafka import KafkaError, KafkaException, TopicPartition

    gone = (KafkaError._UNKNOWN_PARTITION, KafkaError.UNKNOWN_TOPIC_OR_PART)
    # Its broker has died, and this client still waits for it, or does not know the new leader yet.
    moving = (
        KafkaError._TIMED_OUT,
        KafkaError._TRANSPORT,
        KafkaError._DESTROY_BROKER,
        KafkaError.NOT_LEADER_FOR_PARTITION,
        KafkaError.LEADER_NOT_AVAILABLE,
        KafkaError.OFFSET_NOT_AVAILABLE,
    )
    place = TopicPartition(topic, PARTITION)
    deadline_s = time.monotonic() + _LEADER_TIMEOUT_S
    while True:
        try:
            low, high = consumer.get_watermark_offsets(place, timeout=_TRY_S)
        except KafkaException as error:
            code = error.args[0].code()
            if code in gone:
                return None
            if code not in moving or time.monotonic() > deadline_s:
                raise
            time.sleep(_PAUSE_S)
            with suppress(KafkaException):
                consumer.list_topics(topic, timeout=_TRY_S)  # by itself it would not ask again
        else:
            return low, high


def _read(consumer: Any, topic: str, begin: int, end: int) -> Iterator[tuple[int, Marker]]:
    """Yield the markers in [begin, end) that this consumer may see, with their offsets."""
    from confluent_kafka import KafkaError, KafkaException, TopicPartition

    if begin >= end:
        return
    consumer.assign([TopicPartition(topic, PARTITION, begin)])
    deadline_s = time.monotonic() + _READ_TIMEOUT_S
    while True:
        message = consumer.poll(_READ_TIMEOUT_S)
        if message is None:
            raise TimeoutError(f"topic {topic!r} was not read to its end in {_READ_TIMEOUT_S} s")
        if message.error() is not None:
            if message.error().code() == KafkaError.GROUP_AUTHORIZATION_FAILED:
                continue  # librdkafka asks for the group's coordinator, which nobody here needs
            if message.error().code() != KafkaError._PARTITION_EOF:
                raise KafkaException(message.error())
            if message.offset() >= end:
                return
            # A leader that is new does not know the end yet: what it does not show is not absent.
            if time.monotonic() > deadline_s:
                raise TimeoutError(f"topic {topic!r} ends at {message.offset()}, not at {end}")
            time.sleep(_PAUSE_S)
            consumer.assign([TopicPartition(topic, PARTITION, message.offset())])
            continue
        if message.offset() >= end:
            return
        marker = Marker.read(message.key(), message.value())
        if marker is not None:
            yield message.offset(), marker
        if message.offset() == end - 1:
            return
