"""The id of a topic is the same text, whichever client was asked."""

from __future__ import annotations

import uuid
from types import SimpleNamespace

import pytest

from beadline.shared.topic_ids import topic_id
from beadline.sinks.kafka import topics

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


def test_what_is_not_told_is_empty_and_what_does_not_exist_is_left_out() -> None:
    nothing = uuid.UUID(int=0)
    assert by_librdkafka(nothing) == ""
    assert by_kafka_python(nothing) == by_kafka_python(None) == {"orders": ""}
    not_authorised, unknown = 29, 3
    assert by_kafka_python(uuid.UUID(int=7), not_authorised) == {"orders": ""}
    assert by_kafka_python(None, unknown) == {}
