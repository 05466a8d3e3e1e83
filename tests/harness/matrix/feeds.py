"""What fills the sources while a cell is run: numbers from 0 up, and what was delivered of them."""

from __future__ import annotations

import json
import threading
from abc import ABC, abstractmethod
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from tests.harness.matrix.lines import LineServer

_PER_BURST = 20
_PAUSE_S = 0.1


class Feed(ABC):
    """Gives a source numbers until it is stopped."""

    def __init__(self, folder: Path, servers: dict[str, Any], tag: str) -> None:
        self.folder = folder
        self.servers = servers
        self.tag = tag
        self.sent = 0

    @abstractmethod
    def start(self) -> dict[str, Any]:
        """Begin; return the settings by which the job finds it."""

    @abstractmethod
    def stop(self) -> None:
        """Send nothing more; what was sent can still be read."""

    def close(self) -> None:  # noqa: B027 (most have nothing to let go)
        """Let everything go."""

    def delivered(self, shown: Iterable[int]) -> Iterable[int]:
        """The numbers that the source has delivered."""
        return range(self.sent)


class _Bursts(Feed):
    """Sends a few numbers at a time, on a thread."""

    def start(self) -> dict[str, Any]:
        """Make the place, and begin."""
        self._over = threading.Event()
        found = self.open()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()
        return found

    def stop(self) -> None:
        """Let the last burst be whole."""
        self._over.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._over.wait(_PAUSE_S):
            self.send(range(self.sent, self.sent + _PER_BURST))
            self.sent += _PER_BURST

    @abstractmethod
    def open(self) -> dict[str, Any]:
        """Make the place to which it sends."""

    @abstractmethod
    def send(self, numbers: Iterable[int]) -> None:
        """Send these; returns when they are there for good."""


class FilesFeed(_Bursts):
    """A file at a time, put there whole."""

    def open(self) -> dict[str, Any]:
        """A folder."""
        self._inbox = self.folder / "in"
        self._inbox.mkdir()
        return {"path": str(self._inbox)}

    def send(self, numbers: Iterable[int]) -> None:
        """One file, under its name when it is whole."""
        hidden = self.folder / "next"
        hidden.write_text("".join(json.dumps({"number": n}) + "\n" for n in numbers), "utf-8")
        hidden.rename(self._inbox / f"{self.sent:08d}.json")


class KafkaFeed(_Bursts):
    """Records of a topic."""

    def open(self) -> dict[str, Any]:
        """A topic of two partitions."""
        from confluent_kafka import Producer

        cluster = self.servers["kafka"]
        self._topic = f"in-{self.tag}"
        cluster.create_topic(self._topic, partitions=2)
        settings = {"bootstrap.servers": cluster.bootstrap_servers, "enable.idempotence": True}
        self._producer: Any = Producer(settings)
        return {"topic": self._topic, "bootstrap_servers": cluster.bootstrap_servers}

    def send(self, numbers: Iterable[int]) -> None:
        """Wait until the brokers have them."""
        for number in numbers:
            self._producer.produce(self._topic, str(number).encode(), str(number % 7).encode())
        self._producer.flush()


class RateFeed(Feed):
    """Spark counts by itself: what lies below the newest number was delivered."""

    def start(self) -> dict[str, Any]:
        """Nothing is to be done."""
        return {}

    def stop(self) -> None:
        """It counts on until the query stops."""

    def delivered(self, shown: Iterable[int]) -> Iterable[int]:
        """Everything below the newest."""
        return range(max(shown, default=-1) + 1)


class SocketFeed(Feed):
    """Lines of a TCP server, each sent once."""

    def start(self) -> dict[str, Any]:
        """Listen."""
        self.server = LineServer(per_second=200)
        return {"host": "127.0.0.1", "port": self.server.port}

    def stop(self) -> None:
        """Stay connected, and silent."""
        self.server.limit = self.server.sent
        self.sent = self.server.sent

    def close(self) -> None:
        """Take no more connections."""
        self.server.close()


class JournaledFeed(SocketFeed):
    """The same, behind a journal: what is in it was delivered."""

    def start(self) -> dict[str, Any]:
        """Listen; the journal lies beside."""
        return {**super().start(), "journal": str(self.folder / "journal")}

    def delivered(self, shown: Iterable[int]) -> Iterable[int]:
        """What is in the journal."""
        from beadline.sources.journal.log import read, segments

        journal = self.folder / "journal"
        found = segments(journal)
        return [int(record.value) for record in read(journal, found[0].first, found[-1].end)]


FEEDS: dict[str, type[Feed]] = {
    "files": FilesFeed,
    "kafka": KafkaFeed,
    "rate": RateFeed,
    "socket": SocketFeed,
    "journaled": JournaledFeed,
}
