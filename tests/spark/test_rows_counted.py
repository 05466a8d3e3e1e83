"""Nothing is decided that is not all there, or that no commit could take (rules 23 and 26)."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from beadline import exactly_once
from beadline.errors import PrepareFailed
from beadline.sink import Part
from beadline.sinks import FileSink, SqliteSink
from beadline.sinks.files.sink import PendingFiles
from tests.spark import jobs
from tests.spark.test_file_sink import files_in

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


class LosesARow(FileSink):
    """Behind the count of the rows that pass, as Spark's csv writer does with empty lines."""

    def prepare(self, frame: DataFrame, part: Part) -> PendingFiles | None:
        return super().prepare(frame.where("id <> 3"), part)


def test_rows_that_do_not_arrive_in_the_files(spark: SparkSession, tmp_path: Path) -> None:
    jobs.write_input(tmp_path / "in", 1)
    frame = jobs.read(spark, tmp_path / "in")
    sink = LosesARow(str(tmp_path / "out"))
    for _ in range(2):
        with pytest.raises(PrepareFailed, match="was given 10 rows, and the outside system has 9"):
            jobs.run(exactly_once(frame, "job").to(sink), tmp_path)
        assert not files_in(tmp_path / "out")
    jobs.run(exactly_once(frame, "job").to(FileSink(str(tmp_path / "out"))), tmp_path)
    assert spark.read.parquet(str(tmp_path / "out")).count() == 10


def test_one_byte_that_is_not_utf8(spark: SparkSession, tmp_path: Path) -> None:
    """It goes to the dead-letter sink, or the epoch is refused; it never blocks what is decided."""
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "a.txt").write_bytes(b"good\ncaf\xe9\n")
    frame = spark.readStream.text(str(tmp_path / "in"))
    rows = SqliteSink(tmp_path / "out.db", "t")
    with pytest.raises(PrepareFailed, match=r"1 row\(s\).*'value' holds bytes that are not UTF-8"):
        jobs.run(exactly_once(frame, "job").to(rows), tmp_path)
    refused = SqliteSink(tmp_path / "out.db", "refused")
    jobs.run(exactly_once(frame, "job").to(rows, dead_letter=refused), tmp_path)
    assert jobs.table(tmp_path, "value") == ["good"]
    assert jobs.table(tmp_path, '"row"', "refused") == ['{"value": "caf\ufffd"}']
    text = FileSink(str(tmp_path / "json"), "json")
    with pytest.raises(PrepareFailed, match=r"1 row\(s\) cannot be kept as json"):
        jobs.run(exactly_once(frame, "other").to(text), tmp_path / "other")
