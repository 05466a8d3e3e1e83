"""Shared by all kinds of windows: their rows in the state, their results, and their outputs."""

from __future__ import annotations

import re
import struct
from abc import abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import TYPE_CHECKING, Any
from zlib import crc32

import numpy as np
import pyarrow as pa

from beadline.event_time.aggregates import EXACT, Aggregate, Partial, held_as
from beadline.event_time.groups import Bools, Ints, plain_type
from beadline.event_time.keys import microseconds_of
from beadline.event_time.operator import Clock, Operator
from beadline.outputs import LATE, MAIN

if TYPE_CHECKING:
    from pyspark.sql.streaming.stateful_processor import StatefulProcessorHandle, ValueState
    from pyspark.sql.types import StructType

_TIMESTAMP = pa.timestamp("us", tz="UTC")
START, END, NUMBER, REVISION = "window_start", "window_end", "window_number", "revision"
DELETED = "deleted"  # of a session that has become part of another
DROPPED = "dropped"
DROPPED_UNTIL = "dropped"  # the state that has the time up to which windows were dropped
NEVER = -(2**62)
WINDOW_BOUNDS = (pa.field(START, _TIMESTAMP), pa.field(END, _TIMESTAMP))
WINDOW_NUMBER = (pa.field(NUMBER, pa.int64()),)


@dataclass
class Window:
    """One window of a key, as held in the state. ``revision`` is that of its next result."""

    key: tuple[Any, ...]
    start: int
    end: int
    revision: int
    partials: list[Partial]
    deleted: bool = False


class WindowCodec:
    """Converts windows to rows of the state and to results, and back."""

    def __init__(
        self,
        schema: pa.Schema,
        by: Sequence[str],
        aggregates: dict[str, Aggregate],
        *,
        bounds: Sequence[pa.Field] = WINDOW_BOUNDS,
        deletes: bool = False,
    ) -> None:
        """``schema`` is that of the input rows; ``bounds`` are the columns that name a window."""
        self._names = list(aggregates)
        self._aggregates = list(aggregates.values())
        self._bounds, self._deletes = len(bounds), deletes
        types = [one.state(_type(schema, one.column)) for one in self._aggregates]
        self._widths = [len(each) for each in types]
        self.key_fields = [
            pa.field(f"key_{at}", plain_type(schema.field(name).type)) for at, name in enumerate(by)
        ]
        self.partial_fields = [
            pa.field(state_name(f"{name}_{one.kind}_{at}"), type_)
            for (name, one), each in zip(aggregates.items(), types, strict=True)
            for at, type_ in enumerate(each)
        ]
        self._owners = [name for name, each in zip(aggregates, types, strict=True) for _ in each]
        results = (
            pa.field(name, one.result_type(_type(schema, one.column)))
            for name, one in aggregates.items()
        )
        self.result_schema = pa.schema(
            [
                *(schema.field(name) for name in by),
                *bounds,
                *results,
                pa.field(REVISION, pa.int64()),
                *([pa.field(DELETED, pa.bool_())] if deletes else []),
            ]
        )

    @property
    def state_schema(self) -> StructType:
        """The columns of a window in the state."""
        numbers = [pa.field(name, pa.int64()) for name in ("start_us", "end_us", "revision")]
        return spark_schema([*numbers, *self.key_fields, *self.partial_fields])

    def state_of(self, window: Window, revision: int) -> tuple[Any, ...]:
        """Return a window as a row of the state."""
        return (window.start, window.end, revision, *window.key, *self.values(window))

    def window(self, held: Sequence[Any]) -> Window:
        """Return a row of the state as a window."""
        start, end, revision, *rest = held
        keys = len(self.key_fields)
        return Window(tuple(rest[:keys]), start, end, revision, self.partials(rest[keys:]))

    def values(self, window: Window) -> list[Any]:
        """Return a window's partials as values of the state."""
        values = [value for partial in window.partials for value in partial]
        found = []
        for name, field, value in zip(self._owners, self.partial_fields, values, strict=True):
            try:
                found.append(held_as(value, field.type))
            except OverflowError:
                raise OverflowError(
                    f"{name!r} of a window is a number that {field.type} "
                    "cannot hold. Nothing of this epoch is written. Use a wider type: cast the "
                    "column to decimal(38, 0), or to double"
                ) from None
        return found

    def partials(self, values: Sequence[Any]) -> list[Partial]:
        """Return values of the state as partials."""
        partials, at = [], 0
        for width in self._widths:
            partials.append(tuple(values[at : at + width]))
            at += width
        return partials

    def merged(self, one: list[Partial], other: list[Partial]) -> list[Partial]:
        """Merge the partials of two windows."""
        pairs = zip(self._aggregates, one, other, strict=True)
        return [aggregate.merge(mine, new) for aggregate, mine, new in pairs]

    def results(self, windows: Sequence[Window]) -> pa.Table:
        """Return windows as rows for the sinks."""
        for window in windows:
            self.values(window)
        columns = [
            *zip(*(window.key for window in windows), strict=True),
            *([window.start for window in windows], [window.end for window in windows]),
        ]
        columns = columns[: len(self.key_fields) + self._bounds]
        for at, aggregate in enumerate(self._aggregates):
            columns.append([aggregate.result(window.partials[at]) for window in windows])
        columns.append([window.revision for window in windows])
        if self._deletes:
            columns.append([window.deleted for window in windows])
        arrays = [
            _array(column, field.type)
            for column, field in zip(columns, self.result_schema, strict=True)
        ]
        return pa.table(arrays, schema=self.result_schema)


@dataclass(kw_only=True)
class WindowOperator(Operator):
    """The common base of tumbling and sliding windows, sessions and counted windows."""

    time: str | None  # None for processing time
    by: tuple[str, ...]
    aggregates: dict[str, Aggregate]  # by the name of their results
    schema: pa.Schema  # of the input rows
    lateness_us: int = 0
    keeps_late: bool = False
    early_ms: int | None = None
    processing_time: bool = False

    @property
    def ordered(self) -> bool:
        """If one of the aggregates is."""
        pairs = ((one, _type(self.schema, one.column)) for one in self.aggregates.values())
        return any(one.ordered(type_) for one, type_ in pairs)

    @property
    @abstractmethod
    def divided(self) -> str:
        """By what rows are divided into windows, such as their size."""

    @property
    def place(self) -> StructType:
        """The key of an entry in the state: of a user's key, or of one of its windows.

        Its name has what the entries were made with. So a job that divides its rows otherwise is
        refused before its first epoch, and does not take the old windows for its own.
        """
        return place_of(f"{self.divided}, by={self.by!r}, time={self.time!r}")

    def use(self, codec: WindowCodec) -> None:
        """Use this codec for state and results."""
        self.codec = codec
        self.output = output_schema(codec.result_schema, self.schema if self.keeps_late else None)

    def open(self, handle: StatefulProcessorHandle) -> None:
        """Declare the state variables that all kinds of windows have."""
        if self.processing_time:
            self._newest = handle.getValueState("newest", "seen_ms bigint")
        else:
            self._dropped = handle.getValueState(DROPPED_UNTIL, "until_us bigint")

    def now_us(self, clock: Clock) -> int:
        """Return the current time of the windows' clock; ``NEVER`` before the first watermark.

        It never goes back: a machine's clock may, and would open windows again that have fired.
        """
        now_ms = clock.watermark_ms
        if self.processing_time:
            now_ms, seen = clock.now_ms, self._newest.get()
            if seen is not None and seen[0] >= now_ms:
                now_ms = seen[0]
            else:
                self._newest.update((now_ms,))
        return now_ms * 1000 if now_ms > 0 else NEVER

    def gone_us(self, now_us: int) -> int:
        """Return the time up to which windows that have ended are gone.

        It never goes back: with a longer lateness than before, a window that was dropped would
        begin again with the rows that come now, and replace the complete result.
        """
        gone_us = now_us - self.lateness_us
        dropped = None if self.processing_time else self._dropped.get()
        return gone_us if dropped is None else max(gone_us, dropped[0])

    def note_dropped(self, now_us: int) -> None:
        """Remember that windows were dropped."""
        if not self.processing_time:
            self._dropped.update((self.gone_us(now_us),))

    def early_is_due(self, early: ValueState, clock: Clock) -> bool:
        """Whether it is time to emit early results; ``early`` holds when they were last emitted."""
        last = early.get()
        # A clock that was set back must not hold them up.
        if last is not None and 0 <= clock.now_ms - last[0] < (self.early_ms or 0):
            return False
        early.update((clock.now_ms,))
        return last is not None

    def times(self, rows: pa.Table, now_us: int) -> tuple[Ints, Bools]:
        """Return each row's time in microseconds, and whether it has one."""
        if self.time is None:
            times = np.full(rows.num_rows, now_us, dtype=np.int64)
            return times, np.ones(rows.num_rows, dtype=bool)
        return microseconds_of(rows[self.time]), rows[self.time].is_valid().to_numpy()

    def emit(self, windows: Sequence[Window]) -> Iterator[pa.Table]:
        """Yield the results of windows."""
        if windows:
            yield self._output(self.codec.results(windows), MAIN)

    def late(self, rows: pa.Table) -> Iterator[pa.Table]:
        """Yield the late rows, or only their number."""
        if rows.num_rows and self.keeps_late:
            yield self._output(rows, LATE)
        elif rows.num_rows:
            yield self._output(None, MAIN, rows.num_rows)

    def _output(self, rows: pa.Table | None, tag: str, dropped: int | None = None) -> pa.Table:
        """Return rows in the column of their output; the other columns are null."""
        count = 1 if rows is None else rows.num_rows
        columns = []
        for column in self.output:
            if column.name == tag and rows is not None:
                columns.append(_struct(rows, column.type))
            elif column.name == DROPPED:
                columns.append(pa.array([dropped] * count, pa.int64()))
            else:
                columns.append(pa.nulls(count, column.type))
        return pa.table(columns, schema=self.output)


def output_schema(main: pa.Schema, late: pa.Schema | None) -> pa.Schema:
    """Return a column for each output, and one for the number of dropped late rows.

    In each row only one of them is set.
    """
    columns = [pa.field(MAIN, pa.struct(list(main)))]
    if late is not None:
        columns.append(pa.field(LATE, pa.struct(list(late))))
    return pa.schema([*columns, pa.field(DROPPED, pa.int64())])


def spark_schema(fields: Iterable[pa.Field]) -> StructType:
    """Return Arrow fields as a Spark schema."""
    from pyspark.sql.pandas.types import from_arrow_schema

    return from_arrow_schema(pa.schema(list(fields)))


def place_of(settings: str) -> StructType:
    """Return the column of a map's keys, named after what must not change under its entries."""
    return spark_schema([pa.field(state_name(f"at {settings}"), pa.binary())])


def state_name(text: str) -> str:
    """Return a text as the name of a column of the state: as it is, if Spark can write that there.

    Spark allows letters, digits and _; a checksum tells apart what differs in the other characters.
    """
    if re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", text):
        return text
    shown = re.sub(r"\W+", "_", text, flags=re.ASCII).strip("_")
    return f"{shown}_{crc32(text.encode()):08x}"


def big_endian(time_us: int) -> bytes:
    """Return a time as bytes that sort in the order of time, also before 1970."""
    return struct.pack(">Q", time_us + 2**63)


def time_of(place: bytes) -> int:
    """Return the time that a key of the state begins with."""
    return int(struct.unpack(">Q", bytes(place[:8]))[0]) - 2**63


def timer_at(time_us: int) -> int:
    """Return the millisecond at which Spark's clock, in whole milliseconds, has reached a time.

    Spark's watermark is 0 until there is one: a timer before 1970 would fire at once, and be gone.
    """
    return max(1, -(-time_us // 1000))


def _type(schema: pa.Schema, name: str | None) -> pa.DataType | None:
    return None if name is None else schema.field(name).type


def _array(values: Sequence[Any], type_: pa.DataType) -> pa.Array:
    """Return results as a column; plain numbers become the times that they represent."""
    if pa.types.is_decimal(type_):
        return pa.array([_rounded(value, type_) for value in values], type_)
    if pa.types.is_floating(type_):
        return pa.array([None if value is None else float(value) for value in values], type_)
    return pa.array(list(values), type_)


def _rounded(value: Any, type_: pa.DataType) -> Any:
    if value is None:
        return None
    return EXACT.quantize(Decimal(value), Decimal(1).scaleb(-type_.scale))


def _struct(rows: pa.Table, type_: pa.DataType) -> pa.StructArray:
    arrays = [
        column.combine_chunks().cast(field.type)
        for column, field in zip(rows.columns, type_, strict=True)
    ]
    return pa.StructArray.from_arrays(arrays, fields=list(type_))
