"""Sources of the embedded default: what they read, and what they refuse."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from beadline import exactly_once, sources
from beadline.errors import UsageError
from beadline.jobs.loading import build_stream, load_job, open_job
from beadline.points import hooked
from beadline.sinks import MemorySink
from beadline.spark.query import Query
from tests.spark.jobs import SCHEMA, Died, die_at, write_input

ROOT = Path(__file__).parents[2]


def test_files_each_epoch_bounded(spark: SparkSession, tmp_path: Path) -> None:
    expected = write_input(tmp_path / "in", files=3)
    MemorySink.clear("sources-files")
    frame = sources.files(
        spark, str(tmp_path / "in"), format="json", schema=SCHEMA, max_files_per_epoch=2
    )
    epochs: list[int | None] = []
    query = exactly_once(frame, "job").to(MemorySink("sources-files")).start(
        str(tmp_path / "checkpoint"),
        available_now=True,
        listener=lambda event: epochs.append(event.epoch) if event.kind == "committed" else None,
    )  # fmt: skip
    assert query.awaitTermination(120)
    assert sorted(row["id"] for row in MemorySink.rows("sources-files")) == expected
    assert epochs == [0, 1]


def test_rate_over_a_death(spark: SparkSession, tmp_path: Path) -> None:
    MemorySink.clear("sources-rate")

    def start() -> Query:
        frame = sources.rate(spark, rows_per_second=1000, partitions=2)
        stream = exactly_once(frame, "job").to(MemorySink("sources-rate"))
        return stream.start(str(tmp_path / "checkpoint"))

    with hooked(die_at("decide.before", 3)):
        query = start()
        with pytest.raises(Died):
            query.awaitTermination(60)
        query.stop()
    before = len(MemorySink.rows("sources-rate"))
    query = start()
    while len(MemorySink.rows("sources-rate")) < before + 1000:
        assert not query.awaitTermination(0.1)
    query.stop()
    values = sorted(row["value"] for row in MemorySink.rows("sources-rate"))
    assert values == list(range(len(values)))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"format": "xml", "schema": SCHEMA}, "is not one of parquet"),
        ({"format": "json"}, "give schema="),
        ({"schema": SCHEMA, "max_files_per_epoch": 0}, "at least 1, not 0"),
        ({"schema": SCHEMA, "ignoreMissingFiles": True}, "leave files out"),
        ({"schema": SCHEMA, "maxFilesPerTriger": 1}, "Did you mean 'maxFilesPerTrigger'"),
    ],
)
def test_files_refuses(spark: SparkSession, arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        sources.files(spark, "somewhere", **arguments)


def test_rate_refuses(spark: SparkSession) -> None:
    with pytest.raises(UsageError, match="at least 1, not 0"):
        sources.rate(spark, rows_per_second=0)
    with pytest.raises(UsageError, match="at least 1, not 0"):
        sources.rate(spark, partitions=0)


def test_the_job_file_of_the_docs(spark: SparkSession, tmp_path: Path) -> None:
    text = (ROOT / "docs" / "cli.md").read_text("utf-8")
    (code,) = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
    (tmp_path / "job.py").write_text(code)
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "a.json").write_text('{"id": 1, "total": 5}\n')
    job = load_job(open_job(tmp_path / "job.py"))
    assert job.checkpoint == str(tmp_path / "checkpoint")
    query = build_stream(job, spark).start(job.checkpoint, available_now=True)
    assert query.awaitTermination(120)
    assert spark.read.parquet(str(tmp_path / "out")).collect() == [(1, 5)]
