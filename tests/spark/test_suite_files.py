"""The conformance suite on ``FileSink``, read as any program would read a folder of parquet."""

from __future__ import annotations

import uuid
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from beadline.sink import AnySink
from beadline.sinks import FileSink
from beadline.testing.suite import *  # noqa: F403
from beadline.testing.suite import Row, SinkHarness
from beadline.testing.suite.harness import unmounted

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


class FilesHarness(SinkHarness):
    """Targets in one folder; every file below a target counts, hidden or not."""

    def __init__(self, folder: Path, spark: SparkSession) -> None:
        self.folder = folder
        self.spark = spark

    def fresh(self, schema: pa.Schema) -> AnySink:
        return FileSink(str(self.folder / uuid.uuid4().hex))

    def visible(self, sink: AnySink) -> list[Row]:
        assert isinstance(sink, FileSink)
        paths = (path for path in Path(sink.path).rglob("*") if path.is_file())
        return [row for path in paths for row in _rows(pq.ParquetFile(path).read())]

    def leftovers(self, sink: AnySink) -> list[str]:
        return sorted(path.name for path in self._pending(sink).glob("*"))

    def plant_stranger(self, sink: AnySink) -> str:
        stranger = self._pending(sink) / "beadline~notes"
        stranger.mkdir(parents=True)
        return stranger.name

    def unreachable(self, sink: AnySink) -> AbstractContextManager[AnySink]:
        return unmounted(self.folder, sink)

    def _pending(self, sink: AnySink) -> Path:
        assert isinstance(sink, FileSink)
        return Path(sink.pending.removeprefix("file:"))


def _rows(table: pa.Table) -> list[Row]:
    """Bytes that are not UTF-8 are read as Spark reads them: as they are."""
    columns = [
        [None if value is None else value.decode(errors="surrogateescape") for value in texts]
        if pa.types.is_string(column.type) and (texts := column.cast(pa.binary()).to_pylist())
        else column.to_pylist()
        for column in table.columns
    ]
    return [dict(zip(table.column_names, row, strict=True)) for row in zip(*columns, strict=True)]


@pytest.fixture
def harness(tmp_path: Path, spark: SparkSession) -> SinkHarness:
    return FilesHarness(tmp_path, spark)
