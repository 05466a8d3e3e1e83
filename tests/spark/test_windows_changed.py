"""A job whose windows are divided otherwise than those in its checkpoint."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession

from beadline import exactly_once
from beadline.errors import StateChanged
from beadline.event_time import count, sum_of, windowed
from beadline.event_time.windowed import WINDOW_KEY
from beadline.sinks import MemorySink
from tests.spark import jobs


def test_other_windows_are_refused_before_the_claim(spark: SparkSession, tmp_path: Path) -> None:
    jobs.write_input(tmp_path / "in", 1)
    frame = jobs.read(spark, tmp_path / "in").withColumnsRenamed({"k": "the key", "v": "a value"})

    def run(every_rows: int) -> None:
        sums = windowed(frame, by="the key", every_rows=every_rows).agg(n=sum_of("a value"))
        jobs.run(exactly_once(sums, "job").to(MemorySink(f"changed {tmp_path}")), tmp_path)

    run(100)
    with pytest.raises(StateChanged, match="at_every_rows_50_by_the_key_time_None"):
        run(50)
    run(100)


@pytest.mark.parametrize(
    ("first", "changed"),
    [
        ({"size": "10 minutes"}, {"size": "1 hour"}),
        ({"size": "10 minutes"}, {"size": "10 minutes", "offset": "1 minute"}),
        ({"size": "10 minutes", "slide": "5 minutes"}, {"size": "10 minutes"}),
        ({"session_gap": "1 minute"}, {"session_gap": "2 minutes"}),
    ],
)
def test_sparks_own_windows_are_not_continued_as_others(
    spark: SparkSession, tmp_path: Path, first: dict[str, Any], changed: dict[str, Any]
) -> None:
    """Both would fire under one start: an upsert would replace the right result by the other."""
    jobs.write_input(tmp_path / "in", 1)
    rows = jobs.read(spark, tmp_path / "in")
    frame = rows.selectExpr("k", "timestamp_seconds(v) AS ts", "timestamp_seconds(v) AS other")

    def run(time: str, shape: dict[str, Any]) -> DataFrame:
        made = windowed(frame, time, by="k", watermark="1 minute", **shape).agg(n=count())
        stream = exactly_once(made, "job").to(MemorySink(f"changed {tmp_path}"))
        jobs.run(stream, tmp_path)
        return made.frame

    plan = run("ts", first)._jdf.queryExecution().analyzed().toString()
    assert "TransformWithState" not in plan
    for time, shape in (("ts", changed), ("other", first)):
        with pytest.raises(StateChanged, match=WINDOW_KEY):
            run(time, shape)
    run("ts", first)
