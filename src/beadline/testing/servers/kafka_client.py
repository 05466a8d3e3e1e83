"""What a test asks a Kafka from outside: its topics, their ends, and what a consumer sees.

Clients are made for every call and dropped after it. That costs some 50 ms, and a client of the
test never waits out the back-off of a broker that was away, nor is it carried over a fork.
"""

from __future__ import annotations

import importlib
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from typing import Any

from beadline.shared.retry import polls

READ_COMMITTED = "read_committed"
READ_UNCOMMITTED = "read_uncommitted"
_CALL_TIMEOUT_S = 10
_POLL_S = 0.01
# Fault tests kill brokers: that a client lost its connection is no news.
_QUIET = {"log_level": 2}


@dataclass(frozen=True)
class KafkaRecord:
    """One record as a consumer saw it."""

    topic: str
    partition: int
    offset: int
    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes | None], ...]
    timestamp_ms: int


def create_topic(
    servers: str, name: str, partitions: int, replication: int, config: Mapping[str, str]
) -> None:
    """Create a topic; the client's own error if there is one by that name."""
    admin = _admin(servers)  # held to the end: one that is dropped takes its calls with it
    topic = _admin_module().NewTopic(name, partitions, replication, config=dict(config))
    admin.create_topics([topic])[name].result(_CALL_TIMEOUT_S)


def has_leaders(servers: str, topic: str, partitions: int) -> bool:
    """Whether the topic has all of its partitions, and each has a leader."""
    found = _admin(servers).list_topics(topic, timeout=_CALL_TIMEOUT_S).topics[topic]
    leaders = [partition.leader for partition in found.partitions.values()]
    return len(leaders) == partitions and all(leader >= 0 for leader in leaders)


def is_complete(servers: str, brokers: int) -> bool:
    """Whether that many brokers are in, and every partition has a leader and all its replicas."""
    from confluent_kafka import KafkaException

    try:
        metadata = _admin(servers).list_topics(timeout=2)
    except KafkaException:
        return False
    replicated = all(
        partition.leader >= 0 and len(partition.isrs) == len(partition.replicas)
        for topic in metadata.topics.values()
        for partition in topic.partitions.values()
    )
    return replicated and len(metadata.brokers) == brokers


def end_offsets(servers: str, topic: str, isolation: str) -> dict[int, int]:
    """The offset after the last, by partition; of `read_committed` the last stable offset."""
    from confluent_kafka import IsolationLevel, TopicPartition

    admin = _admin(servers)
    latest = _admin_module().OffsetSpec.latest()
    asked = {TopicPartition(topic, each): latest for each in _partitions(admin, topic)}
    level = IsolationLevel[isolation.upper()]
    found = admin.list_offsets(asked, isolation_level=level, request_timeout=_CALL_TIMEOUT_S)
    return {at.partition: future.result().offset for at, future in found.items()}


def read(servers: str, topic: str, isolation: str, timeout_s: float) -> list[KafkaRecord]:
    """Every record that a new consumer sees now, by partition and offset; see `KafkaCluster`."""
    deadline = time.monotonic() + timeout_s  # of all polls together: the client waits in each
    if isolation == READ_COMMITTED:
        _wait_for_markers(servers, timeout_s)
    with closing(_consumer(servers, isolation)) as consumer:
        records = list(_read_to_end(consumer, topic, deadline))
    return sorted(records, key=lambda record: (record.partition, record.offset))


def _admin_module() -> Any:
    """Without its types: they leave out some of the names that it exports."""
    return importlib.import_module("confluent_kafka.admin")


def _admin(servers: str) -> Any:
    return _admin_module().AdminClient({"bootstrap.servers": servers, **_QUIET})


def _consumer(servers: str, isolation: str) -> Any:
    from confluent_kafka import Consumer

    return Consumer(
        {
            **_QUIET,
            "bootstrap.servers": servers,
            "group.id": "beadline-testing",  # the client insists on one; no group is joined
            "enable.auto.commit": False,
            "auto.offset.reset": "error",
            "isolation.level": isolation,
            "enable.partition.eof": True,
            # How long a broker holds back the answer that there is nothing more.
            "fetch.wait.max.ms": 10,
        }
    )


def _partitions(client: Any, topic: str) -> list[int]:
    """The topic's partitions; the client's own error if there is no such topic."""
    from confluent_kafka import KafkaException

    found = client.list_topics(topic, timeout=_CALL_TIMEOUT_S).topics[topic]
    if found.error is not None:
        raise KafkaException(found.error)
    return sorted(found.partitions)


def _wait_for_markers(servers: str, timeout_s: float) -> None:
    """Return when no coordinator has a transaction that is decided and not written out yet."""
    again = polls(timeout_s, _POLL_S)
    while _ending(servers):
        if not again():
            raise TimeoutError("transactions were ended, and their markers did not follow in time")


def _ending(servers: str) -> bool:
    from kafka import KafkaAdminClient
    from kafka.errors import KafkaError

    try:
        with closing(KafkaAdminClient(bootstrap_servers=servers.split(","))) as admin:
            found = admin.list_transactions(state_filters=["PrepareCommit", "PrepareAbort"])
    except KafkaError:  # a coordinator that is down or loading: it may have some
        return True
    return any(found.values())


def _read_to_end(consumer: Any, topic: str, deadline: float) -> Iterator[KafkaRecord]:
    from confluent_kafka import OFFSET_BEGINNING, KafkaError, KafkaException, TopicPartition

    unread = set(_partitions(consumer, topic))
    consumer.assign([TopicPartition(topic, each, OFFSET_BEGINNING) for each in unread])
    while unread:
        left_s = deadline - time.monotonic()
        if left_s <= 0:
            raise TimeoutError(f"{topic}: did not come to the end of partitions {sorted(unread)}")
        for message in _consume(consumer, min(left_s, 0.1)):
            error = message.error()
            if error is None:
                yield _record(message)
            elif error.code() == KafkaError._PARTITION_EOF:
                unread.discard(message.partition())
            elif not error.retriable():
                raise KafkaException(error)


def _consume(consumer: Any, timeout_s: float) -> Sequence[Any]:
    """The next message, and what else has come: asking for many would wait for that many."""
    first = consumer.poll(timeout_s)
    return [] if first is None else [first, *consumer.consume(10_000, timeout=0)]


def _record(message: Any) -> KafkaRecord:
    return KafkaRecord(
        topic=message.topic(),
        partition=message.partition(),
        offset=message.offset(),
        key=message.key(),
        value=message.value(),
        headers=tuple(message.headers() or ()),
        timestamp_ms=message.timestamp()[1],
    )
