"""The conformance suite on the model's sinks: the model keeps the rules that real sinks keep."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass

import pyarrow as pa
import pytest

from beadline.ids import EpochId, PartId
from beadline.points import reach
from beadline.sink import AnySink, Outcome, Part
from beadline.testing.suite import *  # noqa: F403
from beadline.testing.suite import Row, SinkHarness
from tests.model.server import (
    LEDGER,
    PARTS,
    SCHEMA,
    ModelCommittable,
    ModelServer,
    ModelSink,
)


@dataclass(frozen=True)
class Pointed(ModelSink):
    """With crash points of its own; when whole schedules are played, the protocol's are enough."""

    def prepare(self, rows: Iterator[pa.RecordBatch], part: Part) -> ModelCommittable | None:
        made = super().prepare(rows, part)
        reach("staging.written")
        return made

    def commit_one(self, epoch: EpochId, part: PartId) -> Outcome:
        reach("commit.between")
        return super().commit_one(epoch, part)


class ModelHarness(SinkHarness):
    schema = SCHEMA
    other_process = False
    sinks_share = False  # in the model, each sink of a query has a server of its own

    def __init__(self, kind: str) -> None:
        self.kind = kind

    def fresh(self, schema: pa.Schema) -> AnySink:
        return Pointed(ModelServer("target"), self.kind)

    def visible(self, sink: AnySink) -> list[Row]:
        assert isinstance(sink, ModelSink)
        return [{"row": row} for row in sink.server.rows()]

    def leftovers(self, sink: AnySink) -> Collection[str]:
        assert isinstance(sink, ModelSink)
        return [str(part) for part in sink.server.prepared]

    def unreachable(self, sink: AnySink) -> None:
        return None

    def row(self, number: int, version: int = 0) -> Row:
        return {"row": f"{number}.{version}"}

    def odd_rows(self) -> tuple[pa.Schema, list[Row]]:
        return SCHEMA, [{"row": word} for word in ("", " ", "NULL", "'", "ß 漢", "a\tb\nc")]


@pytest.fixture(params=[PARTS, LEDGER])
def harness(request: pytest.FixtureRequest) -> SinkHarness:
    return ModelHarness(request.param)
