"""What the driver is told about a part, and what it tells the protocol.

An ack is one row with one text, which is JSON.

Spark hands rows to a Python driver over a socket that it opens for each job. A few short texts are
read faster from a Java list's string form: rows of one column print as ``[[text], [text]]``, which
is JSON again if each text is.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from pyspark.sql import Observation
from pyspark.sql import functions as F
from pyspark.sql.types import StringType, StructField, StructType

from beadline.dead_letter import RefusedRow
from beadline.protocol.batch import Acks, Ticket
from beadline.sink import BoundSink, Part, Prepared, Sink
from beadline.spark.refusals import Refusals, RefusedAgain, Refusing, parse

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

_SCHEMA = pa.schema([("ack", pa.string())])
# The same for Spark; as a type, because Spark would parse a text in every epoch.
ACK_TYPE = StructType([StructField("ack", StringType())])


@dataclass(frozen=True)
class Ack:
    """One part was prepared or published; or it was empty, and has no committable."""

    partition: int
    attempt: int
    retries: int
    rows: int
    row_bytes: int  # of a row on average, in the batch in which they were largest
    checksum: int | None
    slot: int
    committable: dict[str, Any] | None
    worker: str
    refused: str | None
    tag: int | None = None  # of the shared rows that it was made from; None if there were none

    def to_batch(self) -> pa.RecordBatch:
        """As a task yields it."""
        return pa.RecordBatch.from_pydict({"ack": [json.dumps(asdict(self))]}, _SCHEMA)


def collect(frame: DataFrame, task: Column) -> tuple[Sequence[Ack], Any]:
    """Run a task on every part of a frame; return the acks by partition, and Spark's record of it.

    This is ``frame.mapInArrow(...).collect()``, but that pickles the function and registers it with
    the JVM again for every epoch, which takes longer than the decision.
    """
    mapped = frame._jdf.mapInArrow(task._jc, False, None)
    rows = mapped.collectAsList()
    acks = by_partition(fields for (fields,) in json.loads(rows.toString()))
    return acks, mapped.queryExecution()


def by_partition(found: Iterable[dict[str, Any]]) -> Sequence[Ack]:
    """Return the acks from the tasks, in the order of their parts."""
    return sorted((Ack(**fields) for fields in found), key=lambda ack: ack.partition)


def refusing_of(sink: BoundSink, refused: Sequence[RefusedRow] | None) -> Refusing:
    """Where rows go that the sink refuses; a dead-letter sink has nowhere to send them."""
    if refused is not None:
        return RefusedAgain
    return Refusals if sink.dead_letter else None


def refused_rows(sink: BoundSink, acks: Sequence[Ack]) -> tuple[RefusedRow, ...]:
    """All refused rows, by partition, and within each in the sink's own order."""
    return tuple(one for ack in acks for one in parse(ack.refused, sink.name, ack.partition))


def prepared_part(sink: Sink[Any], ticket: Ticket, ack: Ack) -> Prepared[Any]:
    """Return a part as it was acknowledged."""
    assert ack.committable is not None
    committable = sink.committable.from_json(ack.committable)
    return Prepared(ticket.part(ack.partition, ack.attempt).id, ack.rows, committable, ack.checksum)


def write_frame(sink: Any, frame: DataFrame, part: Part, refusals: Refusals) -> Acks:
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
            f"Spark wrote {rows} rows and the driver finds none of them: do the executors write to "
            "a disk that the driver cannot access?"
        )
    return Acks((), 1, refused=refused)
