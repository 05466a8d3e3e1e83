"""Bytes that are not text, where Kafka wants text: found at prepare, row by row (rule 23)."""

from __future__ import annotations

import uuid
from functools import partial
from typing import Any

import pyarrow as pa
import pytest

from beadline.errors import RowsRefused
from beadline.sink import Part
from beadline.sinks import KafkaSink
from beadline.testing.servers import KafkaCluster
from tests.servers.kafka_refused import PART, both_producers, note

pytestmark = pytest.mark.usefixtures("producers")

BAD = b"\xff\xfe"
HEADERS = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))


@pytest.fixture
def topic(kafka_cluster: KafkaCluster) -> str:
    name = f"odd-{uuid.uuid4().hex[:8]}"
    kafka_cluster.create_topic(name)
    return name


def text(*values: bytes | None) -> pa.Array:
    """A column of strings as Spark hands it over: nobody has looked at the bytes."""
    return pa.array(values, pa.binary()).view(pa.string())


def headers(*rows: list[tuple[bytes | None, bytes | None]]) -> pa.Array:
    """One list of headers a row."""
    keys = text(*(key for row in rows for key, _ in row))
    values = pa.array([value for row in rows for _, value in row], pa.binary())
    fields = [pa.field("key", pa.string()), pa.field("value", pa.binary())]
    ends = [sum(len(row) for row in rows[:number]) for number in range(len(rows) + 1)]
    return pa.ListArray.from_arrays(ends, pa.StructArray.from_arrays([keys, values], fields=fields))


def publish(sink: KafkaSink, columns: dict[str, Any]) -> list[str]:
    """Through the at-least-once path, which sends as the other does; return what was refused."""
    reasons: list[str] = []
    batch = pa.RecordBatch.from_pydict(columns)
    sink.publish(iter([batch]), Part(PART, refuse=partial(note, reasons)))
    return reasons


@both_producers
def test_header_keys(kafka_cluster: KafkaCluster, topic: str, options: dict[str, Any]) -> None:
    """A key is text; a header's value, and the record's own key and value, are any bytes."""
    sink = KafkaSink(topic, bootstrap_servers=kafka_cluster.bootstrap_servers, options=options)
    rows = headers(
        [(b"h", BAD)], [(BAD, b"")], [(b"a\0b", b"")], [(None, b"")], [("ä".encode(), None)]
    )
    values = [BAD, b"1", b"2", b"3", b"4"]
    reasons = publish(sink, {"key": text(*values), "value": text(*values), "headers": rows})
    assert reasons == [
        "a header's key is not UTF-8",
        "a header's key has a NUL in it, where Kafka's client would cut it off",
        "a header has no key",
    ]
    found = [(r.key, r.value, list(r.headers or ())) for r in kafka_cluster.read(topic)]
    assert found == [(BAD, BAD, [("h", BAD)]), (b"4", b"4", [("ä", None)])]


def test_without_a_dead_letter_sink_the_epoch_fails(
    kafka_cluster: KafkaCluster, topic: str
) -> None:
    sink = KafkaSink(topic, bootstrap_servers=kafka_cluster.bootstrap_servers)
    rows = {"value": text(b"v"), "headers": headers([(BAD, b"")])}
    with pytest.raises(RowsRefused, match="header's key is not UTF-8"):
        sink.publish(iter([pa.RecordBatch.from_pydict(rows)]), Part(PART))


def test_topics_of_rows(kafka_cluster: KafkaCluster, topic: str) -> None:
    sink = KafkaSink(bootstrap_servers=kafka_cluster.bootstrap_servers)
    names = text(topic.encode(), BAD, topic.encode() + b"\0x", None, b"")
    reasons = publish(sink, {"value": text(b"0", b"1", b"2", b"3", b"4"), "topic": names})
    assert sorted(reasons) == ["it has no topic", "its topic is not a valid Kafka topic name"]
    assert [record.value for record in kafka_cluster.read(topic)] == [b"0"]
