"""Which rows a ``KafkaSink`` refuses, and why, in one part that is thrown away."""

from __future__ import annotations

from functools import partial

import pyarrow as pa
import pytest

from beadline.ids import PartId, QueryId
from beadline.sink import Part, Prepared
from beadline.sinks import KafkaSink

PART = PartId("orders", "a" * 32, "topic", 1, 0, 0, 0)


def ignore(_: object) -> None:
    """A callback, with which confluent-kafka's own producer sends, row by row."""


# The options by which a sink has the one producer or the other.
PRODUCERS = {"natively": {}, "row by row": {"error_cb": ignore}}
both_producers = pytest.mark.parametrize("options", PRODUCERS.values(), ids=PRODUCERS)


def note(reasons: list[str], _: pa.RecordBatch, reason: str) -> None:
    reasons.append(reason)


def refused(sink: KafkaSink, rows: list[dict[str, str]]) -> list[str]:
    """Prepare one part and abort it; return why rows were refused."""
    reasons: list[str] = []
    part = Part(PART, refuse=partial(note, reasons))
    sink.open(QueryId(PART.query, PART.incarnation, "file:/checkpoint"), PART.sink)
    made = sink.prepare(iter([pa.RecordBatch.from_pylist(rows)]), part)
    assert made is not None
    sink.abort([Prepared(PART, 0, made)])
    return reasons
