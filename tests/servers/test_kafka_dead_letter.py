"""``dead_letter=`` with Kafka on either side, on a real broker."""

from __future__ import annotations

import json
import sqlite3
import uuid
from collections.abc import Callable, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession

from beadline import Stream, at_least_once, exactly_once
from beadline.errors import NotDeterministic, PrepareFailed
from beadline.observe import Event
from beadline.sinks import FileSink, KafkaSink, SqliteSink
from beadline.sinks.kafka.client import OPEN_STATES, connect
from beadline.sinks.kafka.settings import KafkaSettings
from beadline.testing import CRASH, run_epochs
from beadline.testing.epochs import CrashStep, Script
from beadline.testing.servers import KafkaCluster
from tests.spark.jobs import run, run_and_die

RECORDS = "topic string, value string, partition int"
ROWS = "id long, k string"


@pytest.fixture
def topic(kafka_cluster: KafkaCluster) -> str:
    name = f"dead-letter-{uuid.uuid4().hex[:8]}"
    kafka_cluster.create_topic(name, partitions=2)
    return name


def sink_to(cluster: KafkaCluster, topic: str | None) -> KafkaSink:
    return KafkaSink(topic, bootstrap_servers=cluster.bootstrap_servers)


def fence_open(cluster: KafkaCluster, query: str) -> int:
    """Abort what is open of a query, as the broker does at the end of its patience."""
    client = connect(KafkaSettings(cluster.bootstrap_servers))
    ours = [id_ for id_ in client.list(OPEN_STATES) if f"~{query}~" in id_]
    client.abort([one.transaction for one in client.describe(ours).values()])
    return len(ours)


def between(crashes: Sequence[str], epochs: Sequence[list[dict[str, Any]]]) -> Script:
    """A death in every epoch."""
    script: list[list[dict[str, Any]] | CrashStep] = []
    for point, rows in zip(crashes, epochs, strict=True):
        script += [CRASH(point), rows]
    return script


def record(topic: str | None, value: str, partition: int | None = None) -> dict[str, Any]:
    return {"topic": topic, "value": value, "partition": partition}


@pytest.mark.parametrize("begin", [exactly_once, at_least_once])
def test_records_that_kafka_will_not_take(
    spark: SparkSession,
    kafka_cluster: KafkaCluster,
    topic: str,
    tmp_path: Path,
    begin: Callable[[DataFrame, str], Stream],
) -> None:
    large = "x" * 1_100_000
    sink, dead_letters = sink_to(kafka_cluster, None), FileSink(str(tmp_path / "dead-letter"))

    def build(frame: DataFrame) -> Stream:
        return begin(frame, topic).to(sink, dead_letter=dead_letters)

    epochs = [
        [record(topic, "1"), record(f"{topic}-missing", "2"), record(None, "3")],
        [record(topic, "4", 0), record(topic, "5", 99), record(topic, large), record("", "6")],
        [record(topic, "7", -1), record(topic, "9", 2)],
        [record(topic, "8")],
    ]
    script: Script = epochs
    if begin is exactly_once:
        crashes = ("decide.before", "decide.after", "prepare.between", "commit.after")
        script = between(crashes, epochs)
    run_epochs(spark, build, script, tmp_path, schema=RECORDS, parts=2)
    assert sorted(one.value or b"" for one in kafka_cluster.read(topic)) == [b"1", b"4", b"8"]
    found = [row.asDict() for row in spark.read.parquet(dead_letters.path).collect()]
    reasons = {json.loads(letter["row"])["value"]: letter["reason"] for letter in found}
    assert len(found) == 7
    assert reasons == {
        "2": f"topic '{topic}-missing' does not exist",
        "3": "it has no topic",
        "5": f"topic '{topic}' has 2 partitions, and not that one",
        large: "it is larger than message.max.bytes (1000000)",
        "6": "it has no topic",
        "7": "its partition is negative",
        "9": f"topic '{topic}' has 2 partitions, and not that one",
    }


@pytest.fixture
def table(tmp_path: Path) -> SqliteSink:
    """A table that takes no null in ``k``."""
    with closing(sqlite3.connect(tmp_path / "out.db")) as database:
        database.execute("CREATE TABLE t (id INTEGER, k TEXT NOT NULL)")
    return SqliteSink(tmp_path / "out.db", "t")


def rows_in(table: SqliteSink) -> list[int]:
    with closing(sqlite3.connect(table.path)) as database:
        return [id_ for (id_,) in database.execute("SELECT id FROM t ORDER BY id")]


def dead_letters_in(cluster: KafkaCluster, topic: str) -> list[dict[str, Any]]:
    found = [json.loads(one.value or b"") for one in cluster.read(topic)]
    return sorted(found, key=lambda letter: str(letter["row"]))


@pytest.mark.parametrize("begin", [exactly_once, at_least_once])
def test_dead_letters_in_a_topic(
    spark: SparkSession,
    kafka_cluster: KafkaCluster,
    topic: str,
    tmp_path: Path,
    table: SqliteSink,
    begin: Callable[[DataFrame, str], Stream],
) -> None:
    def build(frame: DataFrame) -> Stream:
        return begin(frame, topic).to(table, dead_letter=sink_to(kafka_cluster, topic))

    epochs: list[list[dict[str, Any]]] = [
        [{"id": 0, "k": "a"}, {"id": 1, "k": None}],
        [{"id": 2, "k": "b"}],
        [{"id": 3, "k": None}, {"id": 4, "k": None}],
        [{"id": 5, "k": None}],
    ]
    script: Script = epochs
    if begin is exactly_once:
        crashes = ("decide.before", "decide.after", "prepare.after", "commit.between")
        script = between(crashes, epochs)
    result = run_epochs(spark, build, script, tmp_path, schema=ROWS)
    assert rows_in(table) == [0, 2]
    found = dead_letters_in(kafka_cluster, topic)
    assert [(letter["epoch"], letter["row"]) for letter in found] == [
        (epoch, {"id": id_, "k": None}) for epoch, id_ in ((0, 1), (2, 3), (2, 4), (3, 5))
    ]
    assert {letter["query"] for letter in found} == {topic}
    assert {letter["sink"] for letter in found} == {"out-t"}
    assert result.events[-1].details.get("rows") in (None, {"out-t": 0, "out-t-dead-letter": 1})


def write_rows(folder: Path, rows: list[dict[str, Any]]) -> Path:
    (folder / "in").mkdir()
    (folder / "in" / "0.json").write_text("\n".join(map(json.dumps, rows)))
    return folder / "in"


def test_dead_letters_that_the_broker_threw_away(
    spark: SparkSession, kafka_cluster: KafkaCluster, topic: str, tmp_path: Path, table: SqliteSink
) -> None:
    """The table keeps what it has; it is asked again only to know which rows it refuses."""
    source = write_rows(tmp_path, [{"id": n, "k": None if n % 3 else "x"} for n in range(9)])
    events: list[Event] = []

    def build() -> Stream:
        frame = spark.readStream.schema(ROWS).json(str(source)).repartition(2, "id")
        return exactly_once(frame, topic).to(table, dead_letter=sink_to(kafka_cluster, topic))

    run_and_die(build(), tmp_path, "decide.after")
    assert fence_open(kafka_cluster, topic) == 1
    run(build(), tmp_path, listener=events.append)
    assert rows_in(table) == [0, 3, 6]
    found = dead_letters_in(kafka_cluster, topic)
    assert [letter["row"]["id"] for letter in found] == [1, 2, 4, 5, 7, 8]
    assert [event.kind for event in events].count("replayed") == 1
    assert fence_open(kafka_cluster, topic) == 0


def test_a_topic_that_was_made_meanwhile_stops_the_replay(
    spark: SparkSession, kafka_cluster: KafkaCluster, topic: str, tmp_path: Path
) -> None:
    """Its rows are decided as dead-letter records; now they would be in both."""
    late = f"{topic}-late"
    source = write_rows(tmp_path, [record(topic, "1"), record(late, "2")])
    dead_letters = FileSink(str(tmp_path / "dead-letter"))

    def build() -> Stream:
        frame = spark.readStream.schema(RECORDS).json(str(source))
        return exactly_once(frame, topic).to(sink_to(kafka_cluster, None), dead_letter=dead_letters)

    run_and_die(build(), tmp_path, "decide.after")
    assert fence_open(kafka_cluster, topic) == 1
    kafka_cluster.create_topic(late)
    with pytest.raises(NotDeterministic, match="refused 0 rows, which are not the 1"):
        run(build(), tmp_path)
    assert kafka_cluster.read(topic) == []
    assert kafka_cluster.read(late) == []
    assert fence_open(kafka_cluster, topic) == 0


def test_a_dead_letter_record_that_is_too_large_for_kafka_stops_the_query(
    spark: SparkSession, kafka_cluster: KafkaCluster, topic: str, tmp_path: Path, table: SqliteSink
) -> None:
    wide = SqliteSink(table.path, "wide", mode="upsert", key="k")

    def build(frame: DataFrame) -> Stream:
        return exactly_once(frame, topic).to(wide, dead_letter=sink_to(kafka_cluster, topic))

    rows = [{"v": "x" * 1_100_000, "k": None}]
    with pytest.raises(PrepareFailed, match=r"cannot take 1 refused row.* either: it is large"):
        run_epochs(spark, build, [rows], tmp_path, schema="v string, k string")
    assert kafka_cluster.read(topic) == []
    assert fence_open(kafka_cluster, topic) == 0
