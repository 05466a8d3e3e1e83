"""Stateful operators that work on Arrow batches, on Spark's own ``transformWithState``.

PySpark passes rows to ``transformWithState`` as single Python objects, key by key. Here Spark's key
is a *bucket* of the user's keys, and Spark's row is a *parcel*: all rows that one task has for a
bucket, as one Arrow stream. So an operator sees whole Arrow tables, while Spark shuffles, keeps
state, fires timers and checkpoints as it always does.

    rows → pack (mapInArrow) → shuffle by bucket → Operator in transformWithState → unpack

Spark drops rows behind the watermark before a stateful operator sees them, by the metadata of the
time column. A parcel has no time column, so late rows reach the operator, which decides what to do
with them.
"""

from __future__ import annotations

import io
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
import pyarrow as pa
from pyspark.sql import functions as F
from pyspark.sql.pandas.types import from_arrow_schema, to_arrow_schema
from pyspark.sql.streaming.stateful_processor import StatefulProcessor

from beadline.event_time.columns import row_hash

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame
    from pyspark.sql.streaming.stateful_processor import (
        ExpiredTimerInfo,
        StatefulProcessorHandle,
        TimerValues,
    )

# The number of buckets of keys. State belongs to a bucket, so the number is fixed for the life of
# a checkpoint, and must not be derived from the cluster's size.
BUCKETS = 32
BUCKET = "beadline_bucket"
PARCEL = "beadline_parcel"
TIE = "beadline_tie"
PARCEL_ROWS_MAX = 250_000
PARCEL_BYTES_MAX = 64 * 2**20  # far below the 2 GB that Arrow can hold in one column

EVENT_TIME = "EventTime"
PROCESSING_TIME = "ProcessingTime"
NO_TIME = "None"


@dataclass(frozen=True)
class Clock:
    """The time of one epoch; Spark keeps both in its offset log, so a replay has the same."""

    watermark_ms: int
    now_ms: int


class Operator(ABC):
    """Processes the rows of buckets; one instance per task and epoch."""

    @property
    def ordered(self) -> bool:
        """Whether anything but the order of the output depends on the order of an epoch's rows.

        If so, the rows are sorted by their content. An epoch that was decided is computed again
        after a crash, for the state: rows that came in another order would give another result than
        the one that the sinks show.
        """
        return False

    @abstractmethod
    def open(self, handle: StatefulProcessorHandle) -> None:
        """Declare the state variables: always the same ones, whatever the rows."""

    @abstractmethod
    def process(self, rows: pa.Table, clock: Clock) -> Iterator[pa.Table]:
        """Process all rows of the bucket in an epoch; yield rows of the output's schema."""

    def expire(self, timer_ms: int, clock: Clock) -> Iterator[pa.Table]:
        """Handle a timer of the bucket that fires."""
        return iter(())


def apply_operator(
    frame: DataFrame,
    keys: Sequence[Column],
    operator: Operator,
    output: pa.Schema,
    *,
    time_mode: str = EVENT_TIME,
    buckets: int = BUCKETS,
) -> DataFrame:
    """Run an operator on a streaming frame, whose rows are grouped by the hash of their keys."""
    bucket = F.pmod(F.xxhash64(*keys), F.lit(buckets)).cast("int") if keys else F.lit(0)
    if operator.ordered:
        frame = frame.withColumn(TIE, row_hash(frame))
    packed = frame.withColumn(BUCKET, bucket).mapInArrow(_pack, f"{BUCKET} int, {PARCEL} binary")
    worked = packed.groupBy(BUCKET).transformWithStateInPandas(
        _Processor(operator, output),
        outputStructType=f"{PARCEL} binary",
        outputMode="append",
        timeMode=time_mode,
    )
    return worked.mapInArrow(_unpack, from_arrow_schema(output))


class _Processor(StatefulProcessor):
    """Spark's side of an operator."""

    def __init__(self, operator: Operator, output: pa.Schema) -> None:
        self._operator = operator
        self._output = output

    def init(self, handle: StatefulProcessorHandle) -> None:
        self._operator.open(handle)

    def handleInputRows(  # type: ignore[override]  # noqa: N802
        self,
        key: Any,
        rows: Iterator[pd.DataFrame],
        timerValues: TimerValues,  # noqa: N803
    ) -> Iterator[pd.DataFrame]:
        parcels = (read_parcel(parcel) for frame in rows for parcel in frame[PARCEL])
        table = pa.concat_tables(parcels)
        if self._operator.ordered:
            order = np.argsort(table[TIE].to_numpy())
            table = table.drop_columns([TIE]).take(pa.array(order))
        yield from self._parcels(self._operator.process(table, _clock(timerValues)))

    def handleExpiredTimer(  # noqa: N802
        self,
        key: Any,
        timerValues: TimerValues,  # noqa: N803
        expiredTimerInfo: ExpiredTimerInfo,  # noqa: N803
    ) -> Iterator[pd.DataFrame]:
        timer_ms = expiredTimerInfo.getExpiryTimeInMs()
        yield from self._parcels(self._operator.expire(timer_ms, _clock(timerValues)))

    def close(self) -> None:
        """Do nothing: no resources are held."""

    def _parcels(self, tables: Iterator[pa.Table]) -> Iterator[pd.DataFrame]:
        for table in tables:
            if table.num_rows:
                yield pd.DataFrame({PARCEL: [write_parcel(table.cast(self._output))]})


def _clock(values: TimerValues) -> Clock:
    return Clock(values.getCurrentWatermarkInMs(), values.getCurrentProcessingTimeInMs())


def _pack(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Yield one row per bucket: the bucket's rows as an Arrow stream."""
    held: list[pa.RecordBatch] = []
    rows = size = 0
    for batch in batches:
        held.append(batch)
        rows += batch.num_rows
        size += batch.nbytes
        if rows >= PARCEL_ROWS_MAX or size >= PARCEL_BYTES_MAX:
            yield _parcels_of(pa.Table.from_batches(held))
            held, rows, size = [], 0, 0
    if rows:
        yield _parcels_of(pa.Table.from_batches(held))


def _parcels_of(table: pa.Table) -> pa.RecordBatch:
    buckets = table[BUCKET].to_numpy()
    order = np.argsort(buckets, kind="stable")
    ordered = table.drop_columns([BUCKET]).take(order)
    found, starts = np.unique(buckets[order], return_index=True)
    ends = [*starts[1:], table.num_rows]
    parcels = [
        write_parcel(ordered.slice(start, end - start))
        for start, end in zip(starts, ends, strict=True)
    ]
    return pa.RecordBatch.from_arrays(
        [pa.array(found, pa.int32()), pa.array(parcels, pa.binary())], names=[BUCKET, PARCEL]
    )


def _unpack(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    for batch in batches:
        for parcel in batch.column(PARCEL):
            yield from read_parcel(parcel.as_py()).to_batches()


def write_parcel(table: pa.Table) -> bytes:
    """Return a table as one Arrow stream."""
    held = io.BytesIO()
    with pa.ipc.new_stream(held, table.schema) as stream:
        stream.write_table(table.combine_chunks())
    return held.getvalue()


def read_parcel(parcel: bytes) -> pa.Table:
    """Return the table in one Arrow stream."""
    return pa.ipc.open_stream(parcel).read_all()


def to_arrow(frame: DataFrame) -> pa.Schema:
    """Return the Arrow schema of a frame's rows in a parcel."""
    schema = to_arrow_schema(frame.schema, timezone="UTC")
    assert schema is not None
    return schema
