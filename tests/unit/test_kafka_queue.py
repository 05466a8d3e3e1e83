"""KafkaSink's queue: the largest record that may be sent has room in it."""

from __future__ import annotations

import pytest

from beadline.errors import BadSink
from beadline.sinks.kafka import options

QUEUE = "queue.buffering.max.kbytes"


@pytest.mark.parametrize(
    ("given", "kbytes"),
    [
        ({}, 32_768),
        ({"message.max.bytes": 100_000_000}, 97_657),
        ({"message.max.bytes": "100000000", QUEUE: 200_000}, 200_000),
        ({QUEUE: 1000}, 1000),
    ],
)
def test_the_queue_takes_the_largest_record(given: dict[str, object], kbytes: int) -> None:
    options.check(given)
    made = options.producer("broker:9092", given)
    assert made[QUEUE] == kbytes
    assert made[QUEUE] * 1024 > int(str(given.get("message.max.bytes", 0)))


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"message.max.bytes": 40_000_000, QUEUE: 32_768}, "no room for a record of message.max"),
        ({QUEUE: "a lot"}, "must be a whole number, not 'a lot'"),
        ({"message.max.bytes": -1}, "must be a whole number"),
    ],
)
def test_a_queue_that_is_too_small_is_refused(given: dict[str, object], says: str) -> None:
    with pytest.raises(BadSink, match=says):
        options.check(given)
