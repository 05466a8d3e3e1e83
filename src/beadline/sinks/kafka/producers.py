"""Producers that are kept between epochs, in the Python workers that Spark reuses.

Making one takes half a second, mostly waiting for the broker, so each worker keeps those that it
made. The driver ends a producer's transaction without it; before its next use the producer commits
"again", which the broker answers as done. That is right only for a transaction that was decided and
finished, which the driver says by name (rule 18); in any doubt the producer is closed and recreated
under the same transactional id, which aborts what it left.
"""

from __future__ import annotations

import os
import threading
import time
from concurrent.futures import Future, ThreadPoolExecutor
from concurrent.futures import TimeoutError as Unanswered
from contextlib import suppress
from functools import partial
from typing import Any

from beadline.sink import Part, PartId, Verdict, reach, retry, running
from beadline.sinks.kafka import native
from beadline.sinks.kafka.client import Transaction, connect
from beadline.sinks.kafka.markers import CONTROL_PARTITION, Marker
from beadline.sinks.kafka.part import KafkaPart, WriterId
from beadline.sinks.kafka.settings import KafkaSettings
from beadline.sinks.kafka.topics import Known

FINISH_TIMEOUT_S = 5.0
_START_TIMEOUT_S = 60.0
_ROOM_POLL_S = 0.005


class Producer:
    """librdkafka's producer: its own, for whole batches, or else confluent-kafka's.

    ``client`` is either; they share their method names. It notes every record that was not taken.
    Its waits are no retries: librdkafka does the work, and has to be polled until it is done.
    """

    def __init__(self, settings: KafkaSettings, **special: Any) -> None:
        self.options = settings.options
        self.timeout_s = settings.transaction_timeout_s
        self.record_bytes_max = settings.record_bytes_max
        self._settings = settings
        self._errors: list[str] = []
        self._metadata: Any = None
        self.known_topics: dict[str, Known] = {}
        self.missed_topics: dict[str, float] = {}  # since when, by the monotonic clock
        told = {**settings.producer(), **special}
        callbacks = any(callable(value) for value in told.values())
        self.batches: Any = None
        if native.available() and not callbacks:
            self.client: Any = native.NativeProducer(told)
            self.batches = self.client
        else:
            from confluent_kafka import Producer as LibrdkafkaProducer

            only_errors = {"on_delivery": self._delivered, "delivery.report.only.error": True}
            self.client = LibrdkafkaProducer({**told, **only_errors})

    def _delivered(self, error: Any, _: Any) -> None:
        if error is not None:
            self._errors.append(error.str())

    def list_topics(self, topic: str, timeout_s: float) -> Any:
        """Ask the brokers about a topic; where they may create topics, asking creates it."""
        return self._asking().list_topics(topic, timeout=timeout_s).topics[topic]

    def describe_topic(self, topic: str, timeout_s: float) -> Any:
        """Ask for what a topic is, its id included."""
        from confluent_kafka import TopicCollection

        asked = self._asking().describe_topics(TopicCollection([topic]), request_timeout=timeout_s)
        return asked[topic].result()

    def _asking(self) -> Any:
        from confluent_kafka.admin import AdminClient

        if self._metadata is None:
            self._metadata = AdminClient(self._settings.client())
        return self._metadata

    def poll(self, timeout_s: float) -> None:
        """Let librdkafka say what became of records, which makes room for others."""
        self.client.poll(timeout_s)

    def produce(self, topic: str, **record: Any) -> None:
        """Queue one record as soon as there is room for it."""
        deadline_s = 0.0
        while True:
            try:
                self.client.produce(topic, **record)
                return
            except BufferError:
                deadline_s = deadline_s or self.room_deadline_s()
                self.wait_for_room(deadline_s)

    def room_deadline_s(self) -> float:
        """Until when there must be room, by the monotonic clock."""
        return time.monotonic() + self.timeout_s

    def wait_for_room(self, deadline_s: float) -> None:
        """Wait a moment: the queue is full, and the brokers are taking from it, or will be."""
        if time.monotonic() > deadline_s:
            raise TimeoutError("Kafka has taken no records for the length of a transaction")
        self.poll(_ROOM_POLL_S)

    def flush(self, what: str) -> None:
        """Wait until every record is answered by the brokers."""
        deadline_s = time.monotonic() + self.timeout_s
        while left := self.client.flush(min(10.0, max(0.1, deadline_s - time.monotonic()))):
            if time.monotonic() >= deadline_s:
                raise TimeoutError(f"{left} records of {what} were not taken by Kafka in time")

    def check(self) -> None:
        """Raise if any record since the last check was not taken; after a flush, that is all."""
        errors, self._errors = self._errors, []
        if self.batches is not None:
            errors += self.batches.errors()
        if errors:
            raise OSError(
                f"Kafka did not take {len(errors)} records, the first of them: {errors[0]}"
            )

    def close(self) -> None:
        """Drop what is queued, and close."""
        from confluent_kafka import KafkaException

        if self.batches is not None:
            self.batches.close()
            return
        with suppress(KafkaException, RuntimeError):  # it is being closed anyway
            self.client.purge()


class Writer:
    """A transactional producer under one transactional id."""

    def __init__(self, settings: KafkaSettings, id_: WriterId, control_topic: str) -> None:
        """Make the producer, which fences the last owner of the id and aborts what it left open.

        Its producer id and epoch are asked for meanwhile: librdkafka does not expose them.
        """
        self.name = str(id_)
        self.part: PartId | None = None
        self._settings = settings
        self._control_topic = control_topic
        self._finishing: Future[None] | None = None
        timeout_ms = int(settings.transaction_timeout_s * 1000)
        self.producer = Producer(
            settings,
            **{
                "transactional.id": self.name,
                "transaction.timeout.ms": timeout_ms,
                "message.timeout.ms": timeout_ms,
            },
        )
        # Get a producer id from the broker; while no broker answers, wait for one.
        start = partial(self.producer.client.init_transactions, _START_TIMEOUT_S)
        retry(start, _judge_start, running(settings.transaction_timeout_s))
        self._identity = self._ask()

    def _ask(self) -> Future[Transaction]:
        return _asking.submit(_identity, self._settings, self.name)

    def _known_identity(self) -> Transaction:
        """Our producer id and epoch, as the coordinator has them; waits for a broker to ask."""

        def known() -> Transaction:
            if self._identity.done() and self._identity.exception() is not None:
                self._identity = self._ask()
            return self._identity.result(_START_TIMEOUT_S)

        return retry(known, _judge_identity, running(self._settings.transaction_timeout_s))

    def begin(self, part: PartId) -> None:
        """Open a transaction for a part."""
        self.producer.client.begin_transaction()
        self.part = part

    def finish_later(self) -> None:
        """Start confirming in the background that the last transaction was committed."""
        if self.part is not None and self._finishing is None:
            commit = self.producer.client.commit_transaction
            self._finishing = _asking.submit(commit, FINISH_TIMEOUT_S)

    def finish(self) -> None:
        """Wait for that confirmation, or raise."""
        self.finish_later()
        finishing, self._finishing = self._finishing, None
        if finishing is not None:
            finishing.result()
        self.part = None

    def prepared(self, topics: tuple[tuple[str, str], ...] = ()) -> KafkaPart:
        """Send the marker and flush everything; answer with what ends the transaction anywhere.

        The identity is known before the marker is sent, so that a marker that was taken proves
        that the identity was ours and not that of a writer that has taken over the name since.
        """
        from confluent_kafka import KafkaException

        assert self.part is not None, "no transaction was begun"
        identity = self._known_identity()
        marker = Marker(identity, self.part).to_bytes()
        try:
            self.producer.produce(
                self._control_topic, value=marker, key=self.name, partition=CONTROL_PARTITION
            )
        except KafkaException:
            self._check_healthy()  # says why
            raise
        self.producer.flush(self.name)
        reach("kafka.flushed")
        self._check_healthy()
        self.producer.check()
        return KafkaPart.of(identity, self._control_topic, topics)

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
        """Close the producer; an open transaction stays for the driver to abort."""
        self.producer.close()


class Pool:
    """The live producers of this worker process."""

    def __init__(self) -> None:
        self._pid = os.getpid()
        self._writers: dict[WriterId, tuple[int, Writer]] = {}
        self._plain: dict[tuple[str, float], Producer] = {}
        self._lock = threading.Lock()

    def begin(self, settings: KafkaSettings, control_topic: str, part: Part) -> Writer:
        """Return a writer with a transaction open for this part."""
        from confluent_kafka import KafkaException

        id_ = WriterId.of(part.id, part.slot)
        with self._lock:
            self._forget_older(part.id)
            _, writer = self._writers.pop(id_, (0, None))
        if writer is not None and not self._ready(writer, part):
            writer.close()
            writer = None
        writer = writer or Writer(settings, id_, control_topic)
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
        """Close the writer of a part that failed."""
        with self._lock:
            _, writer = self._writers.pop(WriterId.of(part.id, part.slot), (0, None))
        if writer is not None:
            writer.close()

    def plain(self, settings: KafkaSettings) -> Producer:
        """Return a producer without transactions."""
        key = (settings.key, settings.transaction_timeout_s)
        with self._lock:
            if key not in self._plain:
                self._plain[key] = Producer(settings)
            return self._plain[key]

    def discard_plain(self, settings: KafkaSettings) -> None:
        """Close a producer with which something went wrong."""
        with self._lock:
            producer = self._plain.pop((settings.key, settings.transaction_timeout_s), None)
        if producer is not None:
            producer.close()

    def close(self) -> None:
        """Close all producers; for tests, whose brokers come and go."""
        with self._lock:
            producers: list[Producer] = [*self._plain.values()]
            producers += [writer.producer for _, writer in self._writers.values()]
            self._writers, self._plain = {}, {}
        for producer in producers:
            producer.close()

    def _ready(self, writer: Writer, part: Part) -> bool:
        """Whether a writer may be used again: the outcome of its last transaction is known."""
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


def _identity(settings: KafkaSettings, name: str) -> Transaction:
    return connect(settings).describe([name])[name].transaction


def _judge_start(error: Exception) -> Verdict:
    from confluent_kafka import KafkaException

    passing = isinstance(error, KafkaException) and error.args[0].retriable()
    return Verdict.AWAY if passing else Verdict.FINAL


def _judge_identity(error: Exception) -> Verdict:
    from kafka.errors import KafkaError

    passing = isinstance(error, Unanswered) or (isinstance(error, KafkaError) and error.retriable)
    return Verdict.AWAY if passing else Verdict.FINAL


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
