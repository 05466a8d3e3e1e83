"""Kafka: a scratch topic of as many partitions, and a new ``read_committed`` reader of it."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from beadline.errors import UsageError
from beadline.shared.retry import polls
from beadline.verify.kafka_proxy import KafkaProxy, addresses
from beadline.verify.scratch import ScratchLocation, ScratchStore

if TYPE_CHECKING:
    from beadline.sinks import KafkaSink

CALL_TIMEOUT_S = 15.0
READ_TIMEOUT_S = 60.0
_TOPIC_LENGTH_MAX = 249
# Copies keep the times of their records, and old ones would be deleted during the run.
_CONFIG = {"retention.ms": "-1", "retention.bytes": "-1"}
Settings = dict[str, Any]


def settings_of(sink: KafkaSink) -> Settings:
    """The settings of any client of the sink's cluster."""
    return sink.settings.client()


def scratch_topic(topic: str, tag: str) -> str:
    """The name of the copy; the tag distinguishes it from the real one."""
    return f"{topic[: _TOPIC_LENGTH_MAX - len(tag) - 1]}-{tag}"


def partitions(settings: Settings, topic: str) -> list[int]:
    """The partitions of a topic; a clear error if it is not there."""
    from confluent_kafka import KafkaException
    from confluent_kafka.admin import AdminClient  # type: ignore[attr-defined, unused-ignore]

    try:
        found = AdminClient(settings).list_topics(topic, timeout=CALL_TIMEOUT_S).topics[topic]
    except KafkaException as error:
        raise UsageError(f"Kafka does not answer: {error.args[0].str()}") from None
    if found.error is not None:
        raise UsageError(f"Kafka topic {topic!r}: {found.error.str()}")
    return sorted(found.partitions)


def create(settings: Settings, topic: str, count: int) -> None:
    """Make a topic with the cluster's own replication, and wait until it has leaders."""
    from confluent_kafka.admin import (  # type: ignore[attr-defined, unused-ignore]
        AdminClient,
        NewTopic,
    )

    admin: Any = AdminClient(settings)
    new = NewTopic(topic, num_partitions=count, replication_factor=-1, config=_CONFIG)
    made = admin.create_topics([new])
    made[topic].result(CALL_TIMEOUT_S)
    again = polls(CALL_TIMEOUT_S, 0.1)
    while True:
        found = admin.list_topics(topic, timeout=CALL_TIMEOUT_S).topics[topic]
        ready = found.error is None and len(found.partitions) == count
        if ready and all(each.leader >= 0 for each in found.partitions.values()):
            return
        if not again():
            raise TimeoutError(f"Kafka topic {topic!r} was created and has no leaders")


def delete(settings: Settings, *topics: str) -> None:
    """Delete topics; one that is not there is fine, and one that stays is named."""
    from confluent_kafka import KafkaError, KafkaException
    from confluent_kafka.admin import AdminClient  # type: ignore[attr-defined, unused-ignore]

    admin: Any = AdminClient(settings)
    futures = admin.delete_topics(list(topics), request_timeout=CALL_TIMEOUT_S)
    stayed = []
    for topic, future in futures.items():
        try:
            future.result(CALL_TIMEOUT_S)
        except KafkaException as error:
            if error.args[0].code() != KafkaError.UNKNOWN_TOPIC_OR_PART:
                stayed.append(f"{topic} ({error.args[0].str()})")
    if stayed:
        raise UsageError(f"Kafka did not delete {', '.join(stayed)}")


def consumer(settings: Settings, isolation: str = "read_committed") -> Any:
    """A reader that joins no group and reports the end of a partition."""
    from confluent_kafka import Consumer

    return Consumer(
        {
            **settings,
            "group.id": "beadline-verify",  # the client insists on one; no group is joined
            "enable.auto.commit": False,
            "auto.offset.reset": "error",
            "isolation.level": isolation,
            "enable.partition.eof": True,
            "fetch.wait.max.ms": 20,
        }
    )


def messages(reader: Any, starts: dict[tuple[str, int], int], timeout_s: float) -> Iterator[Any]:
    """Every record from these offsets to the current ends, partition by partition."""
    from confluent_kafka import KafkaError, KafkaException, TopicPartition

    deadline_s = time.monotonic() + timeout_s  # of all polls together: the client waits in each
    for (topic, partition), offset in starts.items():
        reader.assign([TopicPartition(topic, partition, offset)])
        ended = False
        while not ended:
            if time.monotonic() > deadline_s:
                raise TimeoutError(f"{topic}/{partition} was not read to its end in {timeout_s} s")
            first = reader.poll(0.2)
            for message in [] if first is None else [first, *reader.consume(10_000, timeout=0)]:
                error = message.error()
                if error is None:
                    yield message
                elif error.code() == KafkaError._PARTITION_EOF:
                    ended = True
                elif not error.retriable():
                    raise KafkaException(error)


def _topic_of(sink: KafkaSink) -> str:
    if sink.topic is None:
        raise UsageError(
            "a KafkaSink without topic= writes to topics that its rows name, which verify cannot "
            "change. Give the sink a topic, or verify the job with a sink per topic."
        )
    return sink.topic


def _clone(sink: KafkaSink, place: ScratchLocation) -> KafkaSink:
    topic = _topic_of(sink)
    settings = settings_of(sink)
    scratch = scratch_topic(topic, place.tag)
    create(settings, scratch, len(partitions(settings, topic)))
    return replace(sink, topic=scratch, control_topic=f"{scratch}-control")


def _shown(sink: KafkaSink) -> Iterator[tuple[Any, ...]]:
    """Key, value and headers: the partition of a record without a key is the client's whim."""
    from confluent_kafka import OFFSET_BEGINNING

    settings = settings_of(sink)
    topic = _topic_of(sink)
    starts = {(topic, each): OFFSET_BEGINNING for each in partitions(settings, topic)}
    with closing(consumer(settings)) as reader:
        for message in messages(reader, starts, READ_TIMEOUT_S):
            yield (message.key(), message.value(), tuple(message.headers() or ()))


def _remove(sink: KafkaSink, query: str) -> None:
    names = [_topic_of(sink), *([sink.control_topic] if sink.control_topic else [])]
    delete(settings_of(sink), *names)


def _address(sink: KafkaSink) -> tuple[str, int] | None:
    encrypted = str(sink.options.get("security.protocol", "")).lower().endswith("ssl")
    return None if encrypted else addresses(sink.bootstrap_servers)[0]


KAFKA_STORE = ScratchStore(
    clone=_clone,
    shown=_shown,
    remove=_remove,
    key=lambda row: row[0],
    address=_address,
    proxy=lambda sink, _: KafkaProxy(sink.bootstrap_servers),
    through=lambda sink, port: replace(sink, bootstrap_servers=f"127.0.0.1:{port}"),
    no_cuts="brokers tell clients their own addresses, which a proxy cannot change under TLS",
    with_timeout=lambda sink, timeout_s: replace(sink, transaction_timeout_s=timeout_s),
)
