"""The control topic: made at the start of a query, by the driver, if it is not there."""

from __future__ import annotations

import time
import zlib
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from beadline.errors import BadSink
from beadline.sinks.kafka import options as kafka_options
from beadline.sinks.kafka.check import ANSWER_TIMEOUT_S
from beadline.sinks.kafka.markers import LAG, TOPIC_SETTINGS

if TYPE_CHECKING:
    from beadline.sinks.kafka.sink import KafkaSink

_REPLICAS_WANTED = 3
_TRANSACTIONS = "__transaction_state"
_LAG_MIN_MS = 3_600_000
_PAUSE_S = 0.2
_CREATE_TIMEOUT_S = 5.0
_ELECTION_TIMEOUT_S = 60.0
"""Only the controller creates topics: if it has just died, the others elect another first."""


def create_topic(sink: KafkaSink, query: str) -> None:
    """Create the control topic of a query; fine if it is there already, and keeps its markers."""
    from confluent_kafka import KafkaError, KafkaException
    from confluent_kafka.admin import AdminClient
    from confluent_kafka.cimpl import NewTopic

    no_controller = {
        KafkaError._TIMED_OUT,
        KafkaError._TRANSPORT,
        KafkaError.NOT_CONTROLLER,
        KafkaError.REQUEST_TIMED_OUT,
    }
    name = sink.control_topic_of(query)
    admin = AdminClient(kafka_options.client(sink.bootstrap_servers, sink.options))
    found = admin.list_topics(timeout=ANSWER_TIMEOUT_S)
    if name in found.topics and found.topics[name].error is None:
        _check_kept(admin, name)
        return
    topic = NewTopic(name, 1, _replicas(found, sink.topic), config=TOPIC_SETTINGS)
    until_s = time.monotonic() + _ELECTION_TIMEOUT_S
    while True:
        try:
            admin.create_topics([topic], request_timeout=_CREATE_TIMEOUT_S)[name].result()
            return
        except KafkaException as error:
            said = error.args[0]
            if said.code() == KafkaError.TOPIC_ALREADY_EXISTS:
                return
            if said.code() in no_controller and time.monotonic() < until_s:
                _learn_controller(admin)
                continue
            if said.code() == KafkaError.TOPIC_EXCEPTION and "collides" in said.str():
                raise BadSink(
                    f"control topic {name!r} of query {query!r} cannot be created: Kafka takes "
                    f"'.' and '_' in names of topics for the same, and another query's is there "
                    f"already ({said.str()}). Give this sink one of its own, "
                    f"control_topic={_another(name)!r} for example, or the query another name. No "
                    "row was written."
                ) from error
            raise BadSink(
                f"control topic {name!r} cannot be created: {said.str()}. Create it with one "
                f"partition, cleanup.policy=compact and {LAG}={TOPIC_SETTINGS[LAG]}, or name one "
                "with control_topic=. No row was written."
            ) from error


def _another(name: str) -> str:
    """Return a name that collides with none that differs in '.' and '_' only."""
    return f"{name.replace('.', '-').replace('_', '-')}-{zlib.crc32(name.encode()):08x}"


def _learn_controller(admin: Any) -> None:
    """librdkafka waits for the controller that it knows; only new metadata names another."""
    from confluent_kafka import KafkaException

    time.sleep(_PAUSE_S)
    with suppress(KafkaException):
        admin.list_topics(timeout=ANSWER_TIMEOUT_S)


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
        asked = admin.describe_configs([resource], request_timeout=ANSWER_TIMEOUT_S)
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
    lag = settings.get(LAG)
    if lag is not None and int(lag.value) < _LAG_MIN_MS:
        raise BadSink(
            f"control topic {name!r} has {LAG}={lag.value}, so that the marker of an aborted "
            "transaction may be gone before anybody has asked for it, and nothing could be proven. "
            f"Set it to at least {_LAG_MIN_MS}; {TOPIC_SETTINGS[LAG]} is a day. No row was written."
        )
