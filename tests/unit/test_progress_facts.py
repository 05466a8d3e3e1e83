"""What is made of Spark's progress: each input's watermark, and the rows that came too late."""

from __future__ import annotations

import json
from typing import Any

import pytest

from beadline.spark import progress_facts
from beadline.spark.progress_facts import WatermarkReader, late_rows


def report(**more: Any) -> dict[str, Any]:
    """One epoch's progress, as far as it is read."""
    return {"batchId": 3, "eventTime": {"watermark": "2026-01-01T10:00:00.500Z"}, **more}


def seen(rows: int, newest_ms: int | None, idle_ms: int = -1) -> dict[str, Any]:
    return {"rows": rows, "newest_ms": newest_ms, "delay_ms": 1000, "idle_ms": idle_ms}


def test_the_watermark_of_a_query_with_one_input() -> None:
    (told,) = WatermarkReader().read(report())
    assert told == ("watermark", {"watermark_ms": 1_767_261_600_500, "late_rows": 0})
    assert list(WatermarkReader().read({"batchId": 3, "eventTime": {}})) == []


def test_each_input_and_the_rows_that_were_late() -> None:
    metrics = {
        "beadline.input.orders": seen(5, 9_000),
        "beadline.input.returns": seen(0, None, idle_ms=10),
        "beadline.late_rows0": {"beadline.late_rows": 2},
        "beadline.late_rows1": {"beadline.late_rows": None},
    }
    operators = [{"numRowsDroppedByWatermark": 4}, {}]
    now_s = iter([0.0, 5.0])
    reader = WatermarkReader(lambda: next(now_s))
    (told,) = reader.read(report(observedMetrics=metrics, stateOperators=operators))
    assert told[1]["late_rows"] == 6
    assert told[1]["inputs"] == {
        "orders": {"rows": 5, "newest_ms": 9_000, "watermark_ms": 8_000, "idle": False},
        "returns": {"rows": 0, "newest_ms": None, "watermark_ms": None, "idle": True},
    }


def test_an_idle_input_is_brought_on(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its ticker is known by its offsets, in Spark's progress like any source's."""
    published: list[tuple[str, int]] = []
    monkeypatch.setattr(progress_facts, "publish_tick", lambda *one: published.append(one))
    now_s = 0.0
    reader = WatermarkReader(lambda: now_s)
    metrics = {
        "beadline.input.orders": seen(5, 9_000),
        "beadline.input.returns": seen(0, None, idle_ms=10_000),
    }
    sources = [
        {"endOffset": {"orders": {"0": 5}}},
        {"endOffset": '{"input": "returns", "ticker": "k", "tick_ms": 0}'},
        {"endOffset": None},
        {"endOffset": "-"},
    ]
    list(reader.read(report(observedMetrics=metrics, sources=sources)))
    reader.look()
    assert published == []
    now_s = 10.0
    list(reader.read(report(observedMetrics=metrics, sources=sources)))
    reader.look()
    reader.look()
    assert published == [("k", 9_000)]


class ProgressReport:
    """A report as Spark holds it."""

    def __init__(self, epoch: int, *, idle: bool = False) -> None:
        self.found = {"batchId": epoch, "durationMs": {} if idle else {"addBatch": 1}}

    def batchId(self) -> int:  # noqa: N802 (Spark's name)
        return int(str(self.found["batchId"]))

    def json(self) -> str:
        return json.dumps(self.found)


class Reporting:
    """Spark's query, as far as it reports."""

    def __init__(self, *reports: ProgressReport) -> None:
        self._jsq = self
        self.reports = reports

    def recentProgress(self) -> tuple[ProgressReport, ...]:  # noqa: N802 (Spark's name)
        return self.reports


def test_each_epoch_is_read_once() -> None:
    """Also one that Spark had reported before, to say that no rows had come for it yet."""
    query: Any = Reporting(ProgressReport(3), ProgressReport(4), ProgressReport(5, idle=True))
    assert [one["batchId"] for one in progress_facts.new_progress(query, 3)] == [4]
    query = Reporting(
        ProgressReport(3), ProgressReport(4), ProgressReport(5, idle=True), ProgressReport(5)
    )
    assert [one["batchId"] for one in progress_facts.new_progress(query, 4)] == [5]
    assert progress_facts.new_progress(query, 5) == []


def test_nothing_was_late() -> None:
    assert late_rows({}) == 0
    assert late_rows({"observedMetrics": None, "stateOperators": None}) == 0
