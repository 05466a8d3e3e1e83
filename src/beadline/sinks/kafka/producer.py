"""A producer of one worker process: confluent-kafka's, and the way to hand it whole batches."""

from __future__ import annotations

import time
from contextlib import suppress
from typing import Any

from beadline.sinks.kafka import native


class Producer:
    """A librdkafka producer, and the way to hand it whole batches."""

    def __init__(self, settings: dict[str, Any]) -> None:
        from confluent_kafka import Producer as LibrdkafkaProducer

        self.inner: Any = LibrdkafkaProducer(settings)
        self.batches: Any = native.BatchProducer(self.inner) if native.available() else None
        self.known_topics: dict[str, int] = {}  # with the number of their partitions

    def poll(self, timeout_s: float) -> None:
        """Let librdkafka say what became of records, which makes room for others."""
        self.inner.poll(timeout_s)

    def flush(self, timeout_s: float, what: str) -> None:
        """Wait until every record is answered by the brokers."""
        deadline_s = time.monotonic() + timeout_s
        while left := self._flush(min(10.0, max(0.1, deadline_s - time.monotonic()))):
            if time.monotonic() >= deadline_s:
                raise TimeoutError(f"{left} records of {what} were not taken by Kafka in time")

    def _flush(self, timeout_s: float) -> int:
        left: int = self.inner.flush(timeout_s)
        return left

    def close(self) -> None:
        """Throw away what is queued, and end."""
        from confluent_kafka import KafkaException

        if self.batches is not None:
            self.batches.close()
        with suppress(KafkaException, RuntimeError):  # it is being thrown away
            self.inner.purge()


class PlainProducer(Producer):
    """A producer without transactions, which has to notice itself that a record was not taken."""

    def __init__(self, settings: dict[str, Any]) -> None:
        self._errors: list[str] = []
        super().__init__({**settings, "on_delivery": self._delivered})
        self.batches = native.LonelyProducer(settings) if native.available() else None

    def _delivered(self, error: Any, _: Any) -> None:
        if error is not None:
            self._errors.append(error.str())

    def poll(self, timeout_s: float) -> None:
        """As above, for both."""
        if self.batches is not None:
            self.batches.poll(timeout_s)
        super().poll(0 if self.batches is not None else timeout_s)

    def _flush(self, timeout_s: float) -> int:
        left = self.batches.flush(timeout_s) if self.batches is not None else 0
        return int(left or super()._flush(timeout_s))

    def check(self) -> None:
        """Raise if any record since the last check was not taken."""
        errors, self._errors = self._errors, []
        if self.batches is not None:
            errors += self.batches.errors()
        if errors:
            raise OSError(
                f"Kafka did not take {len(errors)} records, the first of them: {errors[0]}"
            )
