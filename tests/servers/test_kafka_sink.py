"""``KafkaSink`` on a real broker: what it writes, what it refuses, what it waits for."""

from __future__ import annotations

import threading
import uuid
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from confluent_kafka import KafkaException
from pyspark.sql import DataFrame, SparkSession

from beadline import at_least_once, exactly_once
from beadline.errors import BadSink, PrepareFailed, RowsRefused
from beadline.ids import QueryId
from beadline.sink import Part
from beadline.sinks import KafkaSink
from beadline.sinks.kafka import check, native
from beadline.sinks.kafka.producers import pool
from beadline.testing.epochs import run_epochs
from beadline.testing.servers import KafkaCluster
from tests.servers.kafka_refused import PART, both_producers, refused
from tests.spark.jobs import read, run, write_input

pytestmark = pytest.mark.usefixtures("producers")

QUERY = QueryId("orders", "a" * 32, "file:/checkpoint")
PLAIN = pa.schema([("value", pa.binary())])
HEADERS = "array<struct<key: string, value: binary>>"


@pytest.fixture
def topic(kafka_cluster: KafkaCluster) -> str:
    name = f"sink-{uuid.uuid4().hex[:8]}"
    kafka_cluster.create_topic(name, partitions=3)
    return name


def sink_to(cluster: KafkaCluster, topic: str | None, **settings: Any) -> KafkaSink:
    return KafkaSink(topic, bootstrap_servers=cluster.bootstrap_servers, **settings)


def write(spark: SparkSession, folder: Path, sink: KafkaSink, rows: list[Any], schema: str) -> None:
    """One epoch of these rows, in two parts, through a whole query."""

    def build(frame: DataFrame) -> Any:
        return exactly_once(frame, f"q{uuid.uuid4().hex[:8]}").to(sink)

    run_epochs(spark, build, [rows], folder, schema=schema)


@both_producers
def test_keys_values_tombstones_and_partitions(
    kafka_cluster: KafkaCluster, topic: str, options: dict[str, Any]
) -> None:
    """As Spark's own sink takes them: bytes or text, null or empty, a partition or none."""
    sink = sink_to(kafka_cluster, topic, options=options)
    rows = [
        (b"k1", b"v1", 0),
        (b"k1", None, 2),  # a tombstone
        (None, b"v3", 1),
        (b"", b"", 1),
        (b"k5", bytes(range(256)), None),
    ]
    assert native.available(), "this version of confluent-kafka was not tried"
    schema = pa.schema([("key", pa.binary()), ("value", pa.binary()), ("partition", pa.int32())])
    batch = pa.RecordBatch.from_pylist(
        [dict(zip(schema.names, row, strict=True)) for row in rows], schema
    )
    publish(sink, batch)
    found = [(r.key, r.value, r.partition) for r in kafka_cluster.read(topic)]
    wanted = {(key, value) for key, value, _ in rows}
    assert {(key, value) for key, value, _ in found} == wanted
    assert {row for row in found if row[0] != b"k5"} == {row for row in rows if row[0] != b"k5"}


@both_producers
def test_a_record_that_fails_after_it_was_queued_fails_the_part(
    kafka_cluster: KafkaCluster, topic: str, options: dict[str, Any]
) -> None:
    """librdkafka does not fail a transaction over every record that it could not deliver."""
    sink = sink_to(kafka_cluster, topic, options=options)
    sink.open(QUERY, PART.sink)
    writer = pool().begin(sink.settings, sink.control_topic_of(QUERY.name), Part(PART))

    def send_and_prepare() -> None:
        """Refused at once if librdkafka happens to know the topic's partitions, else later."""
        writer.producer.client.produce(topic, b"lost", partition=99)
        writer.prepared()

    with pytest.raises((OSError, KafkaException)):
        send_and_prepare()
    pool().discard(Part(PART))
    sink.close(QUERY, PART.sink)()


def publish(sink: KafkaSink, *batches: pa.RecordBatch) -> None:
    """Through the at-least-once path, in this process."""
    sink.publish(iter(batches), Part(PART))


def test_text_headers_and_topics_per_row(
    spark: SparkSession, kafka_cluster: KafkaCluster, topic: str, tmp_path: Path
) -> None:
    other = f"{topic}-other"
    kafka_cluster.create_topic(other)
    rows = [
        ("k", "ä", topic, [("h", b"1"), ("h", None)]),
        ("k", "b", other, None),
        (None, None, topic, []),
    ]
    schema = f"key string, value string, topic string, headers {HEADERS}"
    write(spark, tmp_path, sink_to(kafka_cluster, None), rows, schema)
    here = {(r.key, r.value, tuple(r.headers or ())) for r in kafka_cluster.read(topic)}
    assert here == {(b"k", "ä".encode(), (("h", b"1"), ("h", None))), (None, None, ())}
    assert [(r.key, r.value) for r in kafka_cluster.read(other)] == [(b"k", b"b")]


def test_order_per_key_is_kept_over_epochs(
    spark: SparkSession, kafka_cluster: KafkaCluster, topic: str, tmp_path: Path
) -> None:
    epochs: list[Any] = [
        [(f"k{i % 5}", str(epoch * 100 + i)) for i in range(100)] for epoch in range(3)
    ]

    def build(frame: DataFrame) -> Any:
        return exactly_once(frame.repartition(2, "key"), "order").to(sink_to(kafka_cluster, topic))

    run_epochs(spark, build, epochs, tmp_path, schema="key string, value string")
    by_key: dict[bytes | None, list[int]] = {}
    homes: dict[bytes | None, set[int]] = {}
    for record in kafka_cluster.read(topic):
        by_key.setdefault(record.key, []).append(int(record.value or b""))
        homes.setdefault(record.key, set()).add(record.partition)
    assert all(values == sorted(values) for values in by_key.values())
    assert sum(map(len, by_key.values())) == 300
    assert all(len(partitions) == 1 for partitions in homes.values())


def test_a_key_goes_where_java_would_send_it(
    kafka_cluster: KafkaCluster, topic: str, spark: SparkSession
) -> None:
    """So that a job that comes from Spark's own sink keeps the order of its keys."""
    keys = [f"key-{number}" for number in range(50)]
    rows = spark.createDataFrame([(key, "java") for key in keys], "key string, value string")
    writer = rows.write.format("kafka").option("topic", topic)
    writer.option("kafka.bootstrap.servers", kafka_cluster.bootstrap_servers).save()
    batch = pa.RecordBatch.from_pydict({"key": keys, "value": ["ours"] * 50})
    publish(sink_to(kafka_cluster, topic), batch)
    homes: dict[bytes | None, set[int]] = {}
    for record in kafka_cluster.read(topic):
        homes.setdefault(record.key, set()).add(record.partition)
    assert len(homes) == 50
    assert all(len(partitions) == 1 for partitions in homes.values())


def test_a_record_that_is_too_large_stops_the_query(
    spark: SparkSession, kafka_cluster: KafkaCluster, topic: str, tmp_path: Path
) -> None:
    rows: list[Any] = [("small",), ("x" * 2_000_000,)]
    with pytest.raises(PrepareFailed, match=r"larger than message\.max\.bytes.*dead_letter"):
        write(spark, tmp_path, sink_to(kafka_cluster, topic), rows, "value string")
    assert kafka_cluster.read(topic) == []


def prepare(sink: KafkaSink, *rows: dict[str, Any]) -> None:
    """One part of an undecided epoch, in this process; nothing of it stays open."""
    sink.open(QUERY, PART.sink)
    try:
        sink.prepare(iter([pa.RecordBatch.from_pylist(list(rows))]), Part(PART))
    finally:
        pool().discard(Part(PART))
        sink.close(QUERY, PART.sink)()


def test_a_record_with_headers_that_is_too_large_fails_the_part(
    kafka_cluster: KafkaCluster, topic: str
) -> None:
    rows = [{"value": value, "headers": [("h", b"")]} for value in ("small", "x" * 2_000_000)]
    headers = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))
    schema = pa.schema([("value", pa.string()), ("headers", headers)])
    batch = pa.RecordBatch.from_pydict(
        {name: [row[name] for row in rows] for name in schema.names}, schema
    )
    with pytest.raises(RowsRefused, match=r"larger than message\.max\.bytes"):
        publish(sink_to(kafka_cluster, topic), batch)


def test_a_limit_that_only_the_broker_knows_fails_the_part(kafka_cluster: KafkaCluster) -> None:
    name = f"small-{uuid.uuid4().hex[:8]}"
    kafka_cluster.create_topic(name, config={"max.message.bytes": "1000"})
    with pytest.raises((OSError, KafkaException), match=r"[Mm]essage size too large"):
        prepare(sink_to(kafka_cluster, name), {"value": "x" * 5000})
    assert kafka_cluster.read(name) == []


def test_a_missing_topic_of_a_row_fails_the_part(kafka_cluster: KafkaCluster, topic: str) -> None:
    soon = {"topic.metadata.propagation.max.ms": 500}
    rows = [{"value": "v", "topic": name} for name in (topic, "no-such-topic")]
    with pytest.raises(RowsRefused, match="'no-such-topic' does not exist"):
        prepare(sink_to(kafka_cluster, None, options=soon), *rows)
    assert kafka_cluster.read(topic) == []


def test_at_least_once_leaves_no_transaction_behind(
    spark: SparkSession, kafka_cluster: KafkaCluster, topic: str, tmp_path: Path
) -> None:
    ids = write_input(tmp_path / "in", 3)
    rows = read(spark, tmp_path / "in").selectExpr("cast(id as string) as value")
    run(at_least_once(rows, "quick").to(sink_to(kafka_cluster, topic)), tmp_path)
    assert sorted(int(r.value or b"") for r in kafka_cluster.read(topic)) == ids
    # Nothing but records: transactions would have left markers between them.
    assert sum(kafka_cluster.end_offsets(topic).values()) == len(ids)


def test_at_least_once_notices_what_the_broker_does_not_take(
    kafka_cluster: KafkaCluster,
) -> None:
    name = f"small-{uuid.uuid4().hex[:8]}"
    kafka_cluster.create_topic(name, config={"max.message.bytes": "1000"})
    batch = pa.RecordBatch.from_pydict({"value": ["small", "x" * 5000]})
    with pytest.raises(OSError, match="did not take 1 records"):
        publish(sink_to(kafka_cluster, name, options={"batch.num.messages": 1}), batch)


def test_a_queue_that_the_rows_have_filled(kafka_cluster: KafkaCluster, topic: str) -> None:
    """The transaction's last record, the marker, waits for room as rows do."""
    options = {"queue.buffering.max.messages": 100, "linger.ms": 500}  # nothing is sent till then
    rows = [{"value": str(number)} for number in range(100)]
    assert refused(sink_to(kafka_cluster, topic, options=options), rows) == []


def test_a_broker_that_goes_and_comes_back(
    spark: SparkSession, mortal_kafka: KafkaCluster, tmp_path: Path
) -> None:
    """Down during an epoch: the query waits, and nothing is lost or doubled."""
    topic = f"bounced-{uuid.uuid4().hex[:8]}"
    mortal_kafka.create_topic(topic, partitions=2)
    ids = write_input(tmp_path / "in", 4)
    rows = read(spark, tmp_path / "in").selectExpr("cast(id as string) as value")
    stream = exactly_once(rows, "patient").to(sink_to(mortal_kafka, topic))
    gone = threading.Event()

    def bounce(event: Any) -> None:
        if event.kind == "prepared" and event.epoch == 1:
            mortal_kafka.brokers[0].kill()
            threading.Timer(1, mortal_kafka.brokers[0].start).start()
            gone.set()

    run(stream, tmp_path, listener=bounce)
    assert gone.is_set()
    mortal_kafka.wait_ready()
    assert sorted(int(r.value or b"") for r in mortal_kafka.read(topic)) == ids


def test_not_authorised(
    spark: SparkSession,
    guarded_kafka: KafkaCluster,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    topic = f"closed-{uuid.uuid4().hex[:8]}"
    login = {
        "security.protocol": "SASL_PLAINTEXT",
        "sasl.mechanism": "PLAIN",
        "sasl.username": "bob",
        "sasl.password": "bobs-secret",
    }
    guarded_kafka.create_topic(topic)
    sink = KafkaSink(topic, bootstrap_servers=guarded_kafka.sasl_servers, options=login)
    with pytest.raises(BadSink, match=r"not authorised|cannot be used") as caught:
        sink.check(PLAIN, QUERY)
    assert "secret" not in str(caught.value)
    wrong = {**login, "sasl.password": "guessed"}
    sink = KafkaSink(topic, bootstrap_servers=guarded_kafka.sasl_servers, options=wrong)
    with monkeypatch.context() as patch:
        patch.setattr(check, "_ANSWER_TIMEOUT_S", 2.0)
        with pytest.raises(BadSink) as caught:
            sink.check(PLAIN, QUERY)
    assert "guessed" not in str(caught.value)
    allowed = {**login, "sasl.username": "admin", "sasl.password": "top-secret"}
    sink = KafkaSink(topic, bootstrap_servers=guarded_kafka.sasl_servers, options=allowed)
    write(spark, tmp_path, sink, [("v",)], "value string")
    assert [r.value for r in guarded_kafka.read(topic)] == [b"v"]
