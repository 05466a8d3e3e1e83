"""Copies of sources: each source has its own, and finds it again; a copy is whole or refused."""

from __future__ import annotations

import pickle

import pytest

from beadline.errors import UsageError
from beadline.guarantee.sources import SourceFacts
from beadline.verify.source_range import SourceRange, found_again, key_of
from beadline.verify.topic_range import check_taken, reader_options


def topic(servers: str, **options: str) -> SourceFacts:
    told = {"subscribe": "orders", "kafka.bootstrap.servers": servers, **options}
    return SourceFacts("kafka", "orders", told)


def fixed(seen: SourceFacts, said: str) -> SourceRange:
    made = SourceRange(key_of(seen), None, dict(seen.options), said)
    return pickle.loads(pickle.dumps(made))  # type: ignore[no-any-return]


def test_one_name_in_two_clusters_is_two_sources() -> None:
    ranges = [fixed(topic("one:9092"), "one"), fixed(topic("two:9092"), "two")]
    assert found_again(ranges, topic("two:9092")).said == "two"
    assert found_again(ranges, topic("one:9092")).said == "one"
    with pytest.raises(UsageError, match="was not there"):
        found_again(ranges, topic("three:9092"))


def test_an_option_that_changes_with_the_clock_does_no_harm() -> None:
    ranges = [fixed(topic("one:9092", startingtimestamp="1"), "one")]
    assert found_again(ranges, topic("one:9092", startingtimestamp="2")).said == "one"
    with pytest.raises(UsageError, match="was not there"):
        found_again(ranges, SourceFacts("json", "/orders"))


def test_the_settings_of_a_source_are_not_printed() -> None:
    seen = topic("one:9092", **{"kafka.sasl.jaas.config": "hunter2"})
    assert "hunter2" not in repr(fixed(seen, "one"))


def test_positions_in_a_copy_are_not_committed_to_the_real_group() -> None:
    seen = topic("one:9092", **{"beadline.group": "lag", "failondataloss": "true"})
    told = reader_options(dict(seen.options), ("orders-v1",), 7)
    assert told == {
        "kafka.bootstrap.servers": "one:9092",
        "failondataloss": "true",
        "subscribe": "orders-v1",
        "startingoffsets": "earliest",
        "maxoffsetspertrigger": "7",
    }


def test_a_copy_is_whole_or_refused() -> None:
    check_taken(0, [])
    with pytest.raises(UsageError, match=r"2 records of the copy.*orders-v1: too large"):
        check_taken(1, ["orders-v1: too large", "orders-v1: too large"])
    with pytest.raises(TimeoutError, match="3 records"):
        check_taken(3, [])
