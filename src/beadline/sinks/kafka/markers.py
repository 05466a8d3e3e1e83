"""Markers: how to find out, long afterwards, what became of a transaction.

An error from the broker is no proof: "committed, and the id was used again" and "timed out and
aborted" are answered alike (rule 12). So every transaction ends with a record in a control topic
of the query (rule 20): one partition, compacted, its key the transactional id. A transaction is
visible as a whole, so it was committed if its marker shows under ``read_committed``, and aborted if
a reader has gone past the marker's place without seeing it; that place is found by reading what is
not visible too. The topic belongs to one query, and the driver creates it at the query's start: in
a shared one, a stranger's open transaction would keep readers from going past anything.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any

from beadline.sink import BadSink, CommitFailed, EpochId, PartId, Retries, Verdict
from beadline.sinks.kafka.client import Transaction
from beadline.sinks.kafka.part import KafkaPart
from beadline.sinks.kafka.settings import KafkaSettings

CONTROL_PARTITION = 0
TAIL_RECORDS = 2_000
_READ_TIMEOUT_S = 10.0
_LEADER_TIMEOUT_S = 30.0
_TRY_S = 2.0
_ANSWER_TIMEOUT_S = 10.0
_CREATE_TIMEOUT_S = 5.0
# Only the controller creates topics: if it has just died, the others elect another first.
_ELECTION_TIMEOUT_S = 60.0
_REPLICAS_WANTED = 3
_TRANSACTIONS = "__transaction_state"
_LAG = "min.compaction.lag.ms"
_LAG_MIN_MS = 3_600_000
_TOPIC_SETTINGS = {
    "cleanup.policy": "compact",
    # Small segments, so that compaction keeps up: a start reads the end of this topic.
    "segment.bytes": "4194304",
    "min.cleanable.dirty.ratio": "0.1",
    "delete.retention.ms": "60000",
    # What became of the newest epoch must be answerable, aborted markers included, after an outage
    # too. What is in the newest segment is never compacted; a marker may be the last of another.
    _LAG: "86400000",
}


@dataclass(frozen=True)
class Marker:
    """The last record of a transaction: which part it is, and which transaction."""

    transaction: Transaction
    part: PartId

    def to_bytes(self) -> bytes:
        """Return the record's value; its key is the transactional id."""
        producer = [self.transaction.producer_id, self.transaction.producer_epoch]
        return json.dumps({"version": 1, "part": str(self.part), "producer": producer}).encode()

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
            transaction = Transaction((key or b"").decode(), producer_id, producer_epoch)
        except (ValueError, KeyError, TypeError):
            return None
        return None if part is None else cls(transaction, part)


class NoMarker(LookupError):
    """A marker is not where it must be, so that nothing can ever be proven."""


class Reader:
    """Reads one cluster's control topics."""

    def __init__(self, settings: KafkaSettings) -> None:
        self._settings = settings.client()

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
            f"those of {len(missing) - 1} other parts: it was deleted or emptied, and Kafka "
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

        As far back as needed to find any: aborted ones and others' may be in between.
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
    place = TopicPartition(topic, CONTROL_PARTITION)
    retries = Retries({Verdict.AWAY: _LEADER_TIMEOUT_S})
    while True:
        try:
            low, high = consumer.get_watermark_offsets(place, timeout=_TRY_S)
        except KafkaException as error:
            code = error.args[0].code()
            if code in gone:
                return None
            if code not in moving or not retries.again(Verdict.AWAY):
                raise
            with suppress(KafkaException):
                consumer.list_topics(topic, timeout=_TRY_S)  # by itself it would not ask again
        else:
            return low, high


def _read(consumer: Any, topic: str, begin: int, end: int) -> Iterator[tuple[int, Marker]]:
    """Yield the markers in [begin, end) that this consumer may see, with their offsets."""
    from confluent_kafka import KafkaError, KafkaException, TopicPartition

    if begin >= end:
        return
    consumer.assign([TopicPartition(topic, CONTROL_PARTITION, begin)])
    retries = Retries({Verdict.UNCLEAR: _READ_TIMEOUT_S})
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
            if not retries.again(Verdict.UNCLEAR):
                raise TimeoutError(f"topic {topic!r} ends at {message.offset()}, not at {end}")
            consumer.assign([TopicPartition(topic, CONTROL_PARTITION, message.offset())])
            continue
        if message.offset() >= end:
            return
        marker = Marker.read(message.key(), message.value())
        if marker is not None:
            yield message.offset(), marker
        if message.offset() == end - 1:
            return


def never_known(epoch: EpochId, sink: str, error: LookupError) -> CommitFailed:
    """Return the error where a marker is missing: asking again would find no more."""
    return CommitFailed(
        f"query {epoch.query.name!r}, epoch {epoch.number}, sink {sink!r}: it is impossible to "
        f"tell whether the decided rows are visible: {error}. A restart will not help. Look for "
        "rows of this epoch in the target, write the missing ones yourself, and continue with "
        f'start(..., drop=["{sink}@{epoch.number}"]), which treats the epoch as finished '
        "for this sink, and touches neither the rows that are there nor other sinks."
    )


def create_control_topic(
    settings: KafkaSettings, name: str, query: str, target: str | None = None
) -> None:
    """Create the control topic of a query; fine if it is there already, and keeps its markers.

    It is replicated like the topic that the sink writes to, if that is known.
    """
    from confluent_kafka import KafkaError, KafkaException
    from confluent_kafka.admin import AdminClient
    from confluent_kafka.cimpl import NewTopic

    no_controller = {
        KafkaError._TIMED_OUT,
        KafkaError._TRANSPORT,
        KafkaError.NOT_CONTROLLER,
        KafkaError.REQUEST_TIMED_OUT,
    }
    admin = AdminClient(settings.client())
    found = admin.list_topics(timeout=_ANSWER_TIMEOUT_S)
    if name in found.topics and found.topics[name].error is None:
        _check_kept(admin, name)
        return
    topic = NewTopic(name, 1, _replicas(found, target), config=_TOPIC_SETTINGS)
    retries = Retries({Verdict.AWAY: _ELECTION_TIMEOUT_S})
    while True:
        try:
            admin.create_topics([topic], request_timeout=_CREATE_TIMEOUT_S)[name].result()
            return
        except KafkaException as error:
            said = error.args[0]
            if said.code() == KafkaError.TOPIC_ALREADY_EXISTS:
                return
            if said.code() in no_controller and retries.again(Verdict.AWAY):
                # librdkafka waits for the controller that it knows; new metadata names another.
                with suppress(KafkaException):
                    admin.list_topics(timeout=_ANSWER_TIMEOUT_S)
                continue
            if said.code() == KafkaError.TOPIC_EXCEPTION and "collides" in said.str():
                raise BadSink(
                    f"control topic {name!r} of query {query!r} cannot be created: Kafka treats "
                    "'.' and '_' in topic names as the same, and another query's topic exists "
                    f"already ({said.str()}). Give this sink one of its own, "
                    f"control_topic={_another(name)!r} for example. No row was written."
                ) from error
            raise BadSink(
                f"control topic {name!r} cannot be created: {said.str()}. Create it with one "
                f"partition, cleanup.policy=compact and {_LAG}={_TOPIC_SETTINGS[_LAG]}, or name "
                "one with control_topic=. No row was written."
            ) from error


def _another(name: str) -> str:
    """Return a name that collides with none that differs in '.' and '_' only."""
    return f"{name.replace('.', '-').replace('_', '-')}-{zlib.crc32(name.encode()):08x}"


def _replicas(found: Any, target: str | None) -> int:
    """As many as the target has, or Kafka's own log of transactions.

    Not by the brokers that are there: one that is down now would be missing in the topic for good,
    and the death of one more would stop the query.
    """
    counts = [
        len(partition.replicas)
        for name in (target, _TRANSACTIONS)
        if name in found.topics
        for partition in found.topics[name].partitions.values()
    ]
    return max(counts, default=min(_REPLICAS_WANTED, len(found.brokers)))


def _check_kept(admin: Any, name: str) -> None:
    """Markers that are deleted by age would let a committed part look lost."""
    from confluent_kafka import KafkaException
    from confluent_kafka.admin._config import ConfigResource

    resource = ConfigResource(ConfigResource.Type.TOPIC, name)
    try:
        asked = admin.describe_configs([resource], request_timeout=_ANSWER_TIMEOUT_S)
        settings = asked[resource].result()
    except KafkaException:
        return  # not allowed to look
    policy = settings["cleanup.policy"].value
    if policy != "compact":
        raise BadSink(
            f"control topic {name!r} has cleanup.policy={policy}, so that markers vanish by age, "
            "and a part that was committed could look lost. Set cleanup.policy=compact on it. No "
            "row was written."
        )
    lag = settings.get(_LAG)
    if lag is not None and int(lag.value) < _LAG_MIN_MS:
        raise BadSink(
            f"control topic {name!r} has {_LAG}={lag.value}, so that the marker of an aborted "
            "transaction may be gone before it was asked for, and nothing could be proven. "
            f"Set it to at least {_LAG_MIN_MS}; {_TOPIC_SETTINGS[_LAG]} is a day. No row was "
            "written."
        )
