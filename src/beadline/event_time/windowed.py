"""``windowed(...)``: the function that users call for windows over event time.

If Spark's own aggregation has all that is needed, it is used, at its full speed. Allowed lateness,
a late output, early results and custom aggregates need an operator of Beadline's own on Spark's
state store (see ``windows`` and ``sessions``), whose results have the same columns.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from pyspark.errors import PySparkTypeError
from pyspark.sql import functions as F
from pyspark.sql.types import StructType

from beadline.errors import NOTHING_WRITTEN, BadQuery
from beadline.event_time.aggregates import Aggregate
from beadline.event_time.chains import check_follows
from beadline.event_time.codec import (
    DELETED,
    DROPPED,
    END,
    NUMBER,
    REVISION,
    START,
    WindowOperator,
    state_name,
)
from beadline.event_time.columns import (
    FLOATS,
    WATERMARK_KEY,
    check_binary,
    check_no_watermark,
    check_plain,
    check_time,
    column_of,
)
from beadline.event_time.counted import CountedWindows
from beadline.event_time.durations import Duration, microseconds, milliseconds
from beadline.event_time.operator import (
    EVENT_TIME,
    NO_TIME,
    PROCESSING_TIME,
    apply_operator,
    to_arrow,
)
from beadline.event_time.sessions import Sessions
from beadline.event_time.watermarks import marked
from beadline.event_time.windows import Windowed, WindowShape, window_shape
from beadline.outputs import LATE, MAIN, Outputs

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import Column, DataFrame

WindowClock = Literal["event", "ingestion", "processing"]
INGESTED = "ingested_at"
INGESTION_DELAY = "5 seconds"  # by how much the clock may go back until rows are late
LATE_ROWS = "beadline.late_rows"
WINDOW_KEY = "beadline_window_"  # how the name of the windows' column begins in Spark's state
_RESERVED = (START, END, REVISION, DELETED, NUMBER)
_numbers = itertools.count()


def windowed(
    frame: DataFrame,
    time: str | None = None,
    *,
    size: Duration | None = None,
    slide: Duration | None = None,
    session_gap: Duration | None = None,
    every_rows: int | None = None,
    by: Sequence[str] | str = (),
    watermark: Duration | None = None,
    allowed_lateness: Duration | None = None,
    late: Literal["drop", "side"] = "drop",
    early: Duration | None = None,
    clock: WindowClock = "event",
    offset: Duration = "0 seconds",
) -> WindowedRows:
    """Divide a stream into windows; ``.agg(...)`` defines what is computed for each window.

    ``size`` alone makes tumbling windows; with ``slide`` they overlap. ``session_gap`` makes a
    session of rows that are at most that far apart; ``every_rows=100`` makes a window of every
    hundred rows of a key. ``time`` is the timestamp column by which rows are assigned to windows.

    A window fires when the watermark (the largest time seen, less ``watermark``) passes its end.
    With ``allowed_lateness`` it fires again for rows that arrive within that time after it, with
    the corrected result and a higher ``revision``; the key and ``window_start`` identify a result,
    so that an upsert is always right. If the start of a session changes, the result under the old
    start is emitted once more, with ``deleted`` set. Rows that arrive later still are late: they
    are counted, and with ``late="side"`` they go to the output ``late``. ``early="10 seconds"``
    also emits preliminary results at that interval.

    ``clock="ingestion"`` uses the time at which the epoch was planned, as a column ``ingested_at``,
    with a watermark of 5 seconds in case that clock goes back; ``clock="processing"`` uses the
    current time, whatever times the rows have.

    >>> counts = windowed(orders, "ts", size="10 minutes", by="shop", watermark="5 minutes",
    ...                   allowed_lateness="1 hour", late="side").agg(orders=count())
    >>> exactly_once(counts, "counts").to(table).to(late_rows, output="late")
    """
    keys = (by,) if isinstance(by, str) else tuple(by)
    shape = _shape(size, slide, session_gap, every_rows, offset)
    _check_clock(clock, time, late, every_rows)
    _check_lateness(clock, every_rows, watermark, allowed_lateness, early, late)
    if clock == "ingestion":
        frame, time = frame.withColumn(INGESTED, F.current_timestamp()), INGESTED
        watermark = INGESTION_DELAY if watermark is None else watermark
    rows = WindowedRows(
        frame=frame,
        time=time,
        by=keys,
        shape=shape,
        gap_us=None if session_gap is None else microseconds("session_gap", session_gap),
        every_rows=every_rows,
        watermark_ms=None if watermark is None else milliseconds("watermark", watermark, zero=True),
        lateness_us=_lateness_us(allowed_lateness),
        side=late == "side",
        early_ms=None if early is None else milliseconds("early", early),
        processing_time=clock == "processing",
    )
    rows.check()
    return rows


def _lateness_us(lateness: Duration | None) -> int | None:
    if lateness is None:
        return None
    return milliseconds("allowed_lateness", lateness, zero=True) * 1000


@dataclass(frozen=True)
class WindowedRows:
    """Rows divided into windows, ready to be aggregated."""

    frame: DataFrame
    time: str | None
    by: tuple[str, ...]
    shape: WindowShape | None
    gap_us: int | None
    every_rows: int | None
    watermark_ms: int | None
    lateness_us: int | None
    side: bool
    early_ms: int | None
    processing_time: bool

    def check(self) -> None:
        """Refuse arguments that cannot work, before anything is written."""
        schema = self.frame.schema
        if len(set(self.by)) < len(self.by):
            raise BadQuery(f"by={list(self.by)!r} names a column twice. {NOTHING_WRITTEN}")
        for name in self.by:
            _check_key(name, schema)
        if self.time is not None:
            check_time("windowed()", "time", self.time, schema)
        if self.time is None or self.every_rows is not None:
            return
        if self.watermark_ms is None and WATERMARK_KEY not in schema[self.time].metadata:
            raise BadQuery(
                f"windows over {self.time!r} need a watermark, or none would ever be complete: "
                f"windowed(..., watermark='5 minutes'), the longest that rows may be out of order. "
                f"{NOTHING_WRITTEN}"
            )
        if self.watermark_ms is not None:
            check_no_watermark("windowed()", self.time, schema)

    def agg(self, **aggregates: Aggregate) -> Outputs:
        """Compute these aggregates for each window; their names become the result columns."""
        schema = _arrow_schema(self.frame)
        self._check_aggregates(aggregates, schema)
        if self._is_native():
            columns = {name: one.native(str(self.time)) for name, one in aggregates.items()}
            native = {name: one for name, one in columns.items() if one is not None}
            if len(native) == len(aggregates):
                return Outputs.of(self._native(native))
        frame = self._watermarked()
        mode = PROCESSING_TIME if self.processing_time else EVENT_TIME
        mode = NO_TIME if self.every_rows is not None else mode
        if mode == EVENT_TIME:
            check_follows("windowed() with lateness, a late output or early results", frame)
        operator = self._operator(schema, aggregates)
        keys = [_key(frame, name) for name in self.by]
        worked = apply_operator(frame, keys, operator, operator.output, time_mode=mode)
        return self._split(worked)

    def top(
        self,
        n: int,
        order_by: str,
        columns: Sequence[str] | None = None,
        *,
        descending: bool = True,
    ) -> Outputs:
        """Emit the ``n`` rows of each window with the largest values, one row for each ``rank``.

        ``columns`` are the columns of the rows to keep, by default all. Rows with equal values are
        ranked by these columns, from left to right, the smaller first; null and NaN come last. A
        window that fires again emits all of its ranks again: ``by``, ``window_start`` and ``rank``
        are the key of an upsert.

        >>> best = windowed(orders, "ts", size="1 hour", by="shop", watermark="5 minutes",
        ...                 allowed_lateness="1 day").top(3, order_by="amount")
        """
        from beadline.event_time.top import top_rows

        return top_rows(self, n, order_by, columns, descending=descending)

    # -- Spark's own aggregation

    def _is_native(self) -> bool:
        asked = (self.lateness_us, self.early_ms, self.every_rows)
        return not (self.side or self.processing_time or any(one is not None for one in asked))

    def _native(self, aggregates: Mapping[str, Column]) -> DataFrame:
        """Return Spark's own windows, with the same columns as Beadline's operator."""
        time = column_of(str(self.time))
        if self.watermark_ms is None:
            frame = nulls_counted(self.frame, str(self.time))
        else:  # in one go: rows that are observed twice cost twice as much
            frame = self._watermarked(_nulls(str(self.time)))
        if self.shape is None:
            window = F.session_window(time, f"{self.gap_us} microseconds")
        else:
            lengths = (self.shape.size_us, self.shape.slide_us, self.shape.offset_us)
            window = F.window(time, *(f"{length} microseconds" for length in lengths))
        keys = [column_of(name) for name in self.by]
        computed = [one.alias(name) for name, one in aggregates.items()]
        # As a column first, whose name Spark writes into the state: see ``state.compare``.
        divided = f"gap_us={self.gap_us}" if self.shape is None else repr(self.shape)
        name = WINDOW_KEY + state_name(f"{divided}, time={self.time!r}")
        results = frame.withColumn(name, window).groupBy(*keys, column_of(name)).agg(*computed)
        return results.select(
            *keys,
            F.col(f"{name}.start").alias(START),
            F.col(f"{name}.end").alias(END),
            *(column_of(name) for name in aggregates),
            F.lit(0).cast("bigint").alias(REVISION),
            *([F.lit(False).alias(DELETED)] if self.shape is None else []),
        )

    # -- Beadline's operator

    def _watermarked(self, *metrics: Column) -> DataFrame:
        if self.watermark_ms is None or self.time is None:
            return self.frame
        return marked(self.frame, self.time, self.watermark_ms, None, *metrics)

    def _operator(self, schema: pa.Schema, aggregates: Mapping[str, Aggregate]) -> WindowOperator:
        common: dict[str, Any] = {
            "time": self.time,
            "by": self.by,
            "aggregates": dict(aggregates),
            "schema": schema,
            "lateness_us": self.lateness_us or 0,
            "keeps_late": self.side,
            "early_ms": self.early_ms,
            "processing_time": self.processing_time,
        }
        if self.every_rows is not None:
            return CountedWindows(**common, every_rows=self.every_rows)
        if self.shape is not None:
            return Windowed(**common, shape=self.shape)
        assert self.gap_us is not None
        return Sessions(**common, gap_us=self.gap_us, joins_late=self.lateness_us is not None)

    def _split(self, worked: DataFrame) -> Outputs:
        """Count the late rows, and make an output of them if that was requested."""
        late = F.col(DROPPED)
        if self.side:
            late = F.when(F.col(LATE).isNotNull(), 1).otherwise(F.coalesce(late, F.lit(0)))
        counted = worked.observe(f"{LATE_ROWS}{next(_numbers)}", F.sum(late).alias(LATE_ROWS))
        if not self.side:
            return Outputs.of(counted.where(F.col(MAIN).isNotNull()).select(f"{MAIN}.*"))
        return Outputs(counted.where(F.col(DROPPED).isNull()).drop(DROPPED), (MAIN, LATE))

    def _check_aggregates(self, aggregates: Mapping[str, Aggregate], columns: pa.Schema) -> None:
        if not aggregates:
            raise BadQuery(
                f"agg() has no aggregate; give one, such as agg(orders=count()). {NOTHING_WRITTEN}"
            )
        taken = {name.lower() for name in (*self.by, *_RESERVED)}  # Spark's names ignore case
        for name, one in aggregates.items():
            if not isinstance(one, Aggregate):
                raise BadQuery(
                    f"agg({name}=...) takes an aggregate of beadline.event_time, such as count() "
                    f"or sum_of('x'), not {type(one).__name__}. {NOTHING_WRITTEN}"
                )
            if name.lower() in taken:
                raise BadQuery(
                    f"agg({name}=...): the results already have a column of that name. "
                    f"{NOTHING_WRITTEN}"
                )
            taken.add(name.lower())
            if one.column is not None and one.column not in columns.names:
                raise BadQuery(
                    f"agg({name}=...): there is no column {one.column!r}; there are "
                    f"{', '.join(columns.names)}. {NOTHING_WRITTEN}"
                )
            type_ = None if one.column is None else columns.field(one.column).type
            one.state(type_)
            one.result_type(type_)


def nulls_counted(frame: DataFrame, time: str) -> DataFrame:
    """Return a frame whose rows without a time are counted: Spark's windows leave them out."""
    if not frame.schema[time].nullable:  # as with clock="ingestion"
        return frame
    return frame.observe(f"{LATE_ROWS}{next(_numbers)}", _nulls(time))


def _nulls(time: str) -> Column:
    return F.count_if(column_of(time).isNull()).alias(LATE_ROWS)


def _shape(
    size: Duration | None,
    slide: Duration | None,
    session_gap: Duration | None,
    every_rows: int | None,
    offset: Duration,
) -> WindowShape | None:
    """Return the windows' shape; None for sessions and counted rows."""
    given = [size is not None, session_gap is not None, every_rows is not None]
    if sum(given) != 1:
        raise BadQuery(
            "windowed() takes one of size=, session_gap= and every_rows=, "
            f"not {sum(given)} of them. {NOTHING_WRITTEN}"
        )
    if every_rows is not None and (type(every_rows) is not int or every_rows < 1):
        raise BadQuery(
            f"every_rows={every_rows!r}: it must be a number, at least 1. {NOTHING_WRITTEN}"
        )
    if size is None:
        if microseconds("offset", offset, zero=True):
            raise BadQuery(f"offset= can only be used with size=. {NOTHING_WRITTEN}")
        if slide is not None:
            raise BadQuery(f"slide= can only be used with size=. {NOTHING_WRITTEN}")
        return None
    return window_shape("windowed()", size, slide, offset)


def _check_clock(clock: str, time: str | None, late: str, every_rows: int | None) -> None:
    """Refuse combinations of arguments that do not say which time counts."""
    if clock not in ("event", "ingestion", "processing"):
        raise BadQuery(
            f"clock={clock!r}: it must be 'event', 'ingestion' or 'processing'. {NOTHING_WRITTEN}"
        )
    if late not in ("drop", "side"):
        raise BadQuery(f"late={late!r}: it must be 'drop' or 'side'. {NOTHING_WRITTEN}")
    if clock == "event" and time is None and every_rows is None:
        raise BadQuery(f"windowed() needs time=, the column of the rows' time. {NOTHING_WRITTEN}")
    if clock != "event" and time is not None:
        raise BadQuery(f"clock={clock!r} uses no column: leave time= out. {NOTHING_WRITTEN}")
    if clock != "event" and every_rows is not None:
        raise BadQuery(
            f"clock={clock!r} has no meaning with every_rows=, which counts rows. {NOTHING_WRITTEN}"
        )


def _check_lateness(
    clock: str,
    every_rows: int | None,
    watermark: Duration | None,
    allowed_lateness: Duration | None,
    early: Duration | None,
    late: str,
) -> None:
    """Refuse arguments that have no meaning where no row can be late."""
    if clock != "processing" and every_rows is None:
        return
    asked = {
        "watermark=": watermark,
        "allowed_lateness=": allowed_lateness,
        "late='side'": "" if late == "side" else None,
        "early=": early if every_rows is not None else None,
    }
    for name, value in asked.items():
        if value is not None:
            why = "in processing time no row is late"
            if every_rows is not None:
                why = "a window of a number of rows fires when it is full, and no row is late"
            raise BadQuery(f"{name} has no meaning here: {why}. {NOTHING_WRITTEN}")


def _check_key(name: str, schema: StructType) -> None:
    type_ = check_plain("windowed()", "by", name, schema)
    if name.lower() in _RESERVED:
        raise BadQuery(
            f"by={name!r}: the results already have a column of that name: rename it. "
            f"{NOTHING_WRITTEN}"
        )
    check_binary(f"by={name!r}", type_)


def _arrow_schema(frame: DataFrame) -> pa.Schema:
    try:
        return to_arrow(frame)
    except PySparkTypeError as error:
        raise BadQuery(
            "windowed(): the frame has a column that Spark cannot convert for Python: select only "
            f"the columns that are needed. {error}. {NOTHING_WRITTEN}"
        ) from error


def _key(frame: DataFrame, name: str) -> Column:
    """Return a key's column for hashing: 0.0 and -0.0 are one key."""
    column = column_of(name)
    return column + F.lit(0.0) if frame.schema[name].dataType.typeName() in FLOATS else column
