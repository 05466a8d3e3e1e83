"""Spark's own windows: what they leave out is counted, and their input is reported."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession

from beadline import exactly_once
from beadline.event_time import count, windowed
from beadline.observe import Event
from beadline.sinks import MemorySink


def test_rows_without_a_time_are_counted_and_the_input_is_reported(
    spark: SparkSession, tmp_path: Path
) -> None:
    (tmp_path / "in").mkdir()
    rows = [{"ts": "2026-01-01T12:01:00Z"}, {"ts": None}, {"ts": None}]
    (tmp_path / "in" / "0.json").write_text("\n".join(map(json.dumps, rows)))
    frame = spark.readStream.schema("ts timestamp").json(str(tmp_path / "in"))
    counts = windowed(frame, "ts", size="1 minute", watermark="1 minute").agg(n=count())
    told: list[Event] = []
    query = (
        exactly_once(counts, "job")
        .to(MemorySink(f"native {tmp_path}"))
        .start(str(tmp_path / "checkpoint"), available_now=True, listener=told.append)
    )
    assert query.awaitTermination(120)
    marks: list[dict[str, Any]] = [one.details for one in told if one.kind == "watermark"]
    assert sum(one["late_rows"] for one in marks) == 2
    (seen,) = marks[0]["inputs"].values()
    assert (seen["rows"], seen["idle"]) == (3, False)
    assert seen["newest_ms"] - seen["watermark_ms"] == 60_000
