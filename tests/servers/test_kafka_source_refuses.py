"""What the Kafka source refuses, with the fix in the text and no secret in it; needs no broker."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import SparkSession

from beadline import sources
from beadline.environment import jars
from beadline.environment.session import session
from beadline.errors import BadQuery, BadSetting, JarsUnavailable, UsageError
from tests.servers.test_kafka_source import LOGIN, connector, stream

__all__ = ["connector"]  # a fixture of every test here too


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({}, BadQuery, "no topic is given; give one of topic="),
        ({"topic": "a", "topics": ["b"]}, BadQuery, "topic= and topics= exclude each other"),
        ({"topic": "a", "options": {"assign": "{}"}}, BadQuery, "topic= and option assign exclude"),
        ({"topic": "a,b"}, BadQuery, r"'a,b' is not a topic name.*topics=\[...\]"),
        ({"topics": "a"}, BadQuery, "for one topic give topic='a'"),
        ({"topics": []}, BadQuery, "empty list"),
        ({"pattern": ""}, BadQuery, "pattern= is empty"),
        ({"topic": "a", "bootstrap_servers": " ,"}, BadSetting, 'is empty; give "host:port"'),
        ({"topic": "a", "bootstrap_servers": "localhost"}, BadSetting, "'localhost' is not of the"),
        ({"topic": "a", "starting": "first"}, BadSetting, "not 'first'"),
        ({"topic": "a", "starting": {"a": {"0": 1}}}, BadSetting, "an offset for each"),
        ({"topic": "a", "starting": {"a": {}}}, BadSetting, "an offset for each"),
        ({"topic": "a", "max_per_epoch": 0}, BadSetting, "at least 1, not 0"),
        ({"topic": "a", "group": " "}, BadSetting, "name of a consumer group"),
        (
            {"topic": "a", "options": {"kafka.isolation.level": "read_uncommitted"}},
            BadSetting,
            "would break exactly-once: records of transactions",
        ),
        (
            {"topic": "a", "options": {"FailOnDataLoss": False}},
            BadSetting,
            "FailOnDataLoss=false would break exactly-once",
        ),
        ({"topic": "a", "options": {"subscribe": "b"}}, BadSetting, "argument here: give topic="),
        ({"topic": "a", "options": {"kafka.X": "1", "kafka.x": "2"}}, BadSetting, "given twice"),
        (
            {"topic": "a", "options": {"kafka.auto.offset.reset": "none"}},
            BadSetting,
            "Spark refuses the options: .*auto.offset.reset",
        ),
    ],
)
def test_refused_with_the_fix(
    spark: SparkSession, arguments: dict[str, Any], error: type[UsageError], message: str
) -> None:
    with pytest.raises(error, match=message):
        sources.kafka(spark, **{"bootstrap_servers": "127.0.0.1:1", **arguments})


def test_no_secret_in_any_text(spark: SparkSession, tmp_path: Path) -> None:
    options = {"kafka.sasl.jaas.config": LOGIN, "kafka.ssl.key.password": "hush-hush"}
    asked: dict[str, Any] = {"bootstrap_servers": "127.0.0.1:1", "topic": "a"}
    with pytest.raises(BadSetting) as refused:
        sources.kafka(spark, **asked, options={**options, "kafka.auto.offset.reset": "none"})
    assert "hush" not in str(refused.value)
    assert refused.value.__cause__ is None
    timeouts = {"kafka.default.api.timeout.ms": 2000, "kafka.request.timeout.ms": 1000}
    once = {"fetchOffset.numRetries": 1}
    frame = sources.kafka(spark, **asked, options={**options, **timeouts, **once})
    query = stream(frame, tmp_path).start(str(tmp_path / "checkpoint"))
    with pytest.raises(StreamingQueryException) as failed:
        query.awaitTermination(60)
    assert "hush" not in str(failed.value)
    query.stop()


def test_a_session_without_the_jars(spark: SparkSession, monkeypatch: pytest.MonkeyPatch) -> None:
    absent = replace(jars.CONNECTORS["kafka"], classes=("org.example.NotThere",))
    monkeypatch.setattr(jars, "CONNECTORS", {"kafka": absent})
    said = r'org.example.NotThere cannot be loaded.*connectors=\("kafka",\).*spark-sql-kafka-0-10'
    with pytest.raises(JarsUnavailable, match=said):
        sources.kafka(spark, bootstrap_servers="127.0.0.1:1", topic="a")
    with pytest.raises(JarsUnavailable, match=said):
        session("late", connectors=("kafka",))
    assert session("late") is not None
