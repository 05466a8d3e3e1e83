"""Positions for lag tools: a source's offsets, written to a consumer group after each epoch.

Spark's checkpoint is where a query continues from; it commits no offsets to Kafka, so every lag
tool takes it for dead. ``sources.kafka(..., group="orders")`` makes it visible. Nothing is read
back, so nothing here can break a promise, and nothing here may block or fail an epoch: a thread
writes only the newest positions, now and then, and a failure is reported and otherwise ignored.
"""

from __future__ import annotations

import json
import logging
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from beadline.files import join, open_files
from beadline.observe import Event, Listener, Tell
from beadline.shared.retry import Verdict, retry, running
from beadline.sources.kafka.settings import librdkafka_settings

logger = logging.getLogger("beadline")

GROUP_OPTION = "beadline.group"  # an option of the source, which Spark's connector does not know

WRITE_EVERY_S = 1.0
RETRY_EVERY_S = 10.0
TELL_EVERY_S = 60.0
REQUEST_TIMEOUT_S = 10.0
COORDINATOR_TIMEOUT_S = 3.0
FLUSH_TIMEOUT_S = 5.0

Offsets = Mapping[str, Mapping[int, int]]  # of each topic: of each partition


@dataclass(frozen=True)
class Follower:
    """One source whose positions go to a group: its place among the query's sources."""

    source: int
    group: str
    options: Mapping[str, str] = field(repr=False)  # may hold a secret


def followers(sources: Sequence[Mapping[str, str]]) -> list[Follower]:
    """Return the sources that ask for it, given the options of every source of the query."""
    return [
        Follower(number, options[GROUP_OPTION], options)
        for number, options in enumerate(sources)
        if options.get(GROUP_OPTION)
    ]


class Positions:
    """What one running query writes to consumer groups."""

    def __init__(self, sources: Sequence[Mapping[str, str]], checkpoint: str) -> None:
        """``sources`` are the options of every source, in the order of Spark's offset log."""
        self._followers = followers(sources)
        self._sources = len(sources)
        self._checkpoint = checkpoint
        self._tell: Tell = _quiet
        self._admins: dict[int, Any] = {}
        self._told_at_s = -TELL_EVERY_S
        self._changed = threading.Condition()
        self._newest: int | None = None
        self._closed_at_s: float | None = None
        self._thread = threading.Thread(target=self._run, name="beadline-positions", daemon=True)

    def listening(self, listener: Listener) -> Listener:
        """Return a listener that takes note of committed epochs, and passes everything on."""
        if not self._followers:
            return listener

        def both(event: Event) -> None:
            if event.kind == "committed" and event.epoch is not None:
                self.submit(event.epoch)
            listener(event)

        return both

    def start(self, tell: Tell, last_committed: int) -> None:
        """Start the thread; the epoch before a crash may not have been written."""
        if self._followers:
            self._tell = tell
            self._thread.start()
            self.submit(last_committed)

    def submit(self, epoch: int) -> None:
        """Have the positions of this epoch written, unless a newer one overtakes it."""
        if epoch >= 0:
            with self._changed:
                self._newest = epoch
                self._changed.notify()

    def close(self) -> None:
        """Write what is still to be written, and do not wait longer than a stop should take."""
        with self._changed:
            if self._closed_at_s is None:
                self._closed_at_s = time.monotonic()
            self._changed.notify()
        if self._thread.is_alive() and threading.current_thread() is not self._thread:
            left_s = self._closed_at_s + FLUSH_TIMEOUT_S - time.monotonic()
            self._thread.join(max(0.0, left_s))

    # -- on the thread

    def _run(self) -> None:
        pause_s = 0.0
        while True:
            epoch = self._next(pause_s)
            if epoch is None:
                return
            try:
                self._write(epoch)
                pause_s = WRITE_EVERY_S
            except Exception as error:  # noqa: BLE001 (reported; no position is worth a query)
                self._failed(epoch, error)
                pause_s = RETRY_EVERY_S

    def _next(self, pause_s: float) -> int | None:
        """Wait for an epoch to write, at least ``pause_s``; None when no more will come.

        Closing ends every wait, so that the last positions are written at once.
        """
        with self._changed:
            self._changed.wait_for(self._closed, pause_s)
            self._changed.wait_for(lambda: self._newest is not None or self._closed())
            epoch, self._newest = self._newest, None
            return epoch

    def _closed(self) -> bool:
        return self._closed_at_s is not None

    def _write(self, epoch: int) -> None:
        data = open_files(self._checkpoint).read(join(self._checkpoint, "offsets", str(epoch)))
        if data is None:
            raise ValueError(f"Spark's checkpoint has no offsets of epoch {epoch} any more")
        offsets = parse_offsets(data.decode(), self._sources)
        for follower in self._followers:
            found = offsets[follower.source]
            if found:
                _alter(self._admin(follower), follower.group, found)

    def _admin(self, follower: Follower) -> Any:
        """One client per source: two sources may be two clusters."""
        admin = self._admins.get(follower.source)
        if admin is None:
            from confluent_kafka.admin import AdminClient

            # Silent: a broker that is down would be logged about all the time; it is reported once.
            silent = {"log_level": "0", "log.connection.close": "false"}
            admin = AdminClient({**librdkafka_settings(follower.options), **silent})
            self._admins[follower.source] = admin
        return admin

    def _failed(self, epoch: int, error: Exception) -> None:
        """Report it at most once a minute, and try again, unless something newer came."""
        with self._changed:
            if self._newest is None and not self._closed():
                self._newest = epoch
        now_s = time.monotonic()
        if now_s - self._told_at_s < TELL_EVERY_S:
            return
        self._told_at_s = now_s
        groups = ", ".join(sorted({follower.group for follower in self._followers}))
        reason = f"{type(error).__name__}: {error}"
        logger.warning(
            "positions of epoch %s were not written to consumer group %s, so lag tools see old "
            "ones; rows and the query are not touched: %s",
            epoch, groups, reason,
        )  # fmt: skip
        self._tell("positions failed", epoch, groups=groups, error=reason)


def parse_offsets(text: str, sources: int) -> list[Offsets]:
    """Return the end offsets of each source in a file of Spark's offset log; none for other kinds.

    Sources are distinguished by their order alone, so their number must be the expected one.
    """
    version, _, *lines = text.splitlines()
    if version != "v1":
        raise ValueError(f"Spark's offset log is of version {version!r}, and only v1 is known")
    if len(lines) != sources:
        raise ValueError(f"Spark's offset log has {len(lines)} sources, and the plan {sources}")
    return [_offsets(line) for line in lines]


def _offsets(line: str) -> Offsets:
    """A file source has offsets of another form, and "-" is a source that has none yet."""
    try:
        found = json.loads(line)
        return {
            topic: {int(number): int(offset) for number, offset in partitions.items()}
            for topic, partitions in found.items()
        }
    except (ValueError, AttributeError):
        return {}


def _alter(admin: Any, group: str, offsets: Offsets) -> None:
    """Write positions; a group's coordinator that has only just been elected is asked again."""
    from confluent_kafka import KafkaError, KafkaException

    passing = (
        KafkaError.COORDINATOR_LOAD_IN_PROGRESS,
        KafkaError.COORDINATOR_NOT_AVAILABLE,
        KafkaError.NOT_COORDINATOR,
    )

    def judge(error: Exception) -> Verdict:
        busy = isinstance(error, KafkaException) and error.args[0].code() in passing
        return Verdict.BUSY if busy else Verdict.FINAL

    retry(lambda: _request(admin, group, offsets), judge, running(COORDINATOR_TIMEOUT_S))


def _request(admin: Any, group: str, offsets: Offsets) -> None:
    from confluent_kafka import ConsumerGroupTopicPartitions, KafkaException, TopicPartition

    positions = [
        TopicPartition(topic, number, offset)
        for topic, partitions in offsets.items()
        for number, offset in partitions.items()
    ]
    request = ConsumerGroupTopicPartitions(group, positions)
    answers = admin.alter_consumer_group_offsets([request], request_timeout=REQUEST_TIMEOUT_S)
    answer = answers[group].result(timeout=REQUEST_TIMEOUT_S + 1)
    for position in answer.topic_partitions:
        if position.error is not None:
            raise KafkaException(position.error)


def _quiet(kind: str, epoch: int | None = None, **details: Any) -> None:
    """Do nothing: the query has not set its listener yet."""
