"""Which topics there are, as a producer asks: rows for one that is not there are refused.

A row that is refused is a dead letter for good, so "does not exist" must be sure: a topic that was
just made is not known to every broker at once, and one that the brokers make when they are asked
takes a moment. A broker that cannot tell is asked again; it is not the row's fault.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from beadline.sinks.kafka import topic_ids
from beadline.sinks.kafka.producer import Known, Producer

if TYPE_CHECKING:
    from beadline.sinks.kafka.sink import KafkaSink

UNKNOWN_S = 5.0  # unless topic.metadata.propagation.max.ms is given, librdkafka's name for it
_AGAIN_S = 0.5
_PAUSE_S = 0.05
_ASK_TIMEOUT_S = 10.0
_REMEMBERED_MAX = 10_000


class Missing(Exception):
    """No row can be sent to this topic; says why."""


class Topics:
    """The topics of one part. One that the sink names itself must be there: it was, at the start.

    How long a topic has been missing counts from the first time that this part missed any: however
    many wrong names there are, they are waited for once. What the producer has missed before, for
    long enough, is waited for a moment only: rows that are always wrong do not slow every epoch.
    """

    def __init__(self, sink: KafkaSink, producer: Producer) -> None:
        self._fixed = sink.topic
        self._producer = producer
        self._timeout_s = sink.transaction_timeout_s
        wait_ms = sink.options.get("topic.metadata.propagation.max.ms", UNKNOWN_S * 1000)
        self._unknown_s = float(wait_ms) / 1000
        self._first_missed_s: float | None = None
        self._used: dict[str, str] = {}

    @property
    def used(self) -> tuple[tuple[str, str], ...]:
        """The topics that were asked for, with their ids: those that the part's rows go to."""
        return tuple(sorted(self._used.items()))

    def partitions(self, topic: str) -> int:
        """Return how many partitions a topic has, or raise ``Missing``.

        Asked once per producer; where the brokers may create topics, asking creates it.
        """
        known = self._producer.known_topics
        if topic not in known:
            known[topic] = self._ask(topic)
            self._producer.missed_topics.pop(topic, None)
        self._used.setdefault(topic, known[topic].id)  # the first: nothing was sent before it
        return known[topic].partitions

    def forget(self, topic: str) -> None:
        """Ask again: it may have got more partitions."""
        self._producer.known_topics.pop(topic, None)

    def _ask(self, topic: str) -> Known:
        from confluent_kafka import KafkaError, KafkaException

        deadline_s = time.monotonic() + self._timeout_s
        while True:
            found = self._producer.list_topics(topic, self._timeout_s)
            error = found.error
            if error is None:
                try:
                    described = self._producer.describe_topic(topic, _ASK_TIMEOUT_S)
                    return Known(len(found.partitions), topic_ids.described(described))
                except KafkaException as not_known:  # to the broker that was asked this time
                    error = not_known.args[0]
            code = error.code()
            final = code in (KafkaError.TOPIC_AUTHORIZATION_FAILED, KafkaError.TOPIC_EXCEPTION)
            if final or (code == KafkaError.UNKNOWN_TOPIC_OR_PART and self._is_sure(topic)):
                raise self._missing(topic, error, final)
            if time.monotonic() > deadline_s:
                raise KafkaException(error)
            time.sleep(_PAUSE_S)

    def _is_sure(self, topic: str) -> bool:
        """Whether it has been unknown for so long that it does not exist."""
        now_s = time.monotonic()
        missed = self._producer.missed_topics
        if len(missed) >= _REMEMBERED_MAX:
            missed.clear()
        if self._first_missed_s is None:
            self._first_missed_s = now_s
        waited_s = now_s - self._first_missed_s
        known = now_s - missed.setdefault(topic, self._first_missed_s) >= self._unknown_s
        return waited_s >= self._unknown_s or (known and waited_s >= _AGAIN_S)

    def _missing(self, topic: str, error: Any, final: bool) -> Exception:
        why = f"topic {topic!r}: {error.str()}" if final else f"topic {topic!r} does not exist"
        if topic == self._fixed:  # not the rows' fault: as dead letters they would be lost
            return OSError(f"{why}; it could be used when the query started")
        return Missing(why)
