"""The conformance suite on ``KafkaSink``, with the old and the new transaction protocol."""

from __future__ import annotations

import itertools
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from dataclasses import replace

import pyarrow as pa
import pytest
from confluent_kafka import Producer

from beadline.sink import AnySink
from beadline.sinks import KafkaSink
from beadline.sinks.kafka import client
from beadline.sinks.kafka.client import OPEN_STATES, connect
from beadline.sinks.kafka.part import WriterId
from beadline.sinks.kafka.producers import pool
from beadline.sinks.kafka.settings import KafkaSettings
from beadline.testing.servers import KafkaCluster
from beadline.testing.suite import *  # noqa: F403
from beadline.testing.suite import Row, SinkHarness

# Each case with one of the two protocols, chosen by the seed; with BEADLINE_LONG=1 all of them.
pytestmark = pytest.mark.sampled(1)

_topics = (f"suite-{number}" for number in itertools.count())
STRANGER = "somebody-elses-transaction"


class KafkaHarness(SinkHarness):
    schema = pa.schema([("key", pa.string()), ("value", pa.string())])
    secrets = ("dont-tell-me",)

    def __init__(self, cluster: KafkaCluster) -> None:
        self.cluster = cluster
        self.strangers: list[Producer] = []

    def fresh(self, schema: pa.Schema) -> AnySink:
        # The suite's query always has the same name, so what earlier cases left open would be its.
        brokers = connect(KafkaSettings(self.cluster.bootstrap_servers))
        left = brokers.describe(self.open_names()).values()
        brokers.until_answered(brokers.fence, [one.transaction for one in left])
        topic = next(_topics)
        self.cluster.create_topic(topic, partitions=2)
        return KafkaSink(
            topic,
            bootstrap_servers=self.cluster.bootstrap_servers,
            control_topic=f"{topic}-markers",
            transaction_timeout_s=600,
            options={"sasl.password": "dont-tell-me"},
        )

    def visible(self, sink: AnySink) -> list[Row]:
        assert isinstance(sink, KafkaSink)
        assert sink.topic is not None
        return [
            {"key": _text(record.key), "value": _text(record.value)}
            for record in self.cluster.read(sink.topic)
        ]

    def leftovers(self, sink: AnySink) -> Collection[str]:
        return self.open_names()

    def open_names(self) -> list[str]:
        """What the suite itself has open: other tests leave things on the same brokers."""
        names = connect(KafkaSettings(self.cluster.bootstrap_servers)).list(OPEN_STATES)
        return [name for name in names if name == STRANGER or _is_ours(name)]

    def plant_stranger(self, sink: AnySink) -> str | None:
        servers = {"bootstrap.servers": self.cluster.bootstrap_servers}
        producer = Producer({**servers, "transactional.id": STRANGER})
        producer.init_transactions(30)
        producer.begin_transaction()
        topic = next(_topics)
        self.cluster.create_topic(topic)
        producer.produce(topic, b"mine")
        producer.flush()
        self.strangers.append(producer)
        return STRANGER

    @contextmanager
    def unreachable(self, sink: AnySink) -> Iterator[AnySink]:
        assert isinstance(sink, KafkaSink)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(client, "_REQUEST_TIMEOUT_S", 1.0)
            yield replace(sink, bootstrap_servers="127.0.0.1:1")

    def row(self, number: int, version: int = 0) -> Row:
        return {"key": str(number), "value": f"{number}.{version}"}

    def odd_rows(self) -> tuple[pa.Schema, list[Row]]:
        words = ["", " ", "NULL", "\\N", "'", '"', "%s", "ß ö 漢 🧵", "a\tb\nc", "007", None, "\0"]
        rows = [{"key": words[-index], "value": word} for index, word in enumerate(words)]
        return self.schema, rows


def _is_ours(name: str) -> bool:
    writer = WriterId.parse(name)
    return writer is not None and writer.query in ("suite", "other")


def _text(data: bytes | None) -> str | None:
    return None if data is None else data.decode(errors="surrogateescape")


@pytest.fixture(params=["new protocol", "old protocol"])
def harness(request: pytest.FixtureRequest) -> Iterator[SinkHarness]:
    name = "kafka_cluster" if request.param == "new protocol" else "old_kafka_cluster"
    yield KafkaHarness(request.getfixturevalue(name))
    pool().close()
