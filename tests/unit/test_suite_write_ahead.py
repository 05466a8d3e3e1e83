"""The conformance suite on ``WriteAheadSink``, with an endpoint that honours ids or does not.

The endpoint is a file of JSON lines. What it makes of ids is its own affair, which is the point.
"""

from __future__ import annotations

import itertools
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from beadline.sink import AnySink
from beadline.sinks import WriteAheadSink
from beadline.testing.suite import *  # noqa: F403
from beadline.testing.suite import Row, SinkHarness
from tests.unit.write_ahead_endpoints import FileEndpoint, received


class HonestHarness(SinkHarness):
    """In order, and the endpoint honours ids."""

    settings: dict[str, Any] = {"honours_ids": True}  # noqa: RUF012 (never changed)
    volatile = ("*.lock", "received")  # the endpoint's own file is its own affair

    def __init__(self, folder: Path) -> None:
        self.names = (folder / f"target{number}" for number in itertools.count())

    def fresh(self, schema: pa.Schema) -> AnySink:
        top = next(self.names)
        endpoint = FileEndpoint(str(top / "received"), bool(self.settings.get("honours_ids")))
        return WriteAheadSink(endpoint, folder=top / "wal", batch_rows=2, **self.settings)

    def visible(self, sink: AnySink) -> list[Row]:
        return [entry["row"] for entry in received(endpoint_of(sink).path)]

    def leftovers(self, sink: AnySink) -> Collection[str]:
        folder = parts_of(sink)
        files = folder.iterdir() if folder.is_dir() else iter(())
        progress = folder.parent.glob("state/*.progress")
        return [path.name for path in (*files, *progress)]

    @contextmanager
    def unreachable(self, sink: AnySink) -> Iterator[AnySink]:
        """The endpoint does not take anything; where the parts are is another matter."""
        place = Path(endpoint_of(sink).path)
        away = place.rename(place.with_name("away"))
        place.mkdir()
        yield sink
        place.rmdir()
        away.rename(place)

    def plant_stranger(self, sink: AnySink) -> str | None:
        parts_of(sink).mkdir(parents=True)
        (parts_of(sink) / "notes.txt").write_text("mine")
        return "notes.txt"


class ParallelHarness(HonestHarness):
    """Several parts at once."""

    settings = {"honours_ids": True, "parallel": 3}  # noqa: RUF012


class CarelessHarness(HonestHarness):
    """At-least-once: the endpoint takes everything that comes."""

    settings: dict[str, Any] = {}  # noqa: RUF012


def endpoint_of(sink: AnySink) -> FileEndpoint:
    assert isinstance(sink, WriteAheadSink)
    assert isinstance(sink.deliver, FileEndpoint)
    return sink.deliver


def parts_of(sink: AnySink) -> Path:
    assert isinstance(sink, WriteAheadSink)
    return Path(sink.staging_area.folder.removeprefix("file:"))


@pytest.fixture(params=[HonestHarness, ParallelHarness, CarelessHarness])
def harness(request: pytest.FixtureRequest, tmp_path: Path) -> SinkHarness:
    made: SinkHarness = request.param(tmp_path)
    return made
