"""Producers that live on between epochs, in the Python workers that Spark reuses.

Making one takes half a second, mostly waiting for the broker, so each worker keeps those that it
made. The driver ends a producer's transaction without it; before its next use the producer is told
what happened by committing "again", which the broker answers as done. That is right only for a
transaction that was decided and finished, which the driver says by name (rule 18); in any doubt the
producer is thrown away and made anew under the same name, which aborts what it left.
"""

from __future__ import annotations

import os
import threading
import time
from concurrent.futures import Future, ThreadPoolExecutor
from concurrent.futures import TimeoutError as Unanswered
from functools import partial
from typing import TYPE_CHECKING

from beadline.ids import PartId
from beadline.points import reach
from beadline.sink import Part
from beadline.sinks.kafka import options as kafka_options
from beadline.sinks.kafka import transactions
from beadline.sinks.kafka.markers import PARTITION, Marker
from beadline.sinks.kafka.part import KafkaPart, WriterId
from beadline.sinks.kafka.producer import Producer

if TYPE_CHECKING:
    from beadline.sinks.kafka.sink import KafkaSink

FINISH_TIMEOUT_S = 5.0
_START_TIMEOUT_S = 60.0


class Writer:
    """A transactional producer under one transactional id."""

    def __init__(self, sink: KafkaSink, id_: WriterId) -> None:
        """Make the producer, which fences whoever had the name, and aborts what is open under it.

        Its producer id and epoch are asked for meanwhile: librdkafka does not tell them.
        """
        self.name = str(id_)
        self.timeout_s = sink.transaction_timeout_s
        self.part: PartId | None = None
        self._finishing: Future[None] | None = None
        self._control_topic = sink.control_topic_of(id_.query)
        timeout_ms = int(sink.transaction_timeout_s * 1000)
        self.producer = Producer(
            {
                **kafka_options.producer(sink.bootstrap_servers, sink.options),
                "transactional.id": self.name,
                "transaction.timeout.ms": timeout_ms,
                "message.timeout.ms": timeout_ms,
            }
        )
        self._init()
        self._ask = partial(_asking.submit, _identity, sink, self.name)
        self._identity = self._ask()

    def _init(self) -> None:
        """Get an identity from the broker; while there is none to ask, wait for it."""
        from confluent_kafka import KafkaException

        deadline_s = time.monotonic() + self.timeout_s
        while True:
            try:
                self.producer.client.init_transactions(_START_TIMEOUT_S)
                return
            except KafkaException as error:
                if not error.args[0].retriable() or time.monotonic() > deadline_s:
                    raise

    def _known_identity(self) -> transactions.Transaction:
        """What the coordinator calls us; while there is no broker to ask, wait for it."""
        from kafka.errors import KafkaError

        deadline_s = time.monotonic() + self.timeout_s
        while True:
            try:
                return self._identity.result(_START_TIMEOUT_S)
            except (KafkaError, Unanswered) as error:
                lasting = isinstance(error, KafkaError) and not error.retriable
                if lasting or time.monotonic() > deadline_s:
                    raise
                if self._identity.done():
                    self._identity = self._ask()

    def begin(self, part: PartId) -> None:
        """Open a transaction for a part."""
        self.producer.client.begin_transaction()
        self.part = part

    def finish_later(self) -> None:
        """Begin to learn, beside other work, that the last transaction was committed elsewhere."""
        if self.part is not None and self._finishing is None:
            commit = self.producer.client.commit_transaction
            self._finishing = _asking.submit(commit, FINISH_TIMEOUT_S)

    def finish(self) -> None:
        """Learn it now, or raise."""
        self.finish_later()
        finishing, self._finishing = self._finishing, None
        if finishing is not None:
            finishing.result()
        self.part = None

    def prepared(self, topics: tuple[tuple[str, str], ...] = ()) -> KafkaPart:
        """Send the marker and flush everything; answer with what ends the transaction anywhere.

        The identity is known before the marker is sent, so that a marker that was taken proves
        that the identity was ours and not that of somebody who took the name over since.
        """
        from confluent_kafka import KafkaException

        assert self.part is not None, "no transaction was begun"
        identity = self._known_identity()
        marker = Marker(self.name, identity.producer_id, identity.producer_epoch, self.part)
        try:
            self._send(marker)
        except KafkaException:
            self._check_healthy()  # says why
            raise
        self.producer.flush(self.timeout_s, self.name)
        reach("kafka.flushed")
        self._check_healthy()
        self.producer.check()
        numbers = (identity.producer_id, identity.producer_epoch)
        return KafkaPart(self.name, *numbers, self._control_topic, topics)

    def _send(self, marker: Marker) -> None:
        """Queue it as soon as there is room: the rows before it may have filled the queue."""
        deadline_s = time.monotonic() + self.timeout_s
        while True:
            try:
                self.producer.client.produce(
                    self._control_topic, value=marker.to_bytes(), key=self.name, partition=PARTITION
                )
                return
            except BufferError:
                self.producer.wait_for_room(deadline_s)

    def _check_healthy(self) -> None:
        """Raise if the transaction has failed.

        librdkafka says it when a transaction is begun, which is not allowed now in any case: it
        answers with a wrong state if all is well, and with what is wrong otherwise. It does not
        know of every record that was not taken: those are told one by one.
        """
        from confluent_kafka import KafkaError, KafkaException

        try:
            self.producer.client.begin_transaction()
        except KafkaException as error:
            if error.args[0].code() != KafkaError._STATE:
                raise
        else:
            raise RuntimeError(f"{self.name}: the transaction was gone before it was prepared")

    def close(self) -> None:
        """Throw the producer away; an open transaction stays for the driver to abort."""
        self.producer.close()


class Pool:
    """The live producers of this worker process."""

    def __init__(self) -> None:
        self._pid = os.getpid()
        self._writers: dict[WriterId, tuple[int, Writer]] = {}
        self._plain: dict[str, Producer] = {}
        self._lock = threading.Lock()

    def begin(self, sink: KafkaSink, part: Part) -> Writer:
        """Return a writer with a transaction open for this part."""
        from confluent_kafka import KafkaException

        id_ = WriterId.of(part.id, part.slot)
        with self._lock:
            self._forget_older(part.id)
            _, writer = self._writers.pop(id_, (0, None))
        if writer is not None and not self._ready(writer, part):
            writer.close()
            writer = None
        writer = writer or Writer(sink, id_)
        try:
            writer.begin(part.id)
        except KafkaException:
            writer.close()
            raise
        with self._lock:
            self._writers[id_] = (part.id.generation, writer)
            for other, sibling in self._writers.values():
                if other == part.id.generation and sibling.part in part.decided:
                    sibling.finish_later()
        return writer

    def discard(self, part: Part) -> None:
        """Throw away the writer of a part that failed."""
        with self._lock:
            _, writer = self._writers.pop(WriterId.of(part.id, part.slot), (0, None))
        if writer is not None:
            writer.close()

    def plain(self, sink: KafkaSink) -> Producer:
        """Return a producer without transactions."""
        key = repr((sink.bootstrap_servers, sorted(sink.options.items())))
        with self._lock:
            if key not in self._plain:
                settings = kafka_options.producer(sink.bootstrap_servers, sink.options)
                self._plain[key] = Producer(settings)
            return self._plain[key]

    def discard_plain(self, sink: KafkaSink) -> None:
        """Throw away a producer with which something went wrong."""
        key = repr((sink.bootstrap_servers, sorted(sink.options.items())))
        with self._lock:
            producer = self._plain.pop(key, None)
        if producer is not None:
            producer.close()

    def close(self) -> None:
        """Throw everything away; for tests, whose brokers come and go."""
        with self._lock:
            producers: list[Producer] = [*self._plain.values()]
            producers += [writer.producer for _, writer in self._writers.values()]
            self._writers, self._plain = {}, {}
        for producer in producers:
            producer.close()

    def _ready(self, writer: Writer, part: Part) -> bool:
        """Whether a writer may go on: nothing of it is open that we are not sure of."""
        from confluent_kafka import KafkaException

        if writer.part is None:
            return True
        if writer.part not in part.decided:
            return False
        try:
            writer.finish()
        except KafkaException:
            return False
        return True

    def _forget_older(self, part: PartId) -> None:
        """No producer survives a change of generation (rule 17)."""
        for id_, (generation, writer) in list(self._writers.items()):
            same = (id_.query, id_.incarnation, id_.sink)
            if same == (part.query, part.incarnation, part.sink) and generation != part.generation:
                del self._writers[id_]
                writer.close()


def _identity(sink: KafkaSink, name: str) -> transactions.Transaction:
    client = transactions.connect(sink.bootstrap_servers, sink.options)
    return client.describe([name])[name].transaction


_asking = ThreadPoolExecutor(4, thread_name_prefix="beadline-kafka")
_pool: Pool | None = None
_pool_lock = threading.Lock()


def pool() -> Pool:
    """Return this process's pool: a fork has one of its own."""
    global _pool
    with _pool_lock:
        if _pool is None or _pool._pid != os.getpid():
            _pool = Pool()
        return _pool
