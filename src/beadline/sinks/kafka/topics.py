"""Topics: which of them exist, and under which ids.

Rows for a topic that is not there are refused, by the producer that asks. A row that is refused is
a dead-letter record for good, so "does not exist" must be sure: a topic that was just made is not
known to every broker at once, and one that the brokers make when they are asked takes a moment. A
broker that cannot tell is asked again; it is not the row's fault.

Kafka gives a topic an id when it is created, and never to another, so one that was deleted and
created again has another id under the old name. Kafka ends a transaction without an error where the
topic is another by now: the answer is "no error", and the rows are nowhere. So the ids travel with
the committable, and are compared at commit; that of the topic which the sink names is asked for
before each decision too (``KafkaSink.instance_now``). Ids are text, as in ``shared.topic_ids``.
"""

from __future__ import annotations

import base64
import time
import uuid
from collections.abc import Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from beadline.shared.topic_ids import topic_id
from beadline.sink import NEW_QUERY, CommitFailed, EpochId, Prepared, Retries, Verdict

if TYPE_CHECKING:
    from beadline.sinks.kafka.client import TransactionClient
    from beadline.sinks.kafka.part import KafkaPart
    from beadline.sinks.kafka.producers import Producer

TopicIds = dict[str, str]  # by the topic's name

UNKNOWN_S = 5.0  # unless topic.metadata.propagation.max.ms is given, librdkafka's name for it
_AGAIN_S = 0.5
_PAUSES_S = (0.05,)
_ASK_TIMEOUT_S = 10.0
_REMEMBERED_MAX = 10_000
SURE_S = 5.0  # a broker whose metadata is stale may still know the deleted topic


class Known(NamedTuple):
    """A topic as the brokers described it before anything was sent there."""

    partitions: int
    id: str


class Missing(Exception):
    """No row can be sent to this topic; says why."""


class Topics:
    """The topics of one part. One that the sink names itself must be there: it was, at the start.

    The wait begins when this part first finds a topic missing: however many wrong names there are,
    they are waited for once. A topic that the producer has found missing for long enough before is
    waited for a moment only: rows that are always wrong do not slow every epoch.
    """

    def __init__(self, fixed: str | None, producer: Producer) -> None:
        self._fixed = fixed
        self._producer = producer
        self._timeout_s = producer.timeout_s
        options = producer.options
        wait_ms = options.get("topic.metadata.propagation.max.ms", UNKNOWN_S * 1000)
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

        retries = Retries({Verdict.UNCLEAR: self._timeout_s}, _PAUSES_S)
        while True:
            found = self._producer.list_topics(topic, self._timeout_s)
            error = found.error
            if error is None:
                try:
                    described = self._producer.describe_topic(topic, _ASK_TIMEOUT_S)
                    return Known(len(found.partitions), topic_id(described))
                except KafkaException as not_known:  # to the broker that was asked this time
                    error = not_known.args[0]
            code = error.code()
            final = code in (KafkaError.TOPIC_AUTHORIZATION_FAILED, KafkaError.TOPIC_EXCEPTION)
            if final or (code == KafkaError.UNKNOWN_TOPIC_OR_PART and self._is_sure(topic)):
                raise self._missing(topic, error, final)
            if not retries.again(Verdict.UNCLEAR):
                raise KafkaException(error)

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
        if topic == self._fixed:  # not the rows' fault: as dead-letter records they would be lost
            return OSError(f"{why}; it could be used when the query started")
        return Missing(why)


def ids_request(topics: Collection[str]) -> Any:
    """Return kafka-python's question for the ids of topics; it creates none."""
    from kafka.protocol.metadata import MetadataRequest

    named = [MetadataRequest.MetadataRequestTopic(name=topic) for topic in topics]
    return MetadataRequest(topics=named, allow_auto_topic_creation=False)


def ids_answered(response: Any) -> TopicIds:
    """Return the ids in the answer to it, without topics that are known not to exist."""
    unknown = 3  # UNKNOWN_TOPIC_OR_PARTITION
    return {
        topic.name: "" if topic.error_code else _text(topic.topic_id)
        for topic in response.topics
        if topic.error_code != unknown
    }


def _text(id_: uuid.UUID | None) -> str:
    if id_ is None or not id_.int:
        return ""
    return base64.urlsafe_b64encode(id_.bytes).decode().rstrip("=")


def topics_of(parts: Sequence[Prepared[KafkaPart]]) -> TopicIds:
    """Return the topics that parts were written to, with the ids that they had then.

    Where two writers know different ids, one of them looked before the topic was created again:
    either way the current id differs from one of theirs, so that the first is enough.
    """
    found: TopicIds = {}
    for part in parts:
        for topic, id_ in part.committable.topics:
            if id_:
                found.setdefault(topic, id_)
    return found


def recreated(
    client: TransactionClient, parts: Sequence[Prepared[KafkaPart]], ids: TopicIds | None
) -> TopicIds:
    """Return the topics that were recreated or deleted, with their current ids (empty: deleted).

    ``ids`` are those of a moment ago. What differs is asked for again until it is certain: a topic
    whose rows are lost for good must really be another one.
    """
    wanted = topics_of(parts)
    if not wanted:
        return {}
    ids = client.topic_ids(wanted) if ids is None else ids
    retries = Retries({Verdict.UNCLEAR: SURE_S})
    while (wrong := _wrong(parts, ids)) and retries.again(Verdict.UNCLEAR):
        ids = client.topic_ids(wanted)
    return wrong


def _wrong(parts: Sequence[Prepared[KafkaPart]], ids: Mapping[str, str]) -> TopicIds:
    """Topics whose id differs; one that the brokers would not tell is not known to."""
    return {
        topic: ids.get(topic, "")
        for part in parts
        for topic, id_ in part.committable.topics
        if id_ and (topic not in ids or (ids[topic] and ids[topic] != id_))
    }


def rows_gone(
    epoch: EpochId,
    sink: str,
    parts: Sequence[Prepared[Any]],
    wrong: TopicIds,
    own: str | None = None,
) -> CommitFailed:
    """Return the error: the transactions are ended, and rows of them are nowhere.

    ``own`` is the topic that the sink itself names: if it is another by now, all that the sink had
    written is gone, and the start wants to hear that it is given up.
    """
    drop = sink if own in wrong else f"{sink}@{epoch.number}"
    names = ", ".join(repr(name) for name in sorted(wrong))
    many = len(wrong) > 1
    what = f"topic{'s' if many else ''} {names} {'were' if many else 'was'} deleted"
    gone = (
        "what was written before the deletion is gone with the old topic, as are all earlier rows"
    )
    advice = "Write the missing rows again yourself"
    if any(wrong.values()):
        what += " and created again"
        gone += "; what was written after it was recreated shows now"
        advice = "Check which rows of this epoch are there, and write only the missing ones"
    touched = [
        part for part in parts if any(topic in wrong for topic, _ in part.committable.topics)
    ]
    rows = sum(part.rows for part in touched)
    return CommitFailed(
        f"query {epoch.query.name!r}, epoch {epoch.number}, sink {sink!r}: {what} after rows of "
        f"this epoch had been sent to it. {len(touched)} of its {len(parts)} parts wrote there "
        f"({rows} rows, those for other topics included): {gone}. The epoch is decided and does "
        "not count as committed to this sink; its transactions are ended, so that no reader is "
        f"held up and rows for other topics show. {advice}, or do without them, and continue with "
        f'start(..., drop=["{drop}"]), once; or start over: {NEW_QUERY}'
    )
