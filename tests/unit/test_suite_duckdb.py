"""The conformance suite on the DuckDB sink."""

import itertools
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pytest

from beadline.testing.suite import *  # noqa: F403 (every case, as tests)
from beadline.testing.suite import Row, SinkHarness, unmounted
from examples.duckdb_sink import DuckDbSink


class DuckDbHarness(SinkHarness):
    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.names = (str(folder / f"shop{number}.db") for number in itertools.count())

    def fresh(self, schema: pa.Schema) -> DuckDbSink:
        """A sink on a target that nobody has used."""
        return DuckDbSink(next(self.names), "orders")

    def visible(self, sink: Any) -> list[Row]:
        """What any reader sees, as dictionaries."""
        with duckdb.connect(sink.path) as db:
            made = ("orders",) in db.sql("SHOW TABLES").fetchall()
            rows: list[Row] = db.sql("FROM orders").to_arrow_table().to_pylist() if made else []
        return rows

    def leftovers(self, sink: Any) -> list[str]:
        """What prepared parts take up outside, looked at by hand."""
        return [path.name for path in Path(sink.staging_folder).glob("*")]

    def unreachable(self, sink: Any) -> Any:
        """The target cut off for a while: here, its disk is not mounted."""
        return unmounted(self.folder, sink)

    @contextmanager
    def alter(self, sink: Any) -> Iterator[None]:
        """A column of another type for a while, which would cast the values."""
        with duckdb.connect(sink.path) as db:
            db.execute("ALTER TABLE orders ALTER amount TYPE INTEGER")
        yield
        with duckdb.connect(sink.path) as db:
            db.execute("ALTER TABLE orders ALTER amount TYPE DOUBLE")


@pytest.fixture
def harness(tmp_path: Path) -> SinkHarness:
    return DuckDbHarness(tmp_path)
