"""What the driver is told of a part: one row with one text, which is JSON.

Spark hands rows to a Python driver over a socket that it opens for each job. A few short texts are
quicker asked for by name: a Java list of rows of one column prints as ``[[text], [text]]``, which
is JSON again if each text is.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from pyspark.sql.types import StringType, StructField, StructType

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

_SCHEMA = pa.schema([("ack", pa.string())])
# The same for Spark; as a type, because a text would be parsed by Spark in every epoch.
ACK_TYPE = StructType([StructField("ack", StringType())])


@dataclass(frozen=True)
class Ack:
    """One part is prepared, or published; or was empty, and has no committable."""

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
    the JVM anew for every epoch, which takes longer than the decision.
    """
    mapped = frame._jdf.mapInArrow(task._jc, False, None)
    rows = mapped.collectAsList()
    acks = by_partition(fields for (fields,) in json.loads(rows.toString()))
    return acks, mapped.queryExecution()


def by_partition(found: Iterable[dict[str, Any]]) -> Sequence[Ack]:
    """Return the acks that tasks have answered with, in the order of their parts."""
    return sorted((Ack(**fields) for fields in found), key=lambda ack: ack.partition)
