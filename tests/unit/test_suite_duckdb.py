"""The conformance suite on the sink that docs/write-a-sink.md leads to."""

from __future__ import annotations

import itertools
from collections.abc import Collection
from contextlib import AbstractContextManager
from pathlib import Path

import duckdb
import pyarrow as pa
import pytest

from beadline.sink import AnySink
from beadline.testing.suite import *  # noqa: F403
from beadline.testing.suite import Row, SinkHarness, unmounted
from examples.duckdb_sink import DuckDbSink


class DuckDbHarness(SinkHarness):
    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.names = (folder / f"shop{number}.db" for number in itertools.count())

    def fresh(self, schema: pa.Schema) -> AnySink:
        return DuckDbSink(str(next(self.names)), 'the "orders"')

    def visible(self, sink: AnySink) -> list[Row]:
        assert isinstance(sink, DuckDbSink)
        with duckdb.connect(sink.path) as db:
            if not db.execute(
                "FROM duckdb_tables() WHERE table_name = 'the \"orders\"'"
            ).fetchall():
                return []
            rows: list[Row] = db.sql('FROM "the ""orders"""').to_arrow_table().to_pylist()
        return rows

    def leftovers(self, sink: AnySink) -> Collection[str]:
        assert isinstance(sink, DuckDbSink)
        return [path.name for path in Path(sink.staging_folder).glob("*")]

    def unreachable(self, sink: AnySink) -> AbstractContextManager[AnySink]:
        return unmounted(self.folder, sink)


@pytest.fixture
def harness(tmp_path: Path) -> SinkHarness:
    return DuckDbHarness(tmp_path)
