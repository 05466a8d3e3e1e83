"""The conformance suite on ``SqliteSink`` in its three modes."""

from __future__ import annotations

import itertools
import sqlite3
from collections.abc import Collection, Iterator
from contextlib import AbstractContextManager, closing, contextmanager
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from beadline.sink import AnySink
from beadline.sinks import SqliteSink
from beadline.testing.suite import *  # noqa: F403
from beadline.testing.suite import Row, SinkHarness
from beadline.testing.suite.harness import unmounted
from tests.added_rows import AddedRows


class AppendHarness(SinkHarness):
    settings: dict[str, Any] = {}  # noqa: RUF012 (never changed)

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.names = (folder / f"target{number}.db" for number in itertools.count())

    def fresh(self, schema: pa.Schema) -> AnySink:
        return SqliteSink(next(self.names), 'the "rows"', **self.settings)

    def visible(self, sink: AnySink) -> list[Row]:
        with closing(sqlite3.connect(path_of(sink))) as database:
            database.row_factory = sqlite3.Row
            made = database.execute("SELECT 1 FROM sqlite_master WHERE name = 'the \"rows\"'")
            found = database.execute('SELECT * FROM "the ""rows"""') if made.fetchone() else ()
            return [dict(row) for row in found]

    def leftovers(self, sink: AnySink) -> Collection[str]:
        return [path.name for path in staging_of(sink).rglob("*") if path.is_file()]

    def unreachable(self, sink: AnySink) -> AbstractContextManager[AnySink]:
        return unmounted(self.folder, sink)

    def alter(self, sink: AnySink) -> AbstractContextManager[None] | None:
        return self._altered(sink)

    @contextmanager
    def _altered(self, sink: AnySink) -> Iterator[None]:
        """SQLite alters no column: the table is made again, and its rows are copied."""
        made = ()
        with closing(sqlite3.connect(path_of(sink))) as database:
            (made,) = database.execute("SELECT sql FROM sqlite_master WHERE name = 'the \"rows\"'")
        self._remake(sink, made[0].replace("REAL", "TEXT"))
        yield
        self._remake(sink, made[0])

    def _remake(self, sink: AnySink, create: str) -> None:
        with closing(sqlite3.connect(path_of(sink))) as database:
            database.executescript(
                'ALTER TABLE "the ""rows""" RENAME TO before;'
                f'{create}; INSERT INTO "the ""rows""" SELECT * FROM before; DROP TABLE before'
            )

    def plant_stranger(self, sink: AnySink) -> str | None:
        assert isinstance(sink, SqliteSink)
        folder = Path(sink.staging_area.folder.removeprefix("file:"))
        folder.mkdir(parents=True)
        (folder / "notes.txt").write_text("mine")
        return "notes.txt"


class UpsertHarness(AppendHarness):
    settings = {"mode": "upsert", "key": "id"}  # noqa: RUF012

    def expected(self, rows: list[Row]) -> list[Row]:
        return list({row["id"]: row for row in rows}.values())


class AddHarness(AddedRows, AppendHarness):
    settings = {"mode": "add", "key": ("id", "word")}  # noqa: RUF012


def path_of(sink: AnySink) -> Path:
    assert isinstance(sink, SqliteSink)
    return Path(sink.path)


def staging_of(sink: AnySink) -> Path:
    path = path_of(sink)
    return path.with_name(f".{path.name}.beadline")


@pytest.fixture(params=[AppendHarness, UpsertHarness, AddHarness])
def harness(request: pytest.FixtureRequest, tmp_path: Path) -> SinkHarness:
    made: SinkHarness = request.param(tmp_path)
    return made
