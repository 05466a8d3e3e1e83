"""A producer of one worker process, which notices every record that was not taken."""

from __future__ import annotations

import time
from contextlib import suppress
from typing import Any, NamedTuple

from beadline.sinks.kafka import native

_ROOM_POLL_S = 0.005


class Known(NamedTuple):
    """What a producer was told of a topic before it sent anything there."""

    partitions: int
    id: str


class Producer:
    """librdkafka's producer: its own, for whole batches, or else confluent-kafka's.

    ``client`` is either; they share their method names.
    """

    def __init__(self, settings: dict[str, Any]) -> None:
        self._errors: list[str] = []
        self._settings = settings
        self._metadata: Any = None
        self.known_topics: dict[str, Known] = {}
        self.missed_topics: dict[str, float] = {}  # since when, by the monotonic clock
        callbacks = any(callable(value) for value in settings.values())
        self.batches: Any = None
        if native.available() and not callbacks:
            self.client: Any = native.NativeProducer(settings)
            self.batches = self.client
        else:
            from confluent_kafka import Producer as LibrdkafkaProducer

            only_errors = {"on_delivery": self._delivered, "delivery.report.only.error": True}
            self.client = LibrdkafkaProducer({**settings, **only_errors})

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
            names = ("bootstrap.servers", "security.", "sasl.", "ssl.", "enable.ssl.", "log_level")
            shared = {n: v for n, v in self._settings.items() if n.startswith(names)}
            self._metadata = AdminClient(shared)
        return self._metadata

    def poll(self, timeout_s: float) -> None:
        """Let librdkafka say what became of records, which makes room for others."""
        self.client.poll(timeout_s)

    def wait_for_room(self, deadline_s: float) -> None:
        """Wait a moment: the queue is full, and the brokers are taking from it, or will be."""
        if time.monotonic() > deadline_s:
            raise TimeoutError("Kafka has taken no records for the length of a transaction")
        self.poll(_ROOM_POLL_S)

    def flush(self, timeout_s: float, what: str) -> None:
        """Wait until every record is answered by the brokers."""
        deadline_s = time.monotonic() + timeout_s
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
        """Throw away what is queued, and end."""
        from confluent_kafka import KafkaException

        if self.batches is not None:
            self.batches.close()
            return
        with suppress(KafkaException, RuntimeError):  # it is being thrown away
            self.client.purge()
