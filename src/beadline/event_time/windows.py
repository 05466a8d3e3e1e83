"""Tumbling and sliding windows with allowed lateness and a late output.

A window *fires* when the watermark has passed its end. It fires again, with the corrected result
and a higher ``revision``, in each epoch that brings rows for it, until the watermark has passed its
end by the allowed lateness; then its state is dropped. A row is *late* if that is so for all of its
windows: it goes to the late output.

State, per bucket of keys (see ``operator``): two maps, one of *open* windows and one of those that
have *fired*. Their keys begin with the window's end, so that Spark's store keeps them in the order
in which they are due, and windows that are not due are not read.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import takewhile
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from beadline.errors import NOTHING_WRITTEN, BadQuery
from beadline.event_time.codec import (
    Window,
    WindowCodec,
    WindowOperator,
    big_endian,
    time_of,
    timer_at,
)
from beadline.event_time.durations import Duration, microseconds
from beadline.event_time.groups import Groups, Ints, group
from beadline.event_time.keys import digest
from beadline.event_time.operator import Clock

if TYPE_CHECKING:
    from pyspark.sql.streaming.stateful_processor import MapState, StatefulProcessorHandle


@dataclass(frozen=True)
class WindowShape:
    """Size, slide and offset of windows, in microseconds: they define the windows of a time."""

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


def window_shape(
    what: str, size: Duration, slide: Duration | None, offset: Duration
) -> WindowShape:
    """Return the shape that a user asks for; ``what`` is the function that was called."""
    size_us = microseconds("size", size)
    slide_us = size_us if slide is None else microseconds("slide", slide)
    if size_us % slide_us:
        raise BadQuery(
            f"{what}: slide={slide!r} does not divide size={size!r}: rows would be in more windows "
            f"at some times than at others. Choose a slide that divides the size. {NOTHING_WRITTEN}"
        )
    return WindowShape(size_us, slide_us, microseconds("offset", offset, zero=True) % slide_us)


@dataclass(kw_only=True)
class Windowed(WindowOperator):
    """The operator of tumbling and sliding windows."""

    shape: WindowShape

    def __post_init__(self) -> None:
        """Determine the columns of state and results."""
        self.use(WindowCodec(self.schema, self.by, self.aggregates))

    @property
    def divided(self) -> str:
        """Size, slide and offset."""
        return repr(self.shape)

    def open(self, handle: StatefulProcessorHandle) -> None:
        """Declare the state variables."""
        super().open(handle)
        self._handle = handle
        held = self.codec.state_schema
        self._open: MapState = handle.getMapState("open", self.place, held)
        self._fired: MapState | None = None
        if self.lateness_us:
            self._fired = handle.getMapState("fired", self.place, held)
        if self.early_ms is not None:
            self._changed: MapState = handle.getMapState("changed", self.place, "nothing boolean")
            self._early = handle.getValueState("early", "told_ms bigint")

    # -- rows

    def process(self, rows: pa.Table, clock: Clock) -> Iterator[pa.Table]:
        """Add the rows to their windows."""
        now_us = self.now_us(clock)
        times, known = self.times(rows, now_us)
        newest = self.shape.starts(times)
        # A row is late if its newest window is: the others end before it.
        gone_us = self.gone_us(now_us)
        in_time = known & (newest + self.shape.size_us > gone_us)
        if not in_time.all():
            yield from self.late(rows.filter(pa.array(~in_time)))
            rows, times, newest = rows.filter(pa.array(in_time)), times[in_time], newest[in_time]
        if rows.num_rows:
            yield from self.emit(self._take(self._groups(rows, times, newest, gone_us), now_us))
        if self.early_ms is not None:
            yield from self.emit(self._so_far(clock))

    def _groups(self, rows: pa.Table, times: Ints, newest: Ints, gone_us: int) -> Groups:
        """Group the rows by key and window: once for each of their windows that is not dropped."""
        copies = self.shape.windows_per_row
        if copies > 1:
            which = np.repeat(np.arange(rows.num_rows), copies)
            back = np.tile(np.arange(copies), rows.num_rows) * self.shape.slide_us
            starts = newest[which] - back
            kept = starts + self.shape.size_us > gone_us
            which, newest = which[kept], starts[kept]
            rows, times = rows.take(pa.array(which)), times[which]
        return group(rows, self.by, times, newest)

    def _take(self, groups: Groups, now_us: int) -> list[Window]:
        """Merge groups of rows into the state; return the corrected windows that had fired."""
        assert groups.extra is not None
        keys, starts = groups.firsts(self.by), groups.extra[groups.starts].tolist()
        partials = [aggregate.partials(groups) for aggregate in self.aggregates.values()]
        due: set[int] = set()
        corrected: list[Window] = []
        for at, (key, start) in enumerate(zip(keys, starts, strict=True)):
            end = start + self.shape.size_us
            window = Window(key, start, end, 0, [partial[at] for partial in partials])
            place = big_endian(end) + big_endian(start) + digest(key)
            # A window that has fired is corrected at once; one that is about to fire is still open.
            held = None
            if self._fired is not None and end <= now_us:
                held = self._fired.getValue((place,))
            if held is not None:
                assert self._fired is not None
                corrected.append(window := self._merged(held, window))
                self._fired.updateValue((place,), self.codec.state_of(window, window.revision + 1))
                continue
            held = self._open.getValue((place,))
            if held is not None:
                window = self._merged(held, window)
            else:
                due.add(end)
            self._open.updateValue((place,), self.codec.state_of(window, window.revision))
            if self.early_ms is not None:
                self._changed.updateValue((place,), (True,))
        for end in due:
            self._handle.registerTimer(timer_at(end))
        return corrected

    def _merged(self, held: tuple[object, ...], new: Window) -> Window:
        window = self.codec.window(held)
        window.partials = self.codec.merged(window.partials, new.partials)
        return window

    def _so_far(self, clock: Clock) -> list[Window]:
        """Return the windows that changed since the last early results, if it is time for them."""
        if not self.early_is_due(self._early, clock):
            return []
        now_us = self.now_us(clock)
        results = []
        for (place,) in list(self._changed.keys()):
            held = self._open.getValue((place,))
            self._changed.removeKey((place,))
            # A window that is due fires later in this epoch anyway.
            if held is not None and (window := self.codec.window(held)).end > now_us:
                results.append(window)
                self._open.updateValue((place,), self.codec.state_of(window, window.revision + 1))
        return results

    # -- time

    def expire(self, timer_ms: int, clock: Clock) -> Iterator[pa.Table]:
        """Fire the windows that are due, and drop those that cannot change anymore."""
        now_us = self.now_us(clock)
        dropped = False
        if self._fired is not None:
            gone_us = now_us - self.lateness_us
            gone = takewhile(lambda key: time_of(key[0]) <= gone_us, self._fired.keys())
            for (place,) in list(gone):
                self._fired.removeKey((place,))
                dropped = True
        due = takewhile(lambda pair: time_of(pair[0][0]) <= now_us, self._open.iterator())
        results: list[Window] = []
        gone_at: set[int] = set()
        for (place,), held in list(due):
            results.append(window := self.codec.window(held))
            self._open.removeKey((place,))
            if self.early_ms is not None:
                self._changed.removeKey((place,))
            if self._fired is not None and window.end + self.lateness_us > now_us:
                self._fired.updateValue((place,), self.codec.state_of(window, window.revision + 1))
                gone_at.add(window.end + self.lateness_us)
            else:
                dropped = True
        if dropped:
            self.note_dropped(now_us)
        for time_us in gone_at:
            self._handle.registerTimer(timer_at(time_us))
        yield from self.emit(results)
