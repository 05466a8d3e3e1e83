"""Watermarks of several inputs: how late a row of each may be, and which of them may be idle.

Most of it is Spark's own watermark: for one input it is the largest time seen less the delay, and
for several inputs it is the smallest of theirs. Beadline adds metrics of each input, epoch by epoch
(Spark's progress has only the totals), and a ticker beside an input that may be idle.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from pyspark.sql import functions as F

from beadline.event_time.columns import check_no_watermark, check_time, column_of
from beadline.event_time.durations import Duration, milliseconds
from beadline.event_time.idle import InputSeen
from beadline.sources.ticker import ticks_beside

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

INPUT_METRICS = "beadline.input."  # prefix of an input's name: its metrics of an epoch
_MARK = "beadline_tick"
_NO_IDLE = -1
_numbers = itertools.count(1)


def watermark(
    frame: DataFrame,
    time: str,
    delay: Duration,
    *,
    idle: Duration | None = None,
    name: str | None = None,
) -> DataFrame:
    """Return an input with a watermark: rows may be up to ``delay`` behind the newest one.

    If a query has several inputs (a union, a join), the smallest of their watermarks counts, so an
    input without new rows holds up the windows of all. With ``idle="1 minute"`` an input stops
    doing so when it has had no rows for that long while others have; rows that it delivers later,
    behind the others' watermark, are then late. ``name`` is the input's name in events and in
    ``beadline epochs``.

    >>> orders = watermark(orders, "ts", "5 minutes", idle="1 minute", name="orders")
    >>> counts = windowed(orders.union(returns), "ts", size="10 minutes").agg(n=count())
    """
    delay_ms = milliseconds("delay", delay, zero=True)
    idle_ms = None if idle is None else milliseconds("idle", idle)
    name = name if name is not None else f"input-{next(_numbers)}"
    check_time("watermark()", "time", time, frame.schema)
    check_no_watermark("watermark()", time, frame.schema)
    if idle_ms is None:
        return marked(frame, time, delay_ms, name)
    return _ticking(_observed(frame, time, delay_ms, idle_ms, name), time, delay_ms, name)


def marked(
    frame: DataFrame, time: str, delay_ms: int, name: str | None = None, *more: Column
) -> DataFrame:
    """Return an input with a watermark, observed under a name of its own, with ``more`` metrics."""
    name = name if name is not None else f"input-{next(_numbers)}"
    frame = _observed(frame, time, delay_ms, _NO_IDLE, name, *more)
    return frame.withWatermark(time, f"{delay_ms} milliseconds")


def _observed(
    frame: DataFrame, time: str, delay_ms: int, idle_ms: int, name: str, *more: Column
) -> DataFrame:
    return frame.observe(
        f"{INPUT_METRICS}{name}",
        F.count(F.lit(1)).alias("rows"),
        F.max(F.unix_millis(column_of(time))).alias("newest_ms"),
        F.lit(delay_ms).alias("delay_ms"),
        F.lit(idle_ms).alias("idle_ms"),
        *more,
    )


def _ticking(frame: DataFrame, time: str, delay_ms: int, name: str) -> DataFrame:
    """Union a ticker with the input before its watermark, and filter out its rows after it."""
    ticks = ticks_beside(frame, name).select(
        *(
            F.col("tick").alias(field.name)
            if field.name == time
            else F.lit(None).cast(field.dataType).alias(field.name)
            for field in frame.schema
        ),
        F.lit(True).alias(_MARK),
    )
    both = frame.withColumn(_MARK, F.lit(None).cast("boolean")).union(ticks)
    marked = both.withWatermark(time, f"{delay_ms} milliseconds")
    # As it uses the time column, Spark does not push this condition below the watermark, where the
    # ticks would be removed before they were seen. Nor may Spark push down a condition of the user
    # on a column that is null in a tick; it pushes none past a non-deterministic condition.
    is_row = F.col(_MARK).isNull() | column_of(time).isNull()
    return marked.where(is_row & (F.spark_partition_id() >= 0)).drop(_MARK)


def inputs_seen(metrics: Mapping[str, Mapping[str, Any]]) -> dict[str, InputSeen]:
    """Return the metrics of each input in an epoch, given all observed metrics of the epoch."""
    found = {}
    for name, values in metrics.items():
        if name.startswith(INPUT_METRICS) and "rows" in values:
            idle_ms = int(values["idle_ms"])
            newest_ms = values.get("newest_ms")
            found[name.removeprefix(INPUT_METRICS)] = InputSeen(
                rows=int(values["rows"]),
                newest_ms=None if newest_ms is None else int(newest_ms),
                delay_ms=int(values["delay_ms"]),
                idle_ms=None if idle_ms == _NO_IDLE else idle_ms,
            )
    return found
