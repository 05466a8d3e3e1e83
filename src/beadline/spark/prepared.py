"""What the protocol is told of one sink: acks turned into parts, and refused rows."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from pyspark.sql import Observation
from pyspark.sql import functions as F

from beadline.dead_letter import Refused
from beadline.protocol.batch import Acks, Ticket
from beadline.sink import BoundSink, Part, Prepared, Sink
from beadline.spark.acks import Ack
from beadline.spark.refusals import Refusals, RefusedAgain, Refusing, parse

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


def refusing_of(sink: BoundSink, refused: Sequence[Refused] | None) -> Refusing:
    """Where the rows go that the sink refuses; a dead letter sink has nowhere to send any."""
    if refused is not None:
        return RefusedAgain
    return Refusals if sink.dead_letter else None


def refused_rows(sink: BoundSink, acks: Sequence[Ack]) -> tuple[Refused, ...]:
    """All refused rows, by partition, and in the sink's own order in each."""
    return tuple(one for ack in acks for one in parse(ack.refused, sink.name, ack.partition))


def prepared_part(sink: Sink[Any], ticket: Ticket, ack: Ack) -> Prepared[Any]:
    """Return a part as it was acknowledged."""
    assert ack.committable is not None
    committable = sink.committable.from_json(ack.committable)
    return Prepared(ticket.part(ack.partition, ack.attempt).id, ack.rows, committable, ack.checksum)


def prepare_frame(sink: Any, frame: DataFrame, part: Part, refusals: Refusals) -> Acks:
    """Let a ``FrameSink`` write the frame, and count its rows as they pass."""
    observed = Observation()
    frame = frame.observe(observed, F.count(F.lit(1)).alias("rows"))
    committable = sink.prepare(frame, part)
    rows = observed.get["rows"] - len(refusals)
    refused = tuple(parse(refusals.to_text(), part.id.sink, 0))
    if committable is not None:
        return Acks((Prepared(part.id, rows, committable),), 1, refused=refused)
    if rows:
        raise RuntimeError(
            f"Spark wrote {rows} rows and the driver finds none of them: do the executors "
            "write to a disk that the driver does not see?"
        )
    return Acks((), 1, refused=refused)
