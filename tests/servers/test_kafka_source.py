"""The Kafka source on a real broker: what it reads, and what it leaves out.

And the positions of a query in a consumer group, as a lag tool sees them.
"""

from __future__ import annotations

import json
import time
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient
from pyspark.sql import DataFrame, SparkSession

from beadline import Stream, exactly_once, sources
from beadline.environment.jars import require_connector
from beadline.errors import JarsUnavailable, PrepareFailed, WrongCheckpoint
from beadline.event_time import count, watermark, windowed
from beadline.observe import Event
from beadline.sinks import MemorySink
from beadline.spark.query import Query
from beadline.testing.servers import KafkaCluster
from tests.conftest import needs_server
from tests.slowness import patient
from tests.spark.jobs import run_and_die

SOON_S = patient(30)
QUIET = {"log_level": 2}
LOGIN = (
    "org.apache.kafka.common.security.plain.PlainLoginModule required "
    'username="admin" password="top-secret";'
)


@pytest.fixture(autouse=True)
def connector(spark: SparkSession) -> None:
    """The session of all tests has the connector where its jars can be had."""
    try:
        require_connector(spark, "kafka")
    except JarsUnavailable as error:
        needs_server(str(error))


@pytest.fixture
def topic(kafka_cluster: KafkaCluster) -> str:
    """A topic of the test's own, with two partitions."""
    name = f"source-{uuid.uuid4().hex}"
    kafka_cluster.create_topic(name, partitions=2)
    return name


def produce(servers: str, topic: str, values: range, **settings: Any) -> None:
    """Write numbers, even ones to partition 0 and odd ones to partition 1."""
    producer = Producer({"bootstrap.servers": servers, **QUIET})
    for value in values:
        producer.produce(topic, str(value).encode(), partition=value % 2, **settings)
    assert producer.flush(SOON_S) == 0


def run(frame: DataFrame, folder: Path, listener: Callable[[Event], None] | None = None) -> None:
    """Run to the end of what is there."""
    query = stream(frame, folder).start(
        str(folder / "checkpoint"), available_now=True, listener=listener
    )
    assert query.awaitTermination(120)


def stream(frame: DataFrame, folder: Path) -> Stream:
    values = frame.selectExpr("CAST(CAST(value AS STRING) AS LONG) AS value")
    return exactly_once(values, "job").to(MemorySink(folder.name))


def rows(folder: Path) -> list[int]:
    return sorted(row["value"] for row in MemorySink.rows(folder.name))


def positions(servers: str, group: str, topic: str) -> dict[int, int]:
    """What a lag tool sees; partitions without a position are left out."""
    consumer = Consumer({"bootstrap.servers": servers, "group.id": group, **QUIET})
    try:
        asked = [TopicPartition(topic, number) for number in range(2)]
        found = consumer.committed(asked, timeout=SOON_S)
        return {each.partition: each.offset for each in found if each.offset >= 0}
    finally:
        consumer.close()


def wait_for(condition: Callable[[], bool], query: Query) -> None:
    deadline = time.monotonic() + SOON_S
    while not condition():
        assert time.monotonic() < deadline, "it did not come true"
        assert not query.awaitTermination(0.1)


def test_what_was_produced_is_read_once(
    spark: SparkSession, kafka_cluster: KafkaCluster, topic: str, tmp_path: Path
) -> None:
    servers = kafka_cluster.bootstrap_servers
    epochs: list[Event] = []
    frame = sources.kafka(spark, bootstrap_servers=servers, topic=topic, max_per_epoch=40)
    produce(servers, topic, range(100))
    run(frame, tmp_path, epochs.append)
    assert rows(tmp_path) == list(range(100))
    assert [event.epoch for event in epochs if event.kind == "committed"] == [0, 1, 2]
    produce(servers, topic, range(100, 130))
    run(frame, tmp_path)
    assert rows(tmp_path) == list(range(130))


def test_aborted_and_open_transactions_are_not_read(
    spark: SparkSession, kafka_cluster: KafkaCluster, topic: str, tmp_path: Path
) -> None:
    servers = kafka_cluster.bootstrap_servers
    producer = Producer({"bootstrap.servers": servers, "transactional.id": topic, **QUIET})
    producer.init_transactions(SOON_S)
    for value, end in ((1, "commit"), (2, "abort"), (3, "commit"), (4, "open")):
        producer.begin_transaction()
        producer.produce(topic, str(value).encode(), partition=0)
        assert producer.flush(SOON_S) == 0
        if end != "open":
            getattr(producer, f"{end}_transaction")(SOON_S)
    frame = sources.kafka(spark, bootstrap_servers=servers, topic=topic)
    run(frame, tmp_path)
    assert rows(tmp_path) == [1, 3]
    producer.commit_transaction(SOON_S)
    kafka_cluster.read(topic)  # waits until the markers are there
    run(frame, tmp_path)
    assert rows(tmp_path) == [1, 3, 4]


def test_where_to_start_and_what_to_read(
    spark: SparkSession, kafka_cluster: KafkaCluster, topic: str
) -> None:
    servers = [kafka_cluster.bootstrap_servers]
    produce(servers[0], topic, range(10), headers=[("unit", b"eur")])

    def read(**arguments: Any) -> list[Any]:
        frame = sources.kafka(spark, bootstrap_servers=servers, **arguments)
        name = f"read_{uuid.uuid4().hex}"
        writer = frame.writeStream.format("memory").queryName(name).trigger(availableNow=True)
        assert writer.start().awaitTermination(60)
        return spark.table(name).collect()

    def values(**arguments: Any) -> list[int]:
        return sorted(int(row.value) for row in read(**arguments))

    assert values(topics=[topic], starting={topic: {0: 3, 1: -1}}) == [6, 8]
    assert values(topic=topic, starting="latest") == []
    assert values(pattern=f"{topic[:-1]}.") == list(range(10))
    one = {"assign": json.dumps({topic: [1]})}
    assert values(options=one) == [1, 3, 5, 7, 9]
    assert {row.headers[0].key for row in read(topic=topic, headers=True)} == {"unit"}


def test_positions_follow_the_epochs(
    spark: SparkSession, kafka_cluster: KafkaCluster, topic: str, tmp_path: Path
) -> None:
    servers = kafka_cluster.bootstrap_servers
    produce(servers, topic, range(10))
    told: list[Event] = []
    frame = sources.kafka(spark, bootstrap_servers=servers, topic=topic, group=topic)
    # Another source first, whose offsets have another form: places must not be mixed up.
    rate = sources.rate(spark, rows_per_second=1).selectExpr("CAST('-1' AS BINARY) AS value")
    both = rate.union(frame.select("value"))
    query = stream(both, tmp_path).start(str(tmp_path / "checkpoint"), listener=told.append)
    try:
        wait_for(lambda: positions(servers, topic, topic) == {0: 5, 1: 5}, query)
        produce(servers, topic, range(10, 13))
        wait_for(lambda: positions(servers, topic, topic) == {0: 7, 1: 6}, query)
        assert positions(servers, topic, topic) == kafka_cluster.end_offsets(topic)
    finally:
        query.stop()
    assert [value for value in rows(tmp_path) if value >= 0] == list(range(13))
    assert not [event for event in told if event.kind == "positions failed"]


def test_a_topic_that_is_idle_holds_nothing_up(
    spark: SparkSession, kafka_cluster: KafkaCluster, topic: str, tmp_path: Path
) -> None:
    """Its ticker stands between the topics in Spark's offset log: positions stay with theirs."""
    servers = kafka_cluster.bootstrap_servers
    kafka_cluster.create_topic(f"{topic}-idle", partitions=2)
    idle = sources.kafka(spark, bootstrap_servers=servers, topic=f"{topic}-idle", group="idle")
    frame = sources.kafka(spark, bootstrap_servers=servers, topic=topic, group=topic)
    marked = watermark(idle, "timestamp", "1 second", idle="1 second", name="idle")
    both = marked.union(watermark(frame, "timestamp", "1 second", name="busy"))
    counts = windowed(both, "timestamp", size="10 seconds").agg(value=count())
    checkpoint = str(tmp_path / "checkpoint")
    produce(servers, topic, range(6), timestamp=1_700_000_000_000)
    produce(servers, topic, range(6, 7), timestamp=1_700_000_060_000)
    told: list[Event] = []
    query = stream(counts.frame, tmp_path).start(checkpoint, listener=told.append)
    try:
        wait_for(lambda: rows(tmp_path) == [6], query)
        wait_for(lambda: positions(servers, topic, topic) == {0: 4, 1: 3}, query)
    finally:
        query.stop()
    assert not [event for event in told if event.kind == "positions failed"]


def test_the_last_positions_are_there_when_a_query_has_ended(
    spark: SparkSession, kafka_cluster: KafkaCluster, topic: str, tmp_path: Path
) -> None:
    servers = kafka_cluster.bootstrap_servers
    frame = sources.kafka(
        spark, bootstrap_servers=servers, topic=topic, group=topic, max_per_epoch=4
    )
    produce(servers, topic, range(10))
    run(frame, tmp_path)
    assert positions(servers, topic, topic) == {0: 5, 1: 5}


def test_positions_that_cannot_be_written_cost_nothing_but_an_event(
    spark: SparkSession, kafka_cluster: KafkaCluster, topic: str, tmp_path: Path
) -> None:
    """A living member owns the group, so the broker refuses; the query does not notice."""
    servers = kafka_cluster.bootstrap_servers
    produce(servers, topic, range(10))
    member = Consumer({"bootstrap.servers": servers, "group.id": topic, **QUIET})
    member.subscribe([topic])
    deadline = time.monotonic() + SOON_S
    while not member.assignment():
        assert time.monotonic() < deadline
        member.poll(0.1)
    told: list[Event] = []
    try:
        frame = sources.kafka(
            spark, bootstrap_servers=servers, topic=topic, group=topic, max_per_epoch=2
        )
        run(frame, tmp_path, told.append)
    finally:
        member.close()
    assert rows(tmp_path) == list(range(10))
    (failed,) = [event for event in told if event.kind == "positions failed"]
    assert failed.details["groups"] == topic


def forget(servers: str, topic: str, before: int) -> None:
    """Delete the first records of both partitions, as their retention would."""
    admin = AdminClient({"bootstrap.servers": servers, **QUIET})
    gone = [TopicPartition(topic, number, before) for number in range(2)]
    for deleted in admin.delete_records(gone).values():
        deleted.result(SOON_S)


@pytest.mark.parametrize("planned", [False, True])
def test_records_that_were_deleted_before_they_were_read(
    spark: SparkSession, kafka_cluster: KafkaCluster, topic: str, tmp_path: Path, planned: bool
) -> None:
    """The query stops and says so, whether or not the epoch was planned; nothing is skipped."""
    servers = kafka_cluster.bootstrap_servers
    frame = sources.kafka(spark, bootstrap_servers=servers, topic=topic)
    produce(servers, topic, range(10))
    run(frame, tmp_path)
    produce(servers, topic, range(10, 20))
    if planned:
        run_and_die(stream(frame, tmp_path), tmp_path, "epoch.begin")
    forget(servers, topic, before=7)
    produce(servers, topic, range(20, 30))
    said = r"'job', epoch 1.*not available in Kafka any more: .*offset \[5, .*Nothing .* is decided"
    with pytest.raises(PrepareFailed, match=said):
        run(frame, tmp_path)
    assert rows(tmp_path) == list(range(10))


def test_positions_with_a_name_and_a_password(
    spark: SparkSession, guarded_kafka: KafkaCluster, tmp_path: Path
) -> None:
    topic = f"orders-{uuid.uuid4().hex[:8]}"
    guarded_kafka.create_topic(topic, partitions=2)
    produce(guarded_kafka.bootstrap_servers, topic, range(10))
    options = {
        "kafka.security.protocol": "SASL_PLAINTEXT",
        "kafka.sasl.mechanism": "PLAIN",
        "kafka.sasl.jaas.config": LOGIN,
    }
    frame = sources.kafka(
        spark,
        bootstrap_servers=guarded_kafka.sasl_servers,
        topic=topic,
        group="lag",
        options=options,
    )
    run(frame, tmp_path)
    assert rows(tmp_path) == list(range(10))
    assert positions(guarded_kafka.bootstrap_servers, "lag", topic) == {0: 5, 1: 5}


def test_a_start_with_a_wrong_topic_changes_nothing(
    spark: SparkSession, kafka_cluster: KafkaCluster, topic: str, tmp_path: Path
) -> None:
    """It is refused, and the right topic continues as if it had never been."""
    servers = kafka_cluster.bootstrap_servers
    wrong = f"{topic}-wrong"
    kafka_cluster.create_topic(wrong, partitions=2)
    produce(servers, topic, range(10))
    produce(servers, wrong, range(100, 108))
    right = sources.kafka(spark, bootstrap_servers=servers, topic=topic)
    run(right, tmp_path)
    produce(servers, topic, range(10, 14))
    other = sources.kafka(spark, bootstrap_servers=servers, topic=wrong)
    refused = f"has read Kafka topic '{topic}', and is now to read '{wrong}' only.*Nothing was"
    with pytest.raises(WrongCheckpoint, match=refused):
        run(other, tmp_path)
    run(right, tmp_path)
    assert rows(tmp_path) == list(range(14))
