"""Which topics are asked for, when, and what a broker that does not answer means."""

from __future__ import annotations

import time
from collections.abc import Collection
from pathlib import Path

import pytest

from beadline.errors import PrepareFailed, WrongCheckpoint
from beadline.sources.kafka import topics as source_topics
from beadline.sources.kafka.topics import SERVERS, SourceTopics, subscribed

pytest.importorskip("confluent_kafka")
NOBODY = "127.0.0.1:1"
OFFSETS = 'v1\n{"batchWatermarkMs":0}\n{"orders":{"0":5},"returns":{"0":7}}\n'


class Asked:
    """Notes what it is asked for, and answers with ids that count up."""

    def __init__(self) -> None:
        self.topics: list[list[str]] = []

    def ids(self, topics: Collection[str], timeout_s: float) -> dict[str, str]:
        self.topics.append(list(topics))
        return {topic: str(len(self.topics)) for topic in topics}

    def close(self) -> None:
        """Nothing is open."""


def made(folder: Path, asked: Asked | None = None, **options: str) -> SourceTopics:
    sources = [{SERVERS: NOBODY, "subscribe": "orders", **options}]
    topics = SourceTopics(sources, f"file:{folder}")
    if asked is not None:
        topics._askers[0] = asked
    return topics


def plan(folder: Path, epoch: int) -> None:
    (folder / "offsets").mkdir(exist_ok=True)
    (folder / "offsets" / str(epoch)).write_text(OFFSETS)


@pytest.mark.parametrize(
    ("options", "wanted"),
    [
        ({"subscribe": "b, a"}, ["a", "b"]),
        ({"assign": '{"c": [0, 1]}'}, ["c"]),
        ({"subscribePattern": "a.*"}, []),
    ],
)
def test_what_the_options_name(options: dict[str, str], wanted: list[str]) -> None:
    assert subscribed(options) == wanted


def test_what_an_epoch_reads_is_what_its_offsets_name(tmp_path: Path) -> None:
    asked = Asked()
    topics = made(tmp_path, asked, subscribe="returns, orders, added")
    assert len(topics.now()) == 3  # nothing was planned yet
    plan(tmp_path, 3)
    assert set(topics.now()) == {"Kafka topic 'orders'", "Kafka topic 'returns'"}
    topics.begin(3)
    assert topics.now() == {"Kafka topic 'orders'": "3", "Kafka topic 'returns'": "3"}
    assert asked.topics == [
        ["added", "orders", "returns"],
        ["orders", "returns"],
        ["orders", "returns"],
    ]
    topics.close()


def test_a_topic_that_was_read_must_be_named_still(tmp_path: Path) -> None:
    """Before anything is asked: Spark would plan an epoch without it, and fail ever after."""
    plan(tmp_path, 3)
    asked = Asked()
    lacks = r"has read Kafka topic 'returns', and is now to read 'orders', 'other' only.*written\.$"
    with pytest.raises(WrongCheckpoint, match=lacks):
        made(tmp_path, asked, subscribe="orders,other").now()
    assert asked.topics == []
    with pytest.raises(WrongCheckpoint, match="'orders', 'returns', and is now to read 'wrong'"):
        made(tmp_path, asked, subscribe="wrong").now()


@pytest.mark.parametrize(
    "options",
    [
        {"subscribe": "other, returns, orders"},
        {"subscribe": "", "assign": '{"orders": [0], "returns": [0]}'},
        {"subscribe": "", "subscribePattern": "o.*"},
    ],
)
def test_further_topics_and_patterns_are_no_mistake(
    tmp_path: Path, options: dict[str, str]
) -> None:
    plan(tmp_path, 3)
    topics = made(tmp_path, Asked(), **options)
    assert set(topics.now()) == {"Kafka topic 'orders'", "Kafka topic 'returns'"}


def test_the_source_that_left_a_topic_out_is_named(tmp_path: Path) -> None:
    (tmp_path / "offsets").mkdir()
    (tmp_path / "offsets" / "0").write_text('v1\n{}\n{"logOffset":0}\n{"orders":{"0":5}}\n')
    topics = SourceTopics([{}, {SERVERS: NOBODY, "subscribe": "returns"}], f"file:{tmp_path}")
    with pytest.raises(
        WrongCheckpoint, match="source 1 of the query has read Kafka topic 'orders'"
    ):
        topics.now()


def test_an_answer_counts_for_a_moment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A long epoch asks once more, when it has read everything."""
    asked = Asked()
    topics = made(tmp_path, asked)
    plan(tmp_path, 0)
    monkeypatch.setattr(source_topics, "FRESH_S", 600.0)
    topics.begin(0)
    for _ in range(2):
        assert topics.now()["Kafka topic 'orders'"] == "1"
    monkeypatch.setattr(source_topics, "FRESH_S", 0.0)
    assert topics.now()["Kafka topic 'orders'"] == "2"
    topics.close()


def test_two_sources_are_distinguished(tmp_path: Path) -> None:
    source = {SERVERS: NOBODY, "subscribe": "orders"}
    topics = SourceTopics([source, {}, {**source, SERVERS: "127.0.0.1:2"}], f"file:{tmp_path}")
    topics._askers.update({0: Asked(), 2: Asked()})
    assert set(topics.now()) == {
        "Kafka topic 'orders' (source 0)",
        "Kafka topic 'orders' (source 2)",
    }


def test_a_source_that_does_not_answer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A start continues, to settle what is open; nothing is decided before it was asked."""
    topics = made(tmp_path)
    began_s = time.monotonic()
    assert topics.now() == {}
    assert time.monotonic() - began_s < 10
    assert "will be before the next epoch is decided" in caplog.text
    monkeypatch.setattr(source_topics, "_TIMEOUT_S", 0.5)
    plan(tmp_path, 0)
    topics.begin(0)
    with pytest.raises(PrepareFailed, match=r"epoch 0: Kafka does not say.*") as said:
        topics.now()
    assert "decided" not in str(said.value), "the protocol says what it means"
    topics.close()


def test_a_query_without_kafka_asks_nothing(tmp_path: Path) -> None:
    topics = SourceTopics([{}, {"path": "x"}], f"file:{tmp_path}")
    topics.begin(0)
    assert topics.now() == {}
    topics.close()
