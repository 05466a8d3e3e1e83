"""``windowed(...)``: what a user types for windows over event time.

Where nothing is asked for that Spark's own aggregation does not have, that is what runs, at its
speed. Lateness, a late output, early results and aggregates of one's own take an operator of ours
on Spark's state store (see ``windows`` and ``sessions``), with the same columns in its results.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from pyspark.errors import PySparkTypeError
from pyspark.sql import functions as F
from pyspark.sql.types import (
    ArrayType,
    DataType,
    MapType,
    StructType,
    TimestampNTZType,
    TimestampType,
    VariantType,
)

from beadline.errors import NOTHING_WRITTEN, BadQuery
from beadline.event_time.aggregates import Aggregate, column_of
from beadline.event_time.codec import (
    DELETED,
    DROPPED,
    END,
    LATE,
    MAIN,
    NUMBER,
    REVISION,
    START,
    WindowOperator,
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
from beadline.event_time.windows import Windowed, WindowShape
from beadline.outputs import Outputs

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import Column, DataFrame

WindowClock = Literal["event", "ingestion", "processing"]
INGESTED = "ingested_at"
WATERMARK_KEY = "spark.watermarkDelayMs"  # Spark's mark on a column that has a watermark
LATE_ROWS = "beadline.late_rows"
_WINDOW = "beadline_window"
_RESERVED = (START, END, REVISION, DELETED, NUMBER)
_BINARY = "UTF8_BINARY"
_FLOATS = ("float", "double")
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
    """Cut a stream into windows; ``.agg(...)`` says what is computed of each.

    ``size`` alone makes tumbling windows, with ``slide`` they overlap; ``session_gap`` makes one
    window of rows that are at most that apart; ``every_rows=100`` makes one of each hundred rows
    of a key. ``time`` is the timestamp column that windows go by.

    A window fires when the watermark, the largest time seen less ``watermark``, has passed its end.
    With ``allowed_lateness`` it fires again, with the corrected result and a higher ``revision``,
    for rows that come later; the key and ``window_start`` identify a result, so that an upsert is
    always right. A session whose start has changed is shown once more under the old one, with
    ``deleted``. What comes later than that goes to the output ``late`` with ``late="side"``, and is
    counted in any case. ``early="10 seconds"`` shows results so far, too, at that interval.

    ``clock="ingestion"`` goes by the time at which the epoch was planned, as a column
    ``ingested_at``; ``"processing"`` by the clock on the wall, whatever the rows say.

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
        watermark = "0 seconds" if watermark is None else watermark
    rows = WindowedRows(
        frame=frame,
        time=time,
        by=keys,
        shape=shape,
        gap_us=None if session_gap is None else microseconds("session_gap", session_gap),
        every_rows=every_rows,
        watermark_ms=None if watermark is None else milliseconds("watermark", watermark, zero=True),
        lateness_us=None
        if allowed_lateness is None
        else milliseconds("allowed_lateness", allowed_lateness, zero=True) * 1000,
        side=late == "side",
        early_ms=None if early is None else milliseconds("early", early),
        processing_time=clock == "processing",
    )
    rows.check()
    return rows


@dataclass(frozen=True)
class WindowedRows:
    """Rows in windows, of which something is to be computed."""

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
        """Refuse what cannot run, before anything is written."""
        columns = {field.name: field for field in self.frame.schema}
        if len(set(self.by)) < len(self.by):
            raise BadQuery(f"by={list(self.by)!r} names a column twice. {NOTHING_WRITTEN}")
        for name in self.by:
            _check_key(name, columns[name].dataType if name in columns else None, list(columns))
        if self.time is not None:
            check_time(self.time, columns[self.time].dataType if self.time in columns else None)
        if self.time is None or self.every_rows is not None:
            return
        marked = WATERMARK_KEY in columns[self.time].metadata
        if self.watermark_ms is None and not marked:
            raise BadQuery(
                f"windows over {self.time!r} need a watermark, or none would ever be complete: "
                f"windowed(..., watermark='5 minutes'), the longest that rows may be out of order. "
                f"{NOTHING_WRITTEN}"
            )
        if self.watermark_ms is not None and marked:
            raise BadQuery(
                f"column {self.time!r} has a watermark already: leave watermark= out, or "
                f"withWatermark() before it. {NOTHING_WRITTEN}"
            )

    def agg(self, **aggregates: Aggregate) -> Outputs:
        """Compute these of each window; the results' columns have the names that you give."""
        frame = self._watermarked()
        schema = _arrow_schema(frame)
        self._check_aggregates(aggregates, schema)
        if self._is_native():
            columns = {name: one.native(str(self.time)) for name, one in aggregates.items()}
            native = {name: one for name, one in columns.items() if one is not None}
            if len(native) == len(aggregates):
                return Outputs.of(self._native(frame, native))
        operator = self._operator(schema, aggregates)
        keys = [_key(frame, name) for name in self.by]
        mode = PROCESSING_TIME if self.processing_time else EVENT_TIME
        mode = NO_TIME if self.every_rows is not None else mode
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
        """Show the ``n`` rows of each window with the largest values, one row for each ``rank``.

        ``columns`` are those of the rows that show, all unless given. Rows of equal values are
        ranked by these columns, from left to right, the smaller first; null and NaN come last. A
        window that fires again shows all of its ranks again: ``by``, ``window_start`` and ``rank``
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

    def _native(self, frame: DataFrame, aggregates: Mapping[str, Column]) -> DataFrame:
        """Return Spark's own windows, with the columns that ours have."""
        time = column_of(str(self.time))
        if self.shape is None:
            window = F.session_window(time, f"{self.gap_us} microseconds")
        else:
            lengths = (self.shape.size_us, self.shape.slide_us, self.shape.offset_us)
            window = F.window(time, *(f"{length} microseconds" for length in lengths))
        keys = [column_of(name) for name in self.by]
        computed = [one.alias(name) for name, one in aggregates.items()]
        results = frame.groupBy(*keys, window.alias(_WINDOW)).agg(*computed)
        return results.select(
            *keys,
            F.col(f"{_WINDOW}.start").alias(START),
            F.col(f"{_WINDOW}.end").alias(END),
            *(column_of(name) for name in aggregates),
            F.lit(0).cast("bigint").alias(REVISION),
            *([F.lit(False).alias(DELETED)] if self.shape is None else []),
        )

    # -- ours

    def _watermarked(self) -> DataFrame:
        if self.watermark_ms is None or self.time is None:
            return self.frame
        return self.frame.withWatermark(self.time, f"{self.watermark_ms} milliseconds")

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
        """Count what is late, and make an output of it if that was asked for."""
        late = F.col(DROPPED)
        if self.side:
            late = F.when(F.col(LATE).isNotNull(), 1).otherwise(F.coalesce(late, F.lit(0)))
        counted = worked.observe(f"{LATE_ROWS}{next(_numbers)}", F.sum(late).alias(LATE_ROWS))
        if not self.side:
            return Outputs.of(counted.where(F.col(MAIN).isNotNull()).select(f"{MAIN}.*"))
        return Outputs(counted.where(F.col(DROPPED).isNull()).drop(DROPPED), (MAIN, LATE))

    def _check_aggregates(self, aggregates: Mapping[str, Aggregate], columns: pa.Schema) -> None:
        if not aggregates:
            raise BadQuery(f"agg() computes nothing: agg(orders=count()). {NOTHING_WRITTEN}")
        taken = {name.lower() for name in (*self.by, *_RESERVED)}  # Spark's names have no case
        for name, one in aggregates.items():
            if not isinstance(one, Aggregate):
                raise BadQuery(
                    f"agg({name}=...) takes an aggregate of beadline.event_time, such as count() "
                    f"or sum_of('x'), not {type(one).__name__}. {NOTHING_WRITTEN}"
                )
            if name.lower() in taken:
                raise BadQuery(
                    f"agg({name}=...): the results have a column of that name already. "
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


def _shape(
    size: Duration | None,
    slide: Duration | None,
    session_gap: Duration | None,
    every_rows: int | None,
    offset: Duration,
) -> WindowShape | None:
    """Return the windows' shape; none for sessions and counted rows."""
    given = [size is not None, session_gap is not None, every_rows is not None]
    if sum(given) != 1:
        raise BadQuery(
            "windowed() takes one of size=, session_gap= and every_rows=, "
            f"not {sum(given)} of them. {NOTHING_WRITTEN}"
        )
    if every_rows is not None and (type(every_rows) is not int or every_rows < 1):
        raise BadQuery(f"every_rows={every_rows!r}: a number, at least 1. {NOTHING_WRITTEN}")
    offset_us = microseconds("offset", offset, zero=True)
    if size is None:
        if offset_us:
            raise BadQuery(f"offset= belongs to size=. {NOTHING_WRITTEN}")
        if slide is not None:
            raise BadQuery(f"slide= belongs to size=. {NOTHING_WRITTEN}")
        return None
    size_us = microseconds("size", size)
    slide_us = size_us if slide is None else microseconds("slide", slide)
    if size_us % slide_us:
        raise BadQuery(
            f"slide={slide!r} does not divide size={size!r}: rows would be in more windows at some "
            f"times than at others. Choose one of which the size is a multiple. {NOTHING_WRITTEN}"
        )
    return WindowShape(size_us, slide_us, offset_us % slide_us)


def _check_clock(clock: str, time: str | None, late: str, every_rows: int | None) -> None:
    """Refuse arguments of which it is not clear what rows go by."""
    if clock not in ("event", "ingestion", "processing"):
        raise BadQuery(f"clock={clock!r}: 'event', 'ingestion' or 'processing'. {NOTHING_WRITTEN}")
    if late not in ("drop", "side"):
        raise BadQuery(f"late={late!r}: 'drop' or 'side'. {NOTHING_WRITTEN}")
    if clock == "event" and time is None and every_rows is None:
        raise BadQuery(f"windowed() needs time=, the column of the rows' time. {NOTHING_WRITTEN}")
    if clock != "event" and time is not None:
        raise BadQuery(f"clock={clock!r} goes by no column: leave time= out. {NOTHING_WRITTEN}")
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
    """Refuse what has no meaning where no row is late."""
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
            why = "no row is late for a clock on the wall"
            if every_rows is not None:
                why = "a window of so many rows shows when it has them, and no row is late"
            raise BadQuery(f"{name} has no meaning here: {why}. {NOTHING_WRITTEN}")


def check_time(name: str, type_: DataType | None) -> None:
    """Refuse a column that is no timestamp."""
    if type_ is None:
        raise BadQuery(f"time={name!r}: there is no such column. {NOTHING_WRITTEN}")
    if isinstance(type_, TimestampType):
        return
    hint = f"cast it: .withColumn({name!r}, col({name!r}).cast('timestamp'))"
    if isinstance(type_, TimestampNTZType):
        hint = f"its time zone is not known: {hint}, which takes it for the session's"
    raise BadQuery(
        f"time={name!r} is of type {type_.simpleString()}, and windows need a timestamp; {hint}. "
        f"{NOTHING_WRITTEN}"
    )


def _check_key(name: str, type_: DataType | None, there: list[str]) -> None:
    if type_ is None:
        raise BadQuery(
            f"by={name!r}: there is no such column; there are {', '.join(there)}. {NOTHING_WRITTEN}"
        )
    if name.lower() in _RESERVED:
        raise BadQuery(
            f"by={name!r}: the results have a column of that name already: rename it. "
            f"{NOTHING_WRITTEN}"
        )
    if isinstance(type_, ArrayType | MapType | StructType | VariantType):
        raise BadQuery(
            f"by={name!r} is of type {type_.simpleString()}: a key is a plain value. "
            f"{NOTHING_WRITTEN}"
        )
    if getattr(type_, "collation", _BINARY) != _BINARY:
        raise BadQuery(
            f"by={name!r} is of type {type_.simpleString()}: texts that are equal by their "
            f"collation would be several keys. Use lower(), or collate it as {_BINARY}. "
            f"{NOTHING_WRITTEN}"
        )


def _arrow_schema(frame: DataFrame) -> pa.Schema:
    try:
        return to_arrow(frame)
    except PySparkTypeError as error:
        raise BadQuery(
            "windowed(): the frame has a column that Spark cannot hand to Python: select those "
            f"that are needed. {error}. {NOTHING_WRITTEN}"
        ) from error


def _key(frame: DataFrame, name: str) -> Column:
    """Return a key's column for hashing: 0.0 and -0.0 are one key."""
    column = column_of(name)
    return column + F.lit(0.0) if frame.schema[name].dataType.typeName() in _FLOATS else column
