"""Prepare: every sink makes its parts of the epoch durable and invisible."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

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
            try:
                acks[sink.name] = batch.prepare(sink, ticket)
            except BeadlineError:
                raise
            except Exception as error:
                raise PrepareFailed(
                    f"query {query.name!r}, epoch {batch.number}, sink {sink.name!r}: preparing "
                    f"failed: {_reason(error)}. Nothing of the epoch is visible or decided; it is "
                    "given again by the next start."
                ) from error
    reach("prepare.after")
    return acks


def _reason(error: Exception) -> str:
    """The one line that says what went wrong, out of a Python trace in a Java trace."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()] or [repr(error)]
    patterns = (r"[\w.]+Error: ", r"Caused by: ", r".*Exception: ")
    for pattern in patterns:
        found = [line for line in lines if re.match(pattern, line)]
        if found:
            return found[-1][:500]
    return lines[0][:500]
