"""Which inputs are idle, and to what time they are brought on: no Spark, and no clock but ours."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from beadline.event_time.idle import InputClocks, InputSeen
from beadline.event_time.watermarks import inputs_seen
from beadline.sources import ticker
from beadline.sources.kafka.positions import parse_offsets
from beadline.spark.source_files import PlannedFiles

MINUTE_MS = 60_000


def orders(newest_ms: int | None, rows: int = 1) -> InputSeen:
    """An input that is never idle, with rows up to a minute late."""
    return InputSeen(rows if newest_ms is not None else 0, newest_ms, MINUTE_MS)


def returns(newest_ms: int | None) -> InputSeen:
    """An input that is idle after ten seconds, with rows up to two minutes late."""
    return InputSeen(int(newest_ms is not None), newest_ms, 2 * MINUTE_MS, 10_000)


def test_an_input_that_was_never_there_is_brought_on_to_the_others() -> None:
    clocks = InputClocks(started_s=0)
    clocks.note({"orders": orders(600_000), "returns": returns(None)}, 1)
    assert clocks.ticks(9.9) == {}
    # To where its watermark is that of the others: its own delay is on top.
    assert clocks.ticks(10) == {"returns": 600_000 - MINUTE_MS + 2 * MINUTE_MS}
    assert clocks.ticks(11) == {}, "told once"
    assert clocks.inputs["returns"].watermark_ms == clocks.inputs["orders"].watermark_ms


def test_it_follows_the_others_until_it_brings_rows_again() -> None:
    clocks = InputClocks(started_s=0)
    clocks.note({"orders": orders(600_000), "returns": returns(600_000)}, 1)
    clocks.note({"orders": orders(900_000), "returns": returns(None)}, 12)
    assert clocks.ticks(12) == {"returns": 960_000}
    clocks.note({"orders": orders(1_000_000), "returns": returns(None)}, 13)
    assert clocks.ticks(13) == {"returns": 1_060_000}
    clocks.note({"orders": orders(1_100_000), "returns": returns(700_000)}, 14)
    assert clocks.ticks(23) == {}, "it is not idle"
    assert clocks.ticks(24) == {"returns": 1_160_000}


def test_nothing_is_brought_on_while_all_are_idle() -> None:
    clocks = InputClocks(started_s=0)
    clocks.note({"orders": returns(600_000), "returns": returns(None)}, 5)
    assert clocks.ticks(10) == {"returns": 600_000}
    clocks.note({"orders": returns(None), "returns": returns(None)}, 14)
    assert clocks.ticks(100) == {}


def test_an_input_without_idle_holds_the_others_up() -> None:
    clocks = InputClocks(started_s=0)
    seen = {"a": orders(None), "b": orders(900_000), "c": returns(None)}
    clocks.note(seen, 100)
    assert clocks.ticks(1000) == {}
    clocks.note({**seen, "a": orders(300_000)}, 1000)
    assert clocks.ticks(1000) == {"c": 360_000}, "the smallest of the others"


def test_an_input_that_is_ahead_is_left_where_it_is() -> None:
    clocks = InputClocks(started_s=0)
    clocks.note({"orders": orders(600_000), "returns": returns(900_000)}, 1)
    assert clocks.ticks(60) == {}


def test_one_input_alone() -> None:
    clocks = InputClocks(started_s=0)
    clocks.note({"returns": returns(600_000)}, 1)
    assert clocks.ticks(60) == {}


def test_rows_without_a_time_are_rows() -> None:
    """An input that brings them is not idle, and its watermark stays where it was."""
    clocks = InputClocks(started_s=0)
    clocks.note({"orders": orders(600_000), "returns": InputSeen(3, None, 0, 10_000)}, 9)
    assert clocks.ticks(12) == {}
    assert clocks.inputs["returns"].watermark_ms is None
    assert clocks.ticks(19) == {"returns": 540_000}


def test_what_was_observed() -> None:
    """As Spark's progress has it; what else is observed is none of ours."""
    found = inputs_seen(
        {
            "beadline.input.a": {"rows": 2, "newest_ms": 5, "delay_ms": 7, "idle_ms": -1},
            "beadline.input.b": {"rows": 0, "newest_ms": None, "delay_ms": 0, "idle_ms": 9},
            "mine": {"rows": 3},
        }
    )
    assert found == {"a": InputSeen(2, 5, 7), "b": InputSeen(0, None, 0, 9)}


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(ticker, "_folder", lambda: tmp_path)
    return tmp_path


def test_a_ticker_offers_what_was_published_for_it(folder: Path) -> None:
    reader = ticker.TickReader("returns", str(folder))
    start = reader.initialOffset()
    assert reader.latestOffset(start, None) == start
    name, key = ticker.ticker_keys(start) or ("", "")
    assert name == "returns"
    ticker.publish_tick(key, 7_000)
    ticker.publish_tick("of another query", 9_000)
    end = reader.latestOffset(start, None)
    assert [tick.tick_ms for tick in reader.partitions(start, end)] == [7_000]
    (batch,) = reader.read(reader.partitions(start, end)[0])
    assert batch.column(0)[0].as_py().timestamp() == 7.0
    assert reader.partitions(end, end) == []


def test_a_ticker_goes_on_where_it_stood(folder: Path) -> None:
    """A new process has another key, until it is told its offset."""
    before = ticker.TickReader("returns", str(folder)).initialOffset() | {"tick_ms": 7_000}
    reader = ticker.TickReader("returns", str(folder))
    assert reader.latestOffset(before, None) == before
    ticker.publish_tick(before["ticker"], 6_000)
    assert reader.latestOffset(before, None) == before, "time does not go back"
    ticker.publish_tick(before["ticker"], 8_000)
    reader.prepareForTriggerAvailableNow()
    assert reader.latestOffset(before, None) == before, "it ends with what is there"


def test_other_offsets_are_none_of_a_tickers() -> None:
    for offset in (None, 3, {"logOffset": 3}, {"orders": {"0": 5}}):
        assert ticker.ticker_keys(offset) is None


def test_the_other_readers_of_the_offset_log_pass_a_ticker_over(tmp_path: Path) -> None:
    """Kafka's positions and the check of source files go by the order of the sources."""
    line = json.dumps(ticker.TickReader("returns", "").initialOffset() | {"tick_ms": 7_000})
    lines = ["v1", "{}", '{"orders":{"0":5}}', line, '{"logOffset":3}']
    assert parse_offsets("\n".join(lines), 3) == [{"orders": {0: 5}}, {}, {}]
    (tmp_path / "offsets").mkdir()
    (tmp_path / "offsets" / "0").write_text("\n".join(lines))
    assert PlannedFiles(f"file:{tmp_path}", [0, 1, 2])._ends(0) == [-1, -1, 3]
