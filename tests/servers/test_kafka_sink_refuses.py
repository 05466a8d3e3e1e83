"""What ``KafkaSink`` refuses before anything is written."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

import pyarrow as pa
import pytest

from beadline.errors import BadSink
from beadline.ids import QueryId
from beadline.sinks import KafkaSink
from beadline.sinks.kafka import check
from beadline.testing.servers import KafkaCluster
from beadline.testing.servers.ports import free_ports

QUERY = QueryId("orders", "a" * 32, "file:/checkpoint")
PLAIN = pa.schema([("value", pa.binary())])


@pytest.fixture(scope="module")
def topic(kafka_cluster: KafkaCluster) -> str:
    kafka_cluster.create_topic("refuses", partitions=1)
    return "refuses"


BAD_SCHEMAS = [
    (pa.schema([("id", pa.int64())]), "column 'value'"),
    (pa.schema([("value", pa.int64())]), "'value' to be string or binary"),
    (pa.schema([("value", pa.string()), ("key", pa.int32())]), "'key' to be"),
    (pa.schema([("value", pa.string()), ("partition", pa.string())]), "'partition' to be int"),
    (pa.schema([("value", pa.string()), ("headers", pa.string())]), "'headers' to be array"),
]


@pytest.mark.parametrize(("schema", "said"), BAD_SCHEMAS)
def test_columns_that_do_not_fit(
    kafka_cluster: KafkaCluster, topic: str, schema: pa.Schema, said: str
) -> None:
    with pytest.raises(BadSink, match=said):
        KafkaSink(topic, bootstrap_servers=kafka_cluster.bootstrap_servers).check(schema, QUERY)


BAD_SETTINGS: list[tuple[dict[str, Any], str]] = [
    ({"options": {"transactional.id": "x"}}, "transactional.id"),
    ({"options": {"acks": "1"}}, "'acks' must be 'all'"),
    ({"options": {"enable.idempotence": False}}, "must be 'true'"),
    ({"options": {"no.such.option": 1}}, "No such configuration property"),
    ({"transaction_timeout_s": 0}, "at least 1"),
    ({"transaction_timeout_s": 86_400}, "above the broker's maximum of 900 s"),
    ({"topic": "nowhere"}, "topic 'nowhere' cannot be used"),
    ({"topic": None}, "needs a topic"),
    ({"bootstrap_servers": ""}, "bootstrap_servers="),
]


@pytest.mark.parametrize(("settings", "said"), BAD_SETTINGS)
def test_settings_that_cannot_be_right(
    kafka_cluster: KafkaCluster, topic: str, settings: dict[str, Any], said: str
) -> None:
    usual = {"topic": topic, "bootstrap_servers": kafka_cluster.bootstrap_servers}
    with pytest.raises(BadSink, match=said):
        KafkaSink(**{**usual, **settings}).check(PLAIN, QUERY)


def test_no_broker_at_the_start(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(check, "_ANSWER_TIMEOUT_S", 1.0)
    (port,) = free_ports(1)
    sink = KafkaSink("t", bootstrap_servers=f"127.0.0.1:{port}", options={"sasl.password": "hush"})
    with pytest.raises(BadSink, match="no Kafka broker answered") as caught:
        sink.check(PLAIN, QUERY)
    assert "hush" not in str(caught.value)


def test_its_settings_are_not_shown() -> None:
    sink = KafkaSink("t", bootstrap_servers="b:1", options={"sasl.password": "hush"})
    assert "hush" not in repr(sink)


def test_a_control_topic_that_forgets(kafka_cluster: KafkaCluster, topic: str) -> None:
    """Markers that are gone by age would let a committed part look lost, and be sent again."""
    servers = kafka_cluster.bootstrap_servers
    kafka_cluster.create_topic("forgets", config={"cleanup.policy": "delete"})
    kafka_cluster.create_topic("hasty", config={"cleanup.policy": "compact"})
    kept = {"cleanup.policy": "compact", "min.compaction.lag.ms": "86400000"}
    kafka_cluster.create_topic("remembers", config=kept)
    with pytest.raises(BadSink, match=r"'forgets' has cleanup.policy=delete.*compact on it"):
        KafkaSink(topic, bootstrap_servers=servers, control_topic="forgets").open(QUERY, "out")
    with pytest.raises(BadSink, match=r"'hasty' has min.compaction.lag.ms=0.*nothing could be"):
        KafkaSink(topic, bootstrap_servers=servers, control_topic="hasty").open(QUERY, "out")
    KafkaSink(topic, bootstrap_servers=servers, control_topic="remembers").open(QUERY, "out")


def test_names_that_kafka_takes_for_the_same(kafka_cluster: KafkaCluster, topic: str) -> None:
    """``a.b`` and ``a_b``: what is advised works, and so does the query that was there first."""
    sink = KafkaSink(topic, bootstrap_servers=kafka_cluster.bootstrap_servers)
    dotted, underscored = (QueryId(name, "a" * 32, "file:/c") for name in ("a.b", "a_b"))
    sink.open(dotted, "out")
    with pytest.raises(BadSink, match=r"'\.' and '_'.*control_topic='([\w-]+)'") as caught:
        sink.open(underscored, "out")
    advised = re.search(r"control_topic='([\w-]+)'", str(caught.value))
    assert advised is not None
    replace(sink, control_topic=advised[1]).open(underscored, "out")
    sink.open(dotted, "out")
