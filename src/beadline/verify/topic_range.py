"""Kafka as a source: what its topics hold now, copied into scratch topics.

Key, value, headers, partition and time of every record are kept; offsets start again at 0. A job
that starts at the latest offset would see nothing, so it is given everything from the beginning.
"""

from __future__ import annotations

import json
import math
import re
from contextlib import closing, suppress
from typing import TYPE_CHECKING, Any

from beadline.errors import UsageError
from beadline.sources.kafka.positions import GROUP_OPTION
from beadline.sources.kafka.settings import librdkafka_settings
from beadline.verify import scratch_kafka as kafka
from beadline.verify.source_range import RangeLimits, SourceRange, key_of

if TYPE_CHECKING:
    from beadline.guarantee.sources import SourceFacts

_COPY_TIMEOUT_S = 120.0
_FLUSH_TIMEOUT_S = 60.0
_QUEUE_FULL_PAUSE_S = 0.1
# The group too: positions in a copy must not affect monitoring of the real topic's lag.
_DROPPED = (
    "subscribe",
    "subscribepattern",
    "assign",
    "startingoffsets",
    "maxoffsetspertrigger",
    GROUP_OPTION,
)
Start = dict[tuple[str, int], int]


def fix_topics(seen: SourceFacts, tag: str, limits: RangeLimits) -> SourceRange:
    """Copy the range of every topic of a source, once."""
    options = dict(seen.options)
    settings: dict[str, Any] = {**librdkafka_settings(options), "log_level": 2}
    isolation = options.get("kafka.isolation.level", "read_uncommitted")
    starts = _starts(settings, options)
    counts: dict[str, int] = {}
    for topic, partition in starts:
        counts[topic] = max(counts.get(topic, 0), partition + 1)
    scratch = tuple(kafka.scratch_topic(topic, tag) for topic in counts)
    try:
        for topic, count in counts.items():
            kafka.create(settings, kafka.scratch_topic(topic, tag), count)
        copied = _copy(settings, isolation, starts, tag, limits.records)
        if not copied:
            raise UsageError(f"{seen.part} holds no records: there is nothing to verify.")
    except BaseException:
        with suppress(Exception):  # nothing else removes them yet
            kafka.delete(settings, *scratch)
        raise
    per_epoch = math.ceil(copied / limits.epochs)
    reader = reader_options(options, scratch, per_epoch)
    said = f"{copied:,} records of {', '.join(counts)}, some {per_epoch:,} an epoch"
    return SourceRange(key_of(seen), None, reader, said, scratch, tag, settings)


def reader_options(
    options: dict[str, str], topics: tuple[str, ...], per_epoch: int
) -> dict[str, str]:
    """The options of Spark's reader of the copies: the job's own, except place and start."""
    kept = {key: value for key, value in options.items() if key not in _DROPPED}
    return {
        **kept,
        "subscribe": ",".join(topics),
        "startingoffsets": "earliest",
        "maxoffsetspertrigger": str(per_epoch),
    }


def remove(fixed: SourceRange) -> None:
    """Delete the scratch topics."""
    if fixed.topics:
        kafka.delete(fixed.client, *fixed.topics)


def _starts(settings: dict[str, Any], options: dict[str, str]) -> Start:
    """Where the job would begin: an offset for each partition."""
    from confluent_kafka import OFFSET_BEGINNING
    from confluent_kafka.admin import AdminClient  # type: ignore[attr-defined, unused-ignore]

    found: dict[str, list[int]]
    if "assign" in options:
        found = json.loads(options["assign"])
    elif "subscribepattern" in options:
        listed = AdminClient(settings).list_topics(timeout=kafka.CALL_TIMEOUT_S).topics
        pattern = re.compile(options["subscribepattern"])
        found = {name: sorted(each.partitions) for name, each in listed.items()
                 if pattern.fullmatch(name)}  # fmt: skip
    else:
        names = [name.strip() for name in options["subscribe"].split(",")]
        found = {name: kafka.partitions(settings, name) for name in names}
    text = options.get("startingoffsets", "latest")
    given = json.loads(text) if text.startswith("{") else {}
    return {
        (topic, partition): _offset(given.get(topic, {}).get(str(partition), OFFSET_BEGINNING))
        for topic, parts in found.items()
        for partition in parts
    }


def _offset(given: int) -> int:
    """Spark's -2 is the beginning, and so is librdkafka's; its -1, the latest, would be empty."""
    from confluent_kafka import OFFSET_BEGINNING

    return given if given >= 0 else OFFSET_BEGINNING


def _copy(
    settings: dict[str, Any], isolation: str, starts: Start, tag: str, records_max: int
) -> int:
    """Produce what is there into the scratch topics; return how many records."""
    from confluent_kafka import Producer

    each_max = math.ceil(records_max / len(starts)) if records_max else 0
    refused: list[str] = []

    def delivered(error: Any, message: Any) -> None:
        if error is not None:
            refused.append(f"{message.topic()}: {error.str()}")

    producer: Any = Producer({**settings, "enable.idempotence": True, "on_delivery": delivered})
    copied = 0
    with closing(kafka.consumer(settings, isolation)) as reader:
        for place, offset in starts.items():
            count = 0
            for message in kafka.messages(reader, {place: offset}, _COPY_TIMEOUT_S):
                _produce(producer, kafka.scratch_topic(place[0], tag), place[1], message)
                count += 1
                if each_max and count >= each_max:
                    break
            copied += count
    check_taken(producer.flush(_FLUSH_TIMEOUT_S), refused)
    return copied


def check_taken(waiting: int, refused: list[str]) -> None:
    """Refuse an incomplete copy: every run of the job would lack the same rows."""
    if refused:
        raise UsageError(
            f"Kafka did not take {len(refused):,} records of the copy. The first is of {refused[0]}"
        )
    if waiting:
        raise TimeoutError(f"{waiting} records of the copy were not taken by Kafka")


def _produce(producer: Any, topic: str, partition: int, message: Any) -> None:
    while True:
        try:
            producer.produce(
                topic,
                message.value(),
                message.key(),
                partition,
                timestamp=max(0, message.timestamp()[1]),
                headers=message.headers(),
            )
        except BufferError:  # its queue is full; this is how it is emptied
            producer.poll(_QUEUE_FULL_PAUSE_S)
        else:
            producer.poll(0)
            return
