"""Everything about a cluster that can be refused is refused here, before anything is written."""

from __future__ import annotations

from collections.abc import Iterable
from concurrent.futures import as_completed
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from beadline.errors import BadSink
from beadline.extras import require
from beadline.sinks.kafka import options as kafka_options
from beadline.sinks.kafka import topic_ids

if TYPE_CHECKING:
    from beadline.sinks.kafka.sink import KafkaSink

ANSWER_TIMEOUT_S = 10.0
_BROKERS_ASKED = 3
_TIMEOUT_MAX = "transaction.max.timeout.ms"


@dataclass(frozen=True)
class Cluster:
    """What was found out about a cluster, and the id of the topic, if the sink names one."""

    id: str
    topic_id: str


def check_cluster(sink: KafkaSink) -> Cluster:
    """Reachable? does the topic exist? does the transaction timeout fit?"""
    require("kafka")
    check_settings(sink)
    from confluent_kafka import KafkaException
    from confluent_kafka.admin import AdminClient

    heard: list[Any] = []
    settings = kafka_options.client(sink.bootstrap_servers, sink.options)
    settings["error_cb"] = heard.append
    admin = AdminClient(settings)
    try:
        found = admin.list_topics(timeout=ANSWER_TIMEOUT_S)
    except KafkaException as error:
        admin.poll(0)  # or nothing is heard
        why = kafka_options.redacted(_reason(error.args[0], heard), sink.options)
        raise BadSink(
            f"no Kafka broker answered at {sink.bootstrap_servers} in {ANSWER_TIMEOUT_S:.0f} s: "
            f"{why}. Check the address, and security.protocol, sasl.* and ssl.* if the broker "
            "wants them. Nothing was written; start again when it is up."
        ) from error
    topic_id = _check_topic(admin, sink.topic) if sink.topic is not None else ""
    _check_timeout(admin, sink, found.brokers)
    return Cluster(found.cluster_id or sink.bootstrap_servers, topic_id)


def _reason(error: Any, heard: Iterable[Any]) -> str:
    """What was wrong with a connection, if any was tried; the call's error says only that."""
    from confluent_kafka import KafkaError

    said = (each.str() for each in heard if each.code() != KafkaError._ALL_BROKERS_DOWN)
    return str(next(said, error.str()))


def check_settings(sink: KafkaSink) -> None:
    """What can be known without a broker."""
    if not sink.bootstrap_servers or not isinstance(sink.bootstrap_servers, str):
        raise BadSink('KafkaSink needs bootstrap_servers="host:port,...". Nothing was written.')
    if not sink.transaction_timeout_s >= 1:
        raise BadSink(
            f"transaction_timeout_s must be at least 1, not {sink.transaction_timeout_s}: it must "
            "be longer than an epoch takes. Nothing was written."
        )
    kafka_options.check(sink.options)
    from confluent_kafka import KafkaException, Producer

    try:
        Producer(kafka_options.producer(sink.bootstrap_servers, sink.options))
    except (KafkaException, TypeError, ValueError) as error:
        said = error.args[0]
        why = kafka_options.redacted(
            str(said.str() if hasattr(said, "str") else said), sink.options
        )
        raise BadSink(f"Kafka options cannot be used: {why}. Nothing was written.") from None


def _check_topic(admin: Any, topic: str) -> str:
    """Return its id, which another topic of this name would not have."""
    from confluent_kafka import KafkaError, TopicCollection

    found = admin.list_topics(topic, timeout=ANSWER_TIMEOUT_S).topics[topic]
    if found.error is None:
        asked = admin.describe_topics(TopicCollection([topic]), request_timeout=ANSWER_TIMEOUT_S)
        return topic_ids.described(asked[topic].result())

    if found.error.code() == KafkaError.TOPIC_AUTHORIZATION_FAILED:
        raise BadSink(f"not authorised to see topic {topic!r}. Grant it; nothing was written.")
    raise BadSink(
        f"topic {topic!r} cannot be used: {found.error.str()}. Create it, with the partitions and "
        "retention that you want; nothing was written."
    )


def _check_timeout(admin: Any, sink: KafkaSink, brokers: Iterable[int]) -> None:
    """The broker refuses a longer timeout only when the first producer starts, in mid-epoch."""
    settings = _broker_settings(admin, brokers)
    entry = settings.get(_TIMEOUT_MAX)
    if entry is not None and sink.transaction_timeout_s * 1000 > int(entry.value):
        raise BadSink(
            f"transaction_timeout_s={sink.transaction_timeout_s:g} is above the broker's maximum "
            f"of {int(entry.value) / 1000:g} s ({_TIMEOUT_MAX}). Lower the one or raise the other: "
            "a decided epoch must be finished within it, or it has to be computed again. Nothing "
            "was written."
        )


def _broker_settings(admin: Any, brokers: Iterable[int]) -> dict[str, Any]:
    """Of the first broker that answers: one that has just died may be listed still."""
    from confluent_kafka import KafkaException
    from confluent_kafka.admin._config import ConfigResource

    some = sorted(brokers)[:_BROKERS_ASKED]
    wanted = [ConfigResource(ConfigResource.Type.BROKER, str(broker)) for broker in some]
    asked = [
        admin.describe_configs([resource], request_timeout=ANSWER_TIMEOUT_S)[resource]
        for resource in wanted
    ]
    for answer in as_completed(asked):
        try:
            return dict(answer.result())
        except KafkaException:
            continue
    return {}  # not allowed to look; then the first producer is told
