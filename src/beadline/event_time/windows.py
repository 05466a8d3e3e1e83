"""Windows that fire again: tumbling and sliding, with allowed lateness and a late output.

A window *fires* when the watermark has passed its end, and again, with the corrected result and a
higher ``revision``, in each epoch that brings rows for it, until the watermark has passed its end
by the allowed lateness; then its state is dropped. A row is *late* if that holds for all of its
windows: it goes to the late output.

State, per bucket of keys (see ``operator``): two maps, of windows that are *open* and of those that
have *fired*. Their keys begin with the window's end, so that Spark's store has them in the order in
which they are due, and what is not due is not read.
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from itertools import takewhile
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from beadline.event_time.aggregates import Aggregate, Partial
from beadline.event_time.groups import Groups, Ints, group
from beadline.event_time.operator import Clock, Operator

if TYPE_CHECKING:
    from pyspark.sql.streaming.stateful_processor import MapState, StatefulProcessorHandle

TIMESTAMP = pa.timestamp("us", tz="UTC")
START, END, REVISION = "window_start", "window_end", "revision"
MAIN, LATE, DROPPED = "main", "late", "dropped"
_NEVER = -(2**62)


@dataclass(frozen=True)
class WindowShape:
    """Which windows a time falls into; all in microseconds."""

    size_us: int
    slide_us: int
    offset_us: int = 0

    @property
    def windows_per_row(self) -> int:
        """How many windows each row is in."""
        return self.size_us // self.slide_us

    def starts(self, times: Ints) -> Ints:
        """Return the start of the newest window of each time."""
        return times - (times - self.offset_us) % self.slide_us


@dataclass
class Window:
    """One window of one key, as the state holds it. ``revision`` is that of its next result."""

    key: tuple[Any, ...]
    start: int
    end: int
    revision: int
    partials: list[Partial]


@dataclass
class Windowed(Operator):
    """The operator. ``by`` are the key columns; ``aggregates`` by the name of their results."""

    time: str | None  # None for the clock on the wall
    shape: WindowShape
    by: tuple[str, ...]
    aggregates: dict[str, Aggregate]
    schema: pa.Schema  # of the rows that come in
    lateness_us: int = 0
    keeps_late: bool = False
    early_ms: int | None = None
    processing_time: bool = False
    codec: WindowCodec = field(init=False)

    def __post_init__(self) -> None:
        """Work out the columns of state and results."""
        self.codec = WindowCodec(self.schema, self.by, self.aggregates)
        self.output = output_schema(
            self.codec.result_schema, self.schema if self.keeps_late else None
        )

    def open(self, handle: StatefulProcessorHandle) -> None:
        """Name the state."""
        self._handle = handle
        key, value = "at binary", self.codec.state_ddl
        self._open: MapState = handle.getMapState("open", key, value)
        self._fired: MapState | None = None
        if self.lateness_us:
            self._fired = handle.getMapState("fired", key, value)
        if self.early_ms is not None:
            self._changed: MapState = handle.getMapState("changed", key, "nothing boolean")
            self._early = handle.getValueState("early", "told_ms bigint")

    # -- rows

    def process(self, rows: pa.Table, clock: Clock) -> Iterator[pa.Table]:
        """Put the rows into their windows."""
        now_us = self._now_us(clock)
        if self.time is None:
            times = np.full(rows.num_rows, now_us, dtype=np.int64)
            known = np.ones(rows.num_rows, dtype=bool)
        else:
            times = _microseconds(rows[self.time])
            known = ~pc.is_null(rows[self.time]).to_numpy(zero_copy_only=False)
        newest = self.shape.starts(times)
        # A row is late if its newest window is: the others end before it.
        in_time = known & (newest + self.shape.size_us + self.lateness_us > now_us)
        if not in_time.all():
            yield self._late(rows.filter(pa.array(~in_time)))
            rows, times, newest = rows.filter(pa.array(in_time)), times[in_time], newest[in_time]
        if rows.num_rows:
            yield from self._take(self._groups(rows, times, newest, now_us), now_us, clock)

    def _now_us(self, clock: Clock) -> int:
        """Return the time that windows are measured by; before the first watermark, none."""
        now_ms = clock.now_ms if self.processing_time else clock.watermark_ms
        return now_ms * 1000 if now_ms > 0 else _NEVER

    def _groups(self, rows: pa.Table, times: Ints, newest: Ints, now_us: int) -> Groups:
        """Return the rows by key and window: once per window that they are in, and not gone."""
        copies = self.shape.windows_per_row
        if copies > 1:
            which = np.repeat(np.arange(rows.num_rows), copies)
            back = np.tile(np.arange(copies), rows.num_rows) * self.shape.slide_us
            starts = newest[which] - back
            there = starts + self.shape.size_us + self.lateness_us > now_us
            which, newest = which[there], starts[there]
            rows, times = rows.take(pa.array(which)), times[which]
        return group(rows.append_column(START, pa.array(newest)), self.by, times, newest)

    def _take(self, groups: Groups, now_us: int, clock: Clock) -> Iterator[pa.Table]:
        keys = groups.firsts(self.by)
        starts = [start for (start,) in groups.firsts([START])]
        partials = [aggregate.partials(groups) for aggregate in self.aggregates.values()]
        due: set[int] = set()
        results: list[Window] = []
        for at, (key, start) in enumerate(zip(keys, starts, strict=True)):
            end = start + self.shape.size_us
            window = Window(key, start, end, 0, [partial[at] for partial in partials])
            place = self.codec.place(window)
            # Fired or about to be: what has fired is corrected at once.
            held = self._fired.getValue((place,)) if self._fired and end <= now_us else None
            if held is not None:
                assert self._fired is not None
                results.append(window := self.codec.merged(held, window))
                self._fired.updateValue((place,), self.codec.state_of(window, window.revision + 1))
                continue
            held = self._open.getValue((place,))
            if held is not None:
                window = self.codec.merged(held, window)
            else:
                due.add(end)
            self._open.updateValue((place,), self.codec.state_of(window, window.revision))
            if self.early_ms is not None:
                self._changed.updateValue((place,), (True,))
        for end in due:
            self._handle.registerTimer(_timer_ms(end))
        if results:
            yield self._results(results)
        if self.early_ms is not None:
            yield from self._results_so_far(clock)

    def _results_so_far(self, clock: Clock) -> Iterator[pa.Table]:
        """Yield what has changed since results were told early, if it is time to."""
        told = self._early.get()
        if told is None:
            self._early.update((clock.now_ms,))
            return
        if clock.now_ms - told[0] < (self.early_ms or 0):
            return
        self._early.update((clock.now_ms,))
        now_us = self._now_us(clock)
        results = []
        for (place,) in list(self._changed.keys()):
            held = self._open.getValue((place,))
            self._changed.removeKey((place,))
            # What is due fires in this very epoch.
            if held is not None and (window := self.codec.window(held)).end > now_us:
                results.append(window)
                self._open.updateValue((place,), self.codec.state_of(window, window.revision + 1))
        if results:
            yield self._results(results)

    # -- time

    def expire(self, timer_ms: int, clock: Clock) -> Iterator[pa.Table]:
        """Fire what is due, and forget what cannot change any more."""
        now_us = self._now_us(clock)
        if self._fired is not None:
            gone_us = now_us - self.lateness_us
            gone = takewhile(lambda key: _end_of(key[0]) <= gone_us, self._fired.keys())
            for (place,) in list(gone):
                self._fired.removeKey((place,))
        pairs = takewhile(lambda pair: _end_of(pair[0][0]) <= now_us, self._open.iterator())
        results: list[Window] = []
        for (place,), held in list(pairs):
            window = self.codec.window(held)
            results.append(window)
            self._open.removeKey((place,))
            if self.early_ms is not None:
                self._changed.removeKey((place,))
            if self._fired is not None and window.end + self.lateness_us > now_us:
                self._fired.updateValue((place,), self.codec.state_of(window, window.revision + 1))
        for end in {window.end for window in results} if self.lateness_us else ():
            self._handle.registerTimer(_timer_ms(end + self.lateness_us))
        if results:
            yield self._results(results)

    # -- what comes out

    def _results(self, windows: Sequence[Window]) -> pa.Table:
        return self._output(self.codec.results(windows), MAIN)

    def _late(self, rows: pa.Table) -> pa.Table:
        if self.keeps_late:
            return self._output(rows, LATE)
        return self._output(None, MAIN, rows.num_rows)

    def _output(self, rows: pa.Table | None, tag: str, dropped: int | None = None) -> pa.Table:
        """Return rows in the column of their output; all others are null there."""
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
    """A column for each output; a row has one of them, or says how many late rows were dropped."""
    columns = [pa.field(MAIN, pa.struct(list(main)))]
    if late is not None:
        columns.append(pa.field(LATE, pa.struct(list(late))))
    return pa.schema([*columns, pa.field(DROPPED, pa.int64())])


class WindowCodec:
    """Windows as rows of the state and as results."""

    def __init__(
        self, schema: pa.Schema, by: Sequence[str], aggregates: dict[str, Aggregate]
    ) -> None:
        """``schema`` is that of the rows that come in."""
        self._aggregates = list(aggregates.values())
        self._widths = [len(one.state(_type(schema, one.column))) for one in self._aggregates]
        keys = [pa.field(f"key_{at}", schema.field(name).type) for at, name in enumerate(by)]
        states = [
            pa.field(f"{name}_{at}", type_)
            for name, one in aggregates.items()
            for at, type_ in enumerate(one.state(_type(schema, one.column)))
        ]
        numbers = [pa.field(name, pa.int64()) for name in ("start_us", "end_us", "revision")]
        self._keys = len(keys)
        self.state_ddl = _ddl(pa.schema([*numbers, *keys, *states]))
        self.result_schema = pa.schema(
            [
                *(schema.field(name) for name in by),
                pa.field(START, TIMESTAMP),
                pa.field(END, TIMESTAMP),
                *(
                    pa.field(name, one.result_type(_type(schema, one.column)))
                    for name, one in aggregates.items()
                ),
                pa.field(REVISION, pa.int64()),
            ]
        )

    def place(self, window: Window) -> bytes:
        """Return the key in the state: in the order of ends, one for each window of each key."""
        digest = hashlib.blake2b(digest_size=16)
        for value in window.key:
            digest.update(_canonical(value))
        # Times before 1970 sort before the others, too.
        return struct.pack(">QQ", window.end + 2**63, window.start + 2**63) + digest.digest()

    def state_of(self, window: Window, revision: int) -> tuple[Any, ...]:
        """Return the state's row of a window."""
        values = (value for partial in window.partials for value in partial)
        return (window.start, window.end, revision, *window.key, *values)

    def window(self, held: Sequence[Any]) -> Window:
        """Return the window of a row of the state."""
        start, end, revision, *rest = held
        key, values = tuple(rest[: self._keys]), rest[self._keys :]
        partials, at = [], 0
        for width in self._widths:
            partials.append(tuple(values[at : at + width]))
            at += width
        return Window(key, start, end, revision, partials)

    def merged(self, held: Sequence[Any], new: Window) -> Window:
        """Return a window of the state with new rows in it."""
        window = self.window(held)
        window.partials = [
            aggregate.merge(one, other)
            for aggregate, one, other in zip(
                self._aggregates, window.partials, new.partials, strict=True
            )
        ]
        return window

    def results(self, windows: Sequence[Window]) -> pa.Table:
        """Return windows as rows for the sinks."""
        keys = list(zip(*(window.key for window in windows), strict=True))
        values = [
            [aggregate.result(window.partials[at]) for window in windows]
            for at, aggregate in enumerate(self._aggregates)
        ]
        columns = [
            *keys,
            [window.start for window in windows],
            [window.end for window in windows],
            *values,
            [window.revision for window in windows],
        ]
        arrays = [
            pa.array(list(column), type_.type)
            for column, type_ in zip(columns, self.result_schema, strict=True)
        ]
        return pa.table(arrays, schema=self.result_schema)


def _type(schema: pa.Schema, name: str | None) -> pa.DataType | None:
    return None if name is None else schema.field(name).type


def _ddl(schema: pa.Schema) -> str:
    from pyspark.sql.pandas.types import from_arrow_schema

    fields = from_arrow_schema(schema).fields
    return ", ".join(f"`{one.name}` {one.dataType.simpleString()}" for one in fields)


def _canonical(value: Any) -> bytes:
    """Return bytes that are the same for equal keys, and for no others."""
    if value is None:
        return b"\0"
    if isinstance(value, float):
        text = struct.pack(">d", value + 0.0 if value == value else float("nan"))
    elif isinstance(value, bytes):
        text = value
    elif isinstance(value, Decimal):
        text = str(value.normalize()).encode()
    else:
        text = str(value).encode("utf-8", "surrogatepass")
    return b"\1" + struct.pack(">I", len(text)) + text


def _microseconds(column: pa.ChunkedArray) -> Ints:
    times = pc.cast(column, pa.timestamp("us", tz=column.type.tz)).cast(pa.int64())
    return np.asarray(pc.fill_null(times, 0).to_numpy(), dtype=np.int64)


def _timer_ms(time_us: int) -> int:
    return -(-time_us // 1000)


def _end_of(place: bytes) -> int:
    return int(struct.unpack(">Q", bytes(place[:8]))[0]) - 2**63


def _struct(rows: pa.Table, type_: pa.DataType) -> pa.StructArray:
    arrays = [
        column.combine_chunks().cast(field.type)
        for column, field in zip(rows.columns, type_, strict=True)
    ]
    return pa.StructArray.from_arrays(arrays, fields=list(type_))
