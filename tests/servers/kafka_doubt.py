"""Kafka transactions in every kind of doubt, with the decision log that judges them."""

from __future__ import annotations

import itertools
import uuid
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
from confluent_kafka import Consumer, Producer, TopicPartition

from beadline.decisions import Claim, Decision, DecisionLog, FileStore, StoredPart
from beadline.files.local import LocalFiles
from beadline.ids import EpochId, PartId, QueryId
from beadline.sink import Part, Prepared
from beadline.sinks import KafkaSink
from beadline.sinks.kafka.client import connect
from beadline.sinks.kafka.part import KafkaPart
from beadline.sinks.kafka.producers import pool
from beadline.sinks.kafka.settings import KafkaSettings
from beadline.testing.servers import KafkaCluster

SINK = "clean"
_numbers = itertools.count()


class Doubt:
    """One query with a topic, a log, a reader and, if wanted, strangers; all of its own."""

    def __init__(
        self, cluster: KafkaCluster, folder: Path, control_topic: str | None = None
    ) -> None:
        self.cluster = cluster
        self.servers = cluster.bootstrap_servers
        self.topic = f"doubt-{next(_numbers)}-{uuid.uuid4().hex[:6]}"
        self.checkpoint = folder / "checkpoint"
        self.query = QueryId(self.topic, uuid.uuid4().hex, f"file:{self.checkpoint}")
        self.sink = KafkaSink(
            self.topic,
            bootstrap_servers=self.servers,
            transaction_timeout_s=600,
            control_topic=control_topic,
        )
        cluster.create_topic(self.topic)
        self.sink.open(self.query, SINK)
        self.producers: list[Producer] = []
        store = FileStore(LocalFiles(), f"file:{self.checkpoint}/beadline/log")
        store.make_folder()
        self.log = DecisionLog(store)
        self.log.open()

    def prepare(
        self, epoch: int, partition: int = 0, slot: int = 0, generation: int = 1
    ) -> Prepared[KafkaPart]:
        """Leave a part open on the broker, as an executor does; its rows say which it is."""
        numbers = (generation, epoch, partition, 0)
        id_ = PartId(self.query.name, self.query.incarnation, SINK, *numbers)
        rows = [{"value": f"{epoch}.{partition}.{row}"} for row in range(3)]
        batch = pa.RecordBatch.from_pylist(rows, schema=pa.schema([("value", pa.string())]))
        committable = self.sink.prepare(iter([batch]), Part(id_, slot=slot))
        assert committable is not None
        return Prepared(id_, len(rows), committable, checksum=1)

    def prepare_again(self, epoch: int, before: Prepared[KafkaPart]) -> Prepared[KafkaPart]:
        """The same writer continues with another part, as it does in a worker that lives on."""
        id_ = replace(before.id, epoch=epoch)
        batch = pa.RecordBatch.from_pydict({"value": [f"{epoch}.0.0"]})
        committable = self.sink.prepare(iter([batch]), Part(id_, decided=(before.id,)))
        assert committable is not None
        return Prepared(id_, 1, committable, checksum=1)

    def begun(self, epoch: int) -> str:
        """Die while a part is written, before its marker; return the transaction's id."""
        id_ = PartId(self.query.name, self.query.incarnation, SINK, 1, epoch, 0, 0)
        control_topic = self.sink.control_topic_of(self.query.name)
        writer = pool().begin(self.sink.settings, control_topic, Part(id_))
        writer.producer.client.produce(self.topic, b"half", partition=0)
        writer.producer.flush(writer.name)
        pool().discard(Part(id_))
        return writer.name

    def claim(self, **fields: Any) -> None:
        """Start the query, as far as its log is concerned."""
        before = self.log.state.claim
        generation = before.generation + 1 if before else 1
        claim = Claim(
            uuid.uuid4().hex,
            self.query,
            generation,
            "exactly-once",
            -1,
            {SINK: f"kafka:x/{self.topic}"},
            self.log.state.decided_at,
            0,
            **fields,
        )
        self.log.append(claim)

    def decide(self, epoch: int, parts: Sequence[Prepared[KafkaPart]]) -> EpochId:
        """Append a decision that names these parts."""
        if self.log.state.claim is None:
            self.claim()
        state = self.log.state
        assert state.claim is not None
        assert state.claim_at is not None
        nonce = uuid.uuid4().hex
        sinks = {SINK: tuple(_stored(part) for part in parts)}
        at = (state.claim_at, state.decided_at)
        generation = state.claim.generation
        self.log.append(
            Decision(nonce, generation, epoch, "", len(parts), {}, sinks, *at, 0, 0, epoch + 1)
        )
        return EpochId(self.query, epoch, nonce, epoch + 1)

    def produce(self, *values: str) -> None:
        """Write records outside any transaction."""
        producer = Producer({"bootstrap.servers": self.servers})
        for value in values:
            producer.produce(self.topic, value, partition=0)
        assert producer.flush(30) == 0

    def stranger(self, *values: str) -> str:
        """Leave a transaction open that is not Beadline's; return its id."""
        name = f"stranger-{uuid.uuid4().hex[:6]}"
        producer = Producer({"bootstrap.servers": self.servers, "transactional.id": name})
        producer.init_transactions(30)
        self.producers.append(producer)
        self._begin(*values)
        return name

    def go_on(self, *values: str) -> None:
        """The last stranger commits, and begins another transaction under the same id."""
        self.producers[-1].commit_transaction(30)
        self._begin(*values)

    def _begin(self, *values: str) -> None:
        producer = self.producers[-1]
        producer.begin_transaction()
        for value in values:
            producer.produce(self.topic, value, partition=0)
        assert producer.flush(30) == 0

    def reader(self, group: str) -> Consumer:
        """A read_committed reader at the beginning; `take` moves it on."""
        consumer = Consumer(
            {
                "bootstrap.servers": self.servers,
                "group.id": group,
                "isolation.level": "read_committed",
                "enable.auto.commit": False,
            }
        )
        consumer.assign([TopicPartition(self.topic, 0, 0)])
        return consumer

    def visible(self) -> list[str]:
        return [(record.value or b"").decode() for record in self.cluster.read(self.topic)]

    def states(self, *ids: str) -> list[str]:
        found = connect(KafkaSettings(self.servers)).describe(ids)
        return [found[id_].state for id_ in ids]

    def close(self) -> None:
        """Leave nothing open: the broker is everybody's."""
        self.sink.abort(list(self.sink.in_doubt(self.query, "out")))
        for producer in self.producers:
            producer.purge()
        client = connect(KafkaSettings(self.servers))
        mine = [name for name in client.list(("Ongoing",)) if name.startswith("stranger-")]
        for one in client.describe(mine).values():
            client.fence([one.transaction])
        self.log.close()


def _stored(part: Prepared[KafkaPart]) -> StoredPart:
    numbers = (part.id.partition, part.id.attempt, part.id.generation)
    return StoredPart(*numbers, part.rows, part.checksum, part.committable.to_json())


def take(consumer: Consumer, timeout_s: float = 15) -> str | None:
    """Read one record and commit the group's place behind it; None if there is none to see."""
    message = consumer.poll(timeout_s)
    if message is None:
        return None
    assert message.error() is None, message.error()
    consumer.commit(message=message, asynchronous=False)
    return (message.value() or b"").decode()
