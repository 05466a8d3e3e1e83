"""The conformance suite on the worked example of ``TwoPhaseCommitSink``."""

from __future__ import annotations

import itertools
from collections.abc import Collection
from contextlib import AbstractContextManager
from pathlib import Path

import pyarrow as pa
import pytest

from beadline.errors import BadSink, CommitFailed
from beadline.sink import AnySink
from beadline.testing.suite import *  # noqa: F403
from beadline.testing.suite import Row, SinkHarness
from beadline.testing.suite.harness import unmounted
from beadline.testing.suite.target import QUERY, Target
from examples.two_phase_folder import FolderSink, FolderTransaction, read


class FolderHarness(SinkHarness):
    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.names = (folder / f"out{number}" for number in itertools.count())

    def fresh(self, schema: pa.Schema) -> AnySink:
        return FolderSink(str(next(self.names)))

    def visible(self, sink: AnySink) -> list[Row]:
        return read(path_of(sink))

    def leftovers(self, sink: AnySink) -> Collection[str]:
        return [path.name for path in (path_of(sink) / ".pending").glob("*")]

    def unreachable(self, sink: AnySink) -> AbstractContextManager[AnySink]:
        return unmounted(self.folder, sink)

    def plant_stranger(self, sink: AnySink) -> str | None:
        (path_of(sink) / ".pending" / "somebody-elses").mkdir(parents=True)
        return "somebody-elses"


def path_of(sink: AnySink) -> Path:
    assert isinstance(sink, FolderSink)
    return Path(sink.path)


@pytest.fixture
def harness(tmp_path: Path) -> SinkHarness:
    return FolderHarness(tmp_path)


def test_a_folder_that_is_gone_stops_the_commit(harness: SinkHarness) -> None:
    target = Target(harness)
    (part,) = target.prepare_epoch(0, target.rows(1))
    assert isinstance(part.committable, FolderTransaction)
    target.sink.abort([part])
    with pytest.raises(CommitFailed, match="neither there nor pending"):
        target.commit(0, [part])


def test_a_relative_path_is_refused() -> None:
    with pytest.raises(BadSink, match="absolute"):
        FolderSink("out").check(SinkHarness.schema, QUERY)
