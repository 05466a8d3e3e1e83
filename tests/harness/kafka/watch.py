"""The watcher: a ``read_committed`` consumer that reads all the time, and forgives nothing.

What a reader sees at the end may be right though it was wrong for a while, or came only when a
transaction timed out. So one reads along from the first record to the last, while everything else
dies around it, and compares each record with the one that is due.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterable
from typing import Any

from beadline.verify.watch import BackgroundReader

PROBLEMS_MAX = 20


class Sequence:
    """Says of each record of a key whether its number is the one that is due."""

    def __init__(self) -> None:
        self.due: Counter[str] = Counter()
        self.problems: list[str] = []

    def take(self, key: str, number: int, place: str) -> None:
        """Note a record; one that is not the next of its key is a problem."""
        due = self.due[key]
        if number != due and len(self.problems) < PROBLEMS_MAX:
            what = "again" if number < due else "too early"
            self.problems.append(f"{key} {number} at {place} is {what}: {due} was due")
        self.due[key] = max(due, number + 1)


class Watcher(BackgroundReader):
    """A thread that reads the target topic from its beginning."""

    def __init__(self, servers: str, topic: str, partitions: Iterable[int]) -> None:
        from confluent_kafka import OFFSET_BEGINNING, Consumer, TopicPartition

        super().__init__("kills-watch")
        self._consumer: Any = Consumer(
            {
                "bootstrap.servers": servers,
                "group.id": "beadline-watcher",  # the client insists on one; no group is joined
                "isolation.level": "read_committed",
                "enable.auto.commit": False,
                "auto.offset.reset": "error",
                "fetch.wait.max.ms": 50,
                "log_level": 2,
            }
        )
        places = [TopicPartition(topic, each, OFFSET_BEGINNING) for each in partitions]
        self._consumer.assign(places)
        self._sequence = Sequence()
        self.seen = 0
        self.errors: list[str] = []

    @property
    def problems(self) -> list[str]:
        """Every record that was not the one that was due, and why reading stopped if it did."""
        return [*self._sequence.problems, *self.errors]

    def stop(self) -> None:
        """Read no more."""
        super().stop()
        self._consumer.close()

    def wait_for(self, count: int, timeout_s: float, goes_on: Callable[[], bool]) -> bool:
        """Wait until this number of records was seen; False if it is no use to wait any longer."""
        deadline_s = time.monotonic() + timeout_s
        while self.seen < count:
            if time.monotonic() > deadline_s or not goes_on() or self.problems:
                return self.seen >= count
            time.sleep(0.02)
        return True

    def _run(self) -> None:
        from confluent_kafka import KafkaError

        while not self._ended.is_set():
            message = self._consumer.poll(0.1)
            if message is None:
                continue
            error = message.error()
            if error is None:
                place = f"{message.partition()}/{message.offset()}"
                self._sequence.take(message.key().decode(), int(message.value()), place)
                self.seen += 1
            elif error.fatal() or error.code() == KafkaError._AUTO_OFFSET_RESET:
                # Others pass: brokers are killed here, and the client continues when they are back.
                self.errors.append(f"reading failed: {error.str()}")
