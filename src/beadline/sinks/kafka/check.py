"""Everything about a cluster that can be refused is refused here, before anything is written."""

from __future__ import annotations

from collections.abc import Iterable
from concurrent.futures import as_completed
from dataclasses import dataclass
from functools import partial
from typing import Any

from beadline.shared.topic_ids import topic_id
from beadline.sink import BadSink, Verdict, require, retry, starting
from beadline.sinks.kafka.settings import KafkaSettings, said

_ANSWER_TIMEOUT_S = 10.0
_BROKERS_ASKED = 3
_TIMEOUT_MAX = "transaction.max.timeout.ms"


@dataclass(frozen=True)
class ClusterFacts:
    """What was found out about a cluster, and the id of the topic, if the sink names one."""

    id: str
    topic_id: str


def check_cluster(settings: KafkaSettings, topic: str | None) -> ClusterFacts:
    """Reachable? does the topic exist? does the transaction timeout fit?"""
    require("kafka")
    check_settings(settings)
    from confluent_kafka import KafkaException
    from confluent_kafka.admin import AdminClient

    heard: list[Any] = []
    told: dict[str, Any] = {**settings.client(), "error_cb": heard.append}
    admin = AdminClient(told)
    try:
        found = admin.list_topics(timeout=_ANSWER_TIMEOUT_S)
    except KafkaException as error:
        admin.poll(0)  # or nothing is heard
        why = settings.redacted(_reason(error.args[0], heard))
        raise BadSink(
            f"no Kafka broker answered at {settings.servers} in {_ANSWER_TIMEOUT_S:.0f} s: "
            f"{why}. Check the address, and security.protocol, sasl.* and ssl.* if the broker "
            "requires them. Nothing was written; start again when it is up."
        ) from error
    topic_id = _check_topic(admin, topic) if topic is not None else ""
    _check_timeout(admin, settings.transaction_timeout_s, found.brokers)
    return ClusterFacts(found.cluster_id or settings.servers, topic_id)


def _reason(error: Any, heard: Iterable[Any]) -> str:
    """What was wrong with a connection, if any was tried; the call's error says only that."""
    from confluent_kafka import KafkaError

    said = (each.str() for each in heard if each.code() != KafkaError._ALL_BROKERS_DOWN)
    return str(next(said, error.str()))


def check_settings(settings: KafkaSettings) -> None:
    """What can be known without a broker."""
    if not settings.servers or not isinstance(settings.servers, str):
        raise BadSink('KafkaSink needs bootstrap_servers="host:port,...". Nothing was written.')
    timeout_s = settings.transaction_timeout_s
    if not timeout_s >= 1:
        raise BadSink(
            f"transaction_timeout_s must be at least 1, not {timeout_s}: it must "
            "be longer than an epoch takes. Nothing was written."
        )
    settings.check()
    from confluent_kafka import KafkaException, Producer

    try:
        Producer(settings.producer())
    except (KafkaException, TypeError, ValueError) as error:
        why = settings.redacted(said(error))
        raise BadSink(f"Kafka options cannot be used: {why}. Nothing was written.") from None


def _check_topic(admin: Any, topic: str) -> str:
    """Return its id; while its brokers are starting, or it is just being created, wait a moment."""
    from confluent_kafka import KafkaError, KafkaException

    try:
        return retry(partial(_ask_topic, admin, topic), _verdict, starting(_ANSWER_TIMEOUT_S))
    except KafkaException as found:
        error = found.args[0]
    if error.code() == KafkaError.TOPIC_AUTHORIZATION_FAILED:
        raise BadSink(f"not authorised to see topic {topic!r}. Grant it; nothing was written.")
    advice = "Create it, with the partitions and retention that you want"
    if _verdict(KafkaException(error)) is not Verdict.FINAL:
        advice = "Start again when its brokers are up"
    raise BadSink(f"topic {topic!r} cannot be used: {error.str()}. {advice}; nothing was written.")


def _ask_topic(admin: Any, topic: str) -> str:
    """Return the topic's id, which another topic of this name would not have.

    Listing it would create it where the brokers create topics, and one that is misspelt with it.
    """
    from confluent_kafka import TopicCollection

    asked = admin.describe_topics(TopicCollection([topic]), request_timeout=_ANSWER_TIMEOUT_S)
    return topic_id(asked[topic].result())


def _verdict(error: Exception) -> Verdict:
    """Judge whether asking about the topic again may help."""
    from confluent_kafka import KafkaError, KafkaException

    code = error.args[0].code() if isinstance(error, KafkaException) else None
    if code in (KafkaError.LEADER_NOT_AVAILABLE, KafkaError.NOT_LEADER_FOR_PARTITION):
        return Verdict.BUSY
    away = (KafkaError._TRANSPORT, KafkaError._TIMED_OUT, KafkaError._ALL_BROKERS_DOWN)
    return Verdict.AWAY if code in away else Verdict.FINAL


def _check_timeout(admin: Any, timeout_s: float, brokers: Iterable[int]) -> None:
    """The broker refuses a longer timeout only when the first producer starts, during an epoch."""
    settings = _broker_settings(admin, brokers)
    entry = settings.get(_TIMEOUT_MAX)
    if entry is not None and timeout_s * 1000 > int(entry.value):
        raise BadSink(
            f"transaction_timeout_s={timeout_s:g} is above the broker's maximum "
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
        admin.describe_configs([resource], request_timeout=_ANSWER_TIMEOUT_S)[resource]
        for resource in wanted
    ]
    for answer in as_completed(asked):
        try:
            return dict(answer.result())
        except KafkaException:
            continue
    return {}  # not allowed to look; then the first producer is told
