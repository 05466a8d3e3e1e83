"""The feeder: records go into the source topic while the job runs, dies and starts again."""

from __future__ import annotations

import random
import threading
from collections import Counter
from typing import Any

KEYS = tuple(f"key-{number:02d}" for number in range(24))
FIRST = 200  # are there before the job
_EVERY_S = 0.1
_AT_ONCE_MAX = 10
_END_TIMEOUT_S = 60.0


class Feeder:
    """A thread that produces; an idempotent producer, so that the input itself has no doubles."""

    def __init__(self, servers: str, topic: str, seed: int) -> None:
        from confluent_kafka import Producer

        self._producer: Any = Producer(
            {"bootstrap.servers": servers, "enable.idempotence": True, "log_level": 2}
        )
        self._topic = topic
        self._rng = random.Random(f"{seed} feed")
        self._next: Counter[str] = Counter()
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, name="kills-feed", daemon=True)
        self.sent = 0

    def start(self) -> None:
        """Send the first records, then continue in the background."""
        self._send(FIRST)
        self._flush()
        self._thread.start()

    def stop(self) -> None:
        """Send nothing more; everything that was sent is in the topic then."""
        self._ended.set()
        if self._thread.is_alive():
            self._thread.join()
            self._flush()

    def _run(self) -> None:
        while not self._ended.wait(_EVERY_S):
            self._send(self._rng.randint(0, _AT_ONCE_MAX))

    def _send(self, count: int) -> None:
        for _ in range(count):
            key = self._rng.choice(KEYS)
            self._producer.produce(self._topic, str(self._next[key]).encode(), key.encode())
            self._next[key] += 1
            self.sent += 1
        self._producer.poll(0)

    def _flush(self) -> None:
        left = self._producer.flush(_END_TIMEOUT_S)
        if left:
            raise TimeoutError(f"{left} records of the input were not taken by Kafka")
