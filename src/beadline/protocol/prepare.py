"""Prepare: every sink makes its parts of the epoch durable and invisible."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager

from beadline.chaos.points import reach
from beadline.errors import BeadlineError, PrepareFailed
from beadline.ids import PartId, QueryId
from beadline.protocol.engine import Acks, Batch, Ticket
from beadline.sink import BoundSink


def prepare(
    batch: Batch,
    sinks: Sequence[BoundSink],
    query: QueryId,
    generation: int,
    decided: Mapping[str, tuple[PartId, ...]],
) -> dict[str, Acks]:
    """Return every sink's acks, or raise with nothing decided."""
    reach("prepare.before")
    acks: dict[str, Acks] = {}
    with batch.sharing(len(sinks)):
        for sink in sinks:
            if acks:
                reach("prepare.between")
            last = decided.get(sink.name, ())
            ticket = Ticket(query, generation, batch.number, sink.name, last)
            with failing(query, batch.number, sink.name):
                acks[sink.name] = batch.prepare(sink, ticket)
    reach("prepare.after")
    return acks


@contextmanager
def failing(query: QueryId, epoch: int, sink: str) -> Iterator[None]:
    """Turn whatever a sink or Spark raises into an error that says where, and what it means."""
    try:
        yield
    except BeadlineError:
        raise
    except Exception as error:
        raise PrepareFailed(
            f"query {query.name!r}, epoch {epoch}, sink {sink!r}: preparing failed: "
            f"{_reason(error)}. Nothing of the epoch is decided; it is given again by the next "
            "start."
        ) from error


def _reason(error: Exception) -> str:
    """The one line that says what went wrong, out of a Python trace in a Java trace."""
    text = str(error) or repr(error)
    _, python, trace = text.rpartition("Traceback (most recent call last):")
    if python:
        # The frames of a trace are indented; the first line that is not is the exception.
        said = [line for line in trace.splitlines() if line.strip() and not line[0].isspace()]
        if said:
            return said[0][:500]
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    for pattern in (r"Caused by: ", r"[\w.]+Error: ", r".*Exception: "):
        found = [line for line in lines if re.match(pattern, line)]
        if found:
            return found[-1][:500]
    return lines[0][:500]
