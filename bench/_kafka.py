"""What the Kafka benchmarks share: a broker, jobs on both sides, and how they are fed."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from confluent_kafka import Producer
from pyspark.sql import DataFrame, SparkSession

from beadline import at_least_once, exactly_once, sources
from beadline.observe import Event
from beadline.sinks import KafkaSink
from beadline.testing.servers import KafkaCluster
from bench._common import as_spark_comes

# The same for both: Spark's producer is Java's, ours is librdkafka, and the names agree.
PRODUCER = {"linger.ms": "5", "batch.size": "1000000", "acks": "all"}
RECORD_BYTES = 100
KEY_BYTES = 8
PARTITIONS = 2


@dataclass
class Side:
    """One running query, from a topic of its own to a topic of its own."""

    name: str
    source: str
    target: str
    query: Any
    progress: Callable[[], list[Any]]


def make_side(
    spark: SparkSession,
    cluster: KafkaCluster,
    folder: Path,
    kind: str,
    *,
    name: str,
    options: dict[str, str] | None = None,
    every: str | None = None,
    listener: Callable[[Event], None] | None = None,
) -> Side:
    """Start a query of one kind: ``spark``, ``exactly_once`` or ``at_least_once``."""
    source, target = f"{name}-in", f"{name}-out"
    for topic in (source, target):
        cluster.create_topic(topic, partitions=PARTITIONS)
    frame = sources.kafka(
        spark, bootstrap_servers=cluster.bootstrap_servers, topic=source, options=options or {}
    ).select("key", "value")
    checkpoint = str(folder / name)
    if kind == "spark":
        query = _spark_sink(frame, cluster, target, checkpoint, every)
    else:
        sink = KafkaSink(
            target, bootstrap_servers=cluster.bootstrap_servers, options=dict(PRODUCER)
        )
        begin = exactly_once if kind == "exactly_once" else at_least_once
        query = begin(frame, name).to(sink).start(checkpoint, every=every, listener=listener)
    return Side(name, source, target, query, lambda: list(query.recentProgress))


def _spark_sink(
    frame: DataFrame, cluster: KafkaCluster, target: str, checkpoint: str, every: str | None
) -> Any:
    writer = frame.writeStream.format("kafka").option("topic", target)
    writer = writer.option("kafka.bootstrap.servers", cluster.bootstrap_servers)
    for name, value in PRODUCER.items():
        writer = writer.option(f"kafka.{name}", value)
    if every is not None:
        writer = writer.trigger(processingTime=every)
    with as_spark_comes(frame.sparkSession):
        return writer.option("checkpointLocation", checkpoint).start()


class Feeder:
    """Writes records that become visible all at once, so that they are one epoch."""

    def __init__(self, cluster: KafkaCluster) -> None:
        settings = {"bootstrap.servers": cluster.bootstrap_servers, **PRODUCER}
        settings["transactional.id"] = "feeder"
        settings["queue.buffering.max.messages"] = "2000000"
        self._producer = Producer(settings)
        self._producer.init_transactions(60)

    def feed(self, topic: str, records: int) -> None:
        """Write a number of records of 100 bytes, keyed, over all partitions."""
        value = b"x" * (RECORD_BYTES - KEY_BYTES)
        self._producer.begin_transaction()
        step = 100_000
        for begin in range(0, records, step):
            keys = (b"%08d" % number for number in range(begin, min(begin + step, records)))
            batch = [{"value": value, "key": key} for key in keys]
            self._producer.produce_batch(topic, batch)
            self._producer.poll(0)
        self._producer.commit_transaction(120)


def wait_for(side: Side, rows: int, timeout_s: float = 300) -> list[Any]:
    """Wait until the query has read this number of rows in all; return the progress of its epochs.

    Spark keeps a hundred of them. To ask for all takes the CPU that is measured, so it is done when
    the newest one is a new one.
    """
    deadline_s = time.monotonic() + timeout_s
    newest = None
    while True:
        failure = side.query.exception()
        if failure is not None:
            raise failure
        # Spark's Progress of idle triggers has no rows.
        last = side.query.lastProgress
        if last is not None and last["batchId"] != newest and last["numInputRows"] > 0:
            newest = last["batchId"]
            done = [one for one in side.progress() if one["numInputRows"] > 0]
            if sum(one["numInputRows"] for one in done) >= rows:
                return done
        if time.monotonic() > deadline_s:
            raise TimeoutError(f"{side.name}: {rows} rows were not read in {timeout_s} s")
        time.sleep(0.05)


def end_of(cluster: KafkaCluster, topic: str) -> int:
    """How many offsets of a topic are used: records, and markers of transactions."""
    return sum(cluster.end_offsets(topic).values())
