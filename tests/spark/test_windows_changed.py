"""A job whose windows are divided otherwise than those in its checkpoint."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from beadline import exactly_once
from beadline.errors import StateChanged
from beadline.event_time import sum_of, windowed
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
