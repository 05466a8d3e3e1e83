"""A job of the tests on Kafka: files in, one topic out."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession

from beadline import Stream, exactly_once
from beadline.sinks import KafkaSink
from beadline.sinks.kafka.client import OPEN_STATES, connect
from beadline.sinks.kafka.settings import KafkaSettings
from beadline.testing.servers import KafkaCluster
from tests.spark.jobs import read, write_input

PARTS = 2


@dataclass(frozen=True)
class Job:
    """One query into a topic of its own: numbers as values, one file of ten an epoch."""

    spark: SparkSession
    cluster: KafkaCluster
    folder: Path
    name: str
    make: Callable[..., KafkaSink] = KafkaSink

    @property
    def sink(self) -> KafkaSink:
        return self.make(f"{self.name}-out", bootstrap_servers=self.cluster.bootstrap_servers)

    def stream(self, parts: int = PARTS) -> Stream:
        return self.to_sink(read(self.spark, self.folder / "in").repartition(parts, "id"))

    def to_sink(self, frame: DataFrame) -> Stream:
        rows = frame.selectExpr("k AS key", "CAST(id AS STRING) AS value")
        return exactly_once(rows, self.name).to(self.sink, name="out")

    def feed(self, files: int, first: int = 0) -> list[int]:
        return write_input(self.folder / "in", files, first=first)

    def visible(self) -> list[int]:
        """What readers see, in order of numbers; doubles stay doubles."""
        records = self.cluster.read(f"{self.name}-out")
        return sorted(int(record.value) for record in records if record.value is not None)

    def ids(self, states: Sequence[str] = ()) -> list[str]:
        """The transactional ids of this query that the brokers know."""
        listed = connect(KafkaSettings(self.cluster.bootstrap_servers)).list(states)
        return sorted(name for name in listed if f"~{self.name}~" in name)

    def open(self) -> list[str]:
        return self.ids(OPEN_STATES)
