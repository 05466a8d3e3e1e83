"""The id of a topic is the same text, whichever client was asked, and soon there is one."""

from __future__ import annotations

import uuid
from concurrent.futures import Future
from types import SimpleNamespace
from typing import Any

import pytest

from beadline.errors import BadSink
from beadline.shared.topic_ids import topic_id
from beadline.sinks.kafka import check, topics

pytest.importorskip("kafka")
confluent_kafka = pytest.importorskip("confluent_kafka")


def by_librdkafka(id_: uuid.UUID) -> str:
    high, low = (
        int.from_bytes(half, "big", signed=True) for half in (id_.bytes[:8], id_.bytes[8:])
    )
    return topic_id(SimpleNamespace(topic_id=confluent_kafka.Uuid(high, low)))


def by_kafka_python(id_: uuid.UUID | None, error: int = 0) -> dict[str, str]:
    topic = SimpleNamespace(name="orders", topic_id=id_, error_code=error)
    return topics.ids_answered(SimpleNamespace(topics=[topic]))


@pytest.mark.parametrize("number", [0xFB << 120, 0xFF << 64, (1 << 128) - 1, 0x123456789 << 50])
def test_both_clients_say_the_same(number: int) -> None:
    id_ = uuid.UUID(int=number)
    assert by_kafka_python(id_) == {"orders": by_librdkafka(id_)}
    assert len(by_librdkafka(id_)) == 22


def test_an_unknown_topic_id_is_empty_and_a_missing_topic_is_left_out() -> None:
    nothing = uuid.UUID(int=0)
    assert by_librdkafka(nothing) == ""
    assert by_kafka_python(nothing) == by_kafka_python(None) == {"orders": ""}
    not_authorised, unknown = 29, 3
    assert by_kafka_python(uuid.UUID(int=7), not_authorised) == {"orders": ""}
    assert by_kafka_python(None, unknown) == {}


class Answering:
    """An admin client whose brokers answer with these codes about a topic, and then with its id.

    It cannot list a topic by name: where brokers create topics, that would create it.
    """

    def __init__(self, *codes: int) -> None:
        self.codes = list(codes)

    def describe_topics(self, wanted: Any, request_timeout: float) -> Any:
        told: Future[Any] = Future()
        if self.codes:
            error = confluent_kafka.KafkaError(self.codes.pop(0))
            told.set_exception(confluent_kafka.KafkaException(error))
        else:
            told.set_result(SimpleNamespace(topic_id=confluent_kafka.Uuid(0, 7)))
        return {"orders": told}


WAITING = confluent_kafka.KafkaError.LEADER_NOT_AVAILABLE


def test_a_start_waits_for_a_topic_whose_leader_is_being_elected() -> None:
    assert check._check_topic(Answering(WAITING, WAITING), "orders") == "A" * 20 + "Bw"


def test_a_leader_that_stays_away_is_not_a_topic_to_create(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(check, "_ANSWER_TIMEOUT_S", 0.2)
    with pytest.raises(BadSink, match="Start again when its brokers are up"):
        check._check_topic(Answering(*[WAITING] * 100), "orders")


def test_a_topic_that_does_not_exist_is_refused_at_once() -> None:
    admin = Answering(confluent_kafka.KafkaError.UNKNOWN_TOPIC_OR_PART, WAITING)
    with pytest.raises(BadSink, match="Create it"):
        check._check_topic(admin, "orders")
    assert admin.codes == [WAITING]
