"""``keyed_process(...)``: a ``KeyedProcess`` on a stream, on Spark's own ``StatefulProcessor``.

The user's key is Spark's grouping key: state, timers and expiry are Spark's own. The row is passed
as a single struct column. So its time column carries no watermark metadata at the operator, by
which Spark would drop late rows before the process sees them.
"""

from __future__ import annotations

import copy
import itertools
import re
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any, Literal

from pyspark.sql import functions as F
from pyspark.sql.streaming.stateful_processor import StatefulProcessor
from pyspark.sql.types import (
    LongType,
    Row,
    StructField,
    StructType,
    TimestampType,
)

from beadline.errors import NOTHING_WRITTEN, BadQuery
from beadline.event_time.chains import check_follows
from beadline.event_time.columns import (
    FLOATS,
    WATERMARK_KEY,
    check_binary,
    check_no_watermark,
    check_plain,
    check_time,
    column_of,
    row_hash,
)
from beadline.event_time.durations import Duration, milliseconds
from beadline.event_time.keyed import (
    DROPPED_COUNT,
    EPOCH_START,
    KeyedPlan,
    KeyedProcess,
    KeyedRows,
    has,
)
from beadline.event_time.keyed_state import KeyedColumns, KeyedStates, StateDeclaration, fresh
from beadline.event_time.operator import EVENT_TIME, PROCESSING_TIME, Clock
from beadline.event_time.watermarks import marked
from beadline.event_time.windowed import LATE_ROWS
from beadline.outputs import LATE, MAIN, Outputs

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame
    from pyspark.sql.streaming.stateful_processor import (
        ExpiredTimerInfo,
        StatefulProcessorHandle,
        TimerValues,
    )

KeyedClock = Literal["event", "processing"]
OutputColumns = str | StructType
_ROW, _TIE = "beadline_row", "beadline_tie"
_NO_MARK: dict[str, Any] = {}
_OUTPUT = re.compile(r"[A-Za-z_][A-Za-z0-9_]*\Z")
_numbers = itertools.count()


def keyed_process(
    frame: DataFrame,
    process: KeyedProcess,
    *,
    by: Sequence[str] | str,
    outputs: Mapping[str, OutputColumns] | OutputColumns,
    time: str | None = None,
    watermark: Duration | None = None,
    clock: KeyedClock = "event",
    late: Literal["process", "side", "drop"] = "process",
    order: Sequence[str] | str | None = None,
) -> Outputs:
    """Run a ``KeyedProcess`` on a stream, key by key.

    ``by`` names the key columns. ``outputs`` declares the outputs that the process emits to, with
    their columns: ``{"main": "user string, n bigint", "alerts": "user string"}``, or only the
    columns if ``main`` is the only output; ``.to(sink, output="alerts")`` writes an output to a
    sink, and all of them are written in the same epoch.

    With ``clock="event"`` timers follow the watermark (the largest ``time`` seen, less
    ``watermark``). With ``clock="processing"`` they follow the time at which epochs were planned,
    no row is late, and states may have a ``ttl=``. Spark allows one clock per operator.

    A row is late if its time is before the watermark. ``late="process"`` treats it like any other
    row; ``"side"`` sends it to the output ``late``, with the columns of ``frame``; ``"drop"`` only
    counts it.

    The rows of a key in an epoch are processed in the order of ``time``, or of the columns in
    ``order``: the same rows always come in the same order. ``order=()`` leaves them unsorted.

    >>> counts = keyed_process(clicks, Visits(), by="user", outputs="user string, visits bigint",
    ...                        time="ts", watermark="5 minutes")
    >>> exactly_once(counts, "visits").to(table)
    """
    plan = keyed_plan(process, by, outputs, time, watermark, clock, late, order)
    _check_columns(frame, plan, watermark)
    if late != "process":
        check_follows(f"keyed_process(late={late!r})", frame)
    if time is not None and watermark is not None:
        frame = marked(frame, time, milliseconds("watermark", watermark, zero=True))
    return _split(_worked(frame, process, plan), plan)


def keyed_plan(
    process: KeyedProcess,
    by: Sequence[str] | str,
    outputs: Mapping[str, OutputColumns] | OutputColumns,
    time: str | None,
    watermark: Duration | None,
    clock: KeyedClock,
    late: str,
    order: Sequence[str] | str | None,
) -> KeyedPlan:
    """Return the settings of a process, or refuse them; the rows' columns are not checked here."""
    _check_process(process)
    _check_clock(clock, time, watermark, late, order)
    return KeyedPlan(
        by=(by,) if isinstance(by, str) else tuple(by),
        outputs=_outputs(outputs, late),
        states=_states(process, ttl=clock == "processing"),
        order=_order(order, time),
        time=time,
        late=late,
    )


# -- on Spark


def _worked(frame: DataFrame, process: KeyedProcess, plan: KeyedPlan) -> DataFrame:
    """Return a frame with a column for each output, all but one of them null in each row."""
    columns = [column_of(name) for name in frame.columns]
    rows = frame.select(
        *(_key(frame, name).alias(name, metadata=_NO_MARK) for name in plan.by),
        F.struct(*columns).alias(_ROW),
        row_hash(frame).alias(_TIE),
    )
    structs = {name: columns.schema for name, columns in plan.outputs.items()}
    if plan.late == "side":
        structs[LATE] = _nullable(frame.schema)
    fields = [StructField(name, struct) for name, struct in structs.items() if struct is not None]
    processor = _KeyedProcessor(process, plan, frame.schema, tuple(structs))
    return rows.groupBy(*map(column_of, plan.by)).transformWithState(
        processor,
        outputStructType=StructType([*fields, StructField(DROPPED_COUNT, LongType())]),
        outputMode="append",
        timeMode=PROCESSING_TIME if plan.time is None else EVENT_TIME,
    )


def _split(worked: DataFrame, plan: KeyedPlan) -> Outputs:
    """Count the late rows, and separate the outputs."""
    names = tuple(plan.outputs)
    if plan.late != "process":
        dropped = F.coalesce(F.col(DROPPED_COUNT), F.lit(0))
        if plan.late == "side":
            dropped = F.when(F.col(LATE).isNotNull(), 1).otherwise(dropped)
            names = (*names, LATE)
        counted = F.sum(dropped).alias(LATE_ROWS)
        worked = worked.observe(f"{LATE_ROWS}.keyed{next(_numbers)}", counted)
    rows = worked.where(F.col(DROPPED_COUNT).isNull()).drop(DROPPED_COUNT)
    if names == (MAIN,):
        return Outputs.of(rows.select(f"{MAIN}.*"))
    return Outputs(rows, names)


def _key(frame: DataFrame, name: str) -> Column:
    """Return a column of the key as Spark groups by it: a timestamp as microseconds.

    PySpark compares timestamps in the session's time zone, where the hour that occurs twice when
    the clocks go back is one: rows of two keys would come as those of one.
    """
    column = column_of(name)
    return F.unix_micros(column) if _is_timestamp(frame.schema, name) else column


def _is_timestamp(schema: StructType, name: str) -> bool:
    return isinstance(schema[name].dataType, TimestampType)


def _nullable(schema: StructType) -> StructType:
    """Return a schema without metadata, with all fields nullable."""
    return StructType([StructField(one.name, one.dataType) for one in schema])


class _KeyedProcessor(StatefulProcessor):
    """Spark's side of a process."""

    def __init__(
        self, process: KeyedProcess, plan: KeyedPlan, schema: StructType, outputs: tuple[str, ...]
    ) -> None:
        self.process = process
        self._plan = plan
        self._schema = schema
        self._outputs = outputs

    def init(self, handle: StatefulProcessorHandle) -> None:
        self._keyed = KeyedRows(copy.copy(self.process), self._plan, handle)
        self._row = fresh(self._schema)
        self._key = [
            _time if _is_timestamp(self._schema, name) else fresh(self._schema[name].dataType)
            for name in self._plan.by
        ]
        self._out = Row(*self._outputs, DROPPED_COUNT)

    def handleInputRows(  # noqa: N802
        self,
        key: Any,
        rows: Iterator[Any],
        timerValues: TimerValues,  # noqa: N803
    ) -> Iterator[Any]:
        assert self._row is not None
        taken = [(self._row(row[_ROW]), row[_TIE]) for row in rows]
        yield from self._tagged(self._keyed.rows(self._own(key), taken, _clock(timerValues)))

    def handleExpiredTimer(  # noqa: N802
        self,
        key: Any,
        timerValues: TimerValues,  # noqa: N803
        expiredTimerInfo: ExpiredTimerInfo,  # noqa: N803
    ) -> Iterator[Any]:
        expired_ms = expiredTimerInfo.getExpiryTimeInMs()
        yield from self._tagged(self._keyed.timer(self._own(key), expired_ms, _clock(timerValues)))

    def close(self) -> None:
        """Do nothing: no resources are held."""

    def _own(self, key: Any) -> list[Any]:
        """Return the key as the process sees it: Spark passes a timer's key with other types."""
        pairs = zip(self._key, key, strict=True)
        return [value if value is None or own is None else own(value) for own, value in pairs]

    def _tagged(self, rows: Iterator[tuple[str, Any]]) -> Iterator[Any]:
        names = (*self._outputs, DROPPED_COUNT)
        for output, row in rows:
            yield self._out(*(row if name == output else None for name in names))


def _time(at_us: int) -> datetime:
    return EPOCH_START + timedelta(microseconds=at_us)


def _clock(values: TimerValues) -> Clock:
    return Clock(values.getCurrentWatermarkInMs(), values.getCurrentProcessingTimeInMs())


# -- checks before anything runs


def _check_process(process: Any) -> None:
    if not isinstance(process, KeyedProcess):
        hint = "pass an instance, not the class: " if isinstance(process, type) else ""
        name = process.__name__ if isinstance(process, type) else type(process).__name__
        raise BadQuery(
            f"keyed_process() takes a KeyedProcess; {hint}{name}"
            f"{'()' if hint else ' is not one'}. {NOTHING_WRITTEN}"
        )
    if not (has(process, "process") or has(process, "process_rows")):
        raise BadQuery(
            f"{type(process).__name__} has neither process() nor process_rows(): no row would be "
            f"processed. {NOTHING_WRITTEN}"
        )


def _states(process: KeyedProcess, *, ttl: bool) -> dict[str, StateDeclaration]:
    """Return the states that the process declares; on a copy, so that they are not pickled."""
    states = KeyedStates(type(process).__name__, ttl=ttl)
    copy.copy(process).open(states)
    return states.declared


def _outputs(given: Any, late: str) -> dict[str, KeyedColumns]:
    if isinstance(given, str | StructType):
        given = {MAIN: given}
    if not isinstance(given, Mapping) or not given:
        raise BadQuery(
            "outputs= takes the columns of each output: {'main': 'user string, n bigint'}. "
            f"{NOTHING_WRITTEN}"
        )
    found: dict[str, KeyedColumns] = {}
    for name, columns in given.items():
        what = f"output {name!r}"
        if not isinstance(name, str) or not _OUTPUT.match(name) or name == DROPPED_COUNT:
            raise BadQuery(
                f"{what}: an output's name consists of letters, digits and _. {NOTHING_WRITTEN}"
            )
        if name == LATE and late == "side":
            raise BadQuery(
                f"{what} is the output to which late='side' sends late rows: give yours another "
                f"name, or leave late='side' out and emit to it yourself. {NOTHING_WRITTEN}"
            )
        found[name] = KeyedColumns.of(what, columns)
        if found[name].plain:
            raise BadQuery(
                f"{what}: {columns!r} names no column, as in 'user string, n bigint'. "
                f"{NOTHING_WRITTEN}"
            )
    return found


def _order(order: Sequence[str] | str | None, time: str | None) -> tuple[str, ...]:
    if order is None:
        return () if time is None else (time,)
    return (order,) if isinstance(order, str) else tuple(order)


def _check_clock(
    clock: Any, time: str | None, watermark: Duration | None, late: Any, order: Any
) -> None:
    """Refuse arguments that make no sense together."""
    if clock not in ("event", "processing"):
        raise BadQuery(
            f"clock={clock!r}: it must be 'event' or 'processing'. In Spark all timers of an "
            "operator use one clock; for the other, run a second keyed_process() in a query of "
            f"its own. {NOTHING_WRITTEN}"
        )
    if late not in ("process", "side", "drop"):
        raise BadQuery(f"late={late!r}: it must be 'process', 'side' or 'drop'. {NOTHING_WRITTEN}")
    if clock == "event" and time is None:
        raise BadQuery(
            "keyed_process() needs time=, the column of the rows' time, or clock='processing'. "
            f"{NOTHING_WRITTEN}"
        )
    if clock == "event":
        return
    for name, value in {"time": time, "watermark": watermark}.items():
        if value is not None:
            raise BadQuery(
                f"{name}= belongs to clock='event': with clock='processing' timers follow the time "
                f"of the epochs, and no row is late. {NOTHING_WRITTEN}"
            )
    if late != "process":
        raise BadQuery(
            f"late={late!r} has no meaning with clock='processing': no row is late. "
            f"{NOTHING_WRITTEN}"
        )
    if order is None:
        raise BadQuery(
            "keyed_process(clock='processing') needs order=, the columns by which the rows of a "
            "key are sorted, such as order='offset': otherwise an epoch that is computed again "
            "might process them in another order. order=() declares that the order does not "
            f"matter. {NOTHING_WRITTEN}"
        )


def _check_columns(frame: DataFrame, plan: KeyedPlan, watermark: Duration | None) -> None:
    if len(set(frame.schema.names)) < len(frame.schema):
        raise BadQuery(f"the rows have two columns of the same name. {NOTHING_WRITTEN}")
    if not plan.by:
        raise BadQuery(f"by= names no column: a process needs a key. {NOTHING_WRITTEN}")
    _check_time(plan, frame.schema, watermark)
    for argument, names in (("by", plan.by), ("order", plan.order)):
        for name in names:
            _check_sortable(argument, name, frame.schema)


def _check_time(plan: KeyedPlan, schema: StructType, watermark: Duration | None) -> None:
    if plan.time is None:
        return
    check_time("keyed_process()", "time", plan.time, schema)
    if watermark is None and WATERMARK_KEY not in schema[plan.time].metadata:
        raise BadQuery(
            f"{plan.time!r} needs a watermark, or no timer would ever fire: "
            "keyed_process(..., watermark='5 minutes'), the longest that rows may be out of order. "
            f"{NOTHING_WRITTEN}"
        )
    if watermark is not None:
        check_no_watermark("keyed_process()", plan.time, schema)


def _check_sortable(argument: str, name: str, schema: StructType) -> None:
    type_ = check_plain("keyed_process()", argument, name, schema)
    if argument == "by":
        check_binary(f"by={name!r}", type_)
    if type_.typeName() in FLOATS:
        raise BadQuery(
            f"{argument}={name!r} is of type {type_.simpleString()}, in which equal values may "
            f"have different bytes: cast it to a decimal or a string. {NOTHING_WRITTEN}"
        )
