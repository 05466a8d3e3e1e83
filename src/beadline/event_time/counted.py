"""Count windows: every n rows of a key, whatever their times: 0 to n-1, n to 2n-1, ...

State, per bucket of keys: for each key the window that is being filled. It is never dropped, since
a key may return at any time.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from beadline.event_time.codec import (
    WINDOW_NUMBER,
    Window,
    WindowCodec,
    WindowOperator,
)
from beadline.event_time.groups import Groups, Ints, group
from beadline.event_time.keys import digest
from beadline.event_time.operator import Clock

if TYPE_CHECKING:
    from pyspark.sql.streaming.stateful_processor import MapState, StatefulProcessorHandle

_LAST = 2**63 - 1


@dataclass(kw_only=True)
class CountedWindows(WindowOperator):
    """The operator. A window's ``start`` is its number, and its ``end`` how many rows it has."""

    every_rows: int

    def __post_init__(self) -> None:
        """Determine the columns of state and results."""
        self.use(WindowCodec(self.schema, self.by, self.aggregates, bounds=WINDOW_NUMBER))

    @property
    def ordered(self) -> bool:
        """Which rows fill a window is a matter of their order."""
        return True

    @property
    def divided(self) -> str:
        """The number of rows."""
        return f"every_rows={self.every_rows}"

    def open(self, handle: StatefulProcessorHandle) -> None:
        """Declare the state variables."""
        self._filling: MapState = handle.getMapState("filling", self.place, self.codec.state_schema)

    def process(self, rows: pa.Table, clock: Clock) -> Iterator[pa.Table]:
        """Count the rows of each key, within an epoch by time if they have one, then by content."""
        times = np.arange(rows.num_rows)
        if self.time is not None:
            times, known = self.times(rows, 0)
            times = np.where(known, times, _LAST)
        yield from self.emit(self._take(group(rows, self.by, times)))

    def _take(self, groups: Groups) -> list[Window]:
        """Add the rows to windows; return the full ones."""
        keys = groups.firsts(self.by)
        held = []
        for key in keys:
            row = self._filling.getValue((digest(key),))
            held.append(Window(key, 0, 0, 0, []) if row is None else self.codec.window(row))
        cut, numbers = self._cut(groups, held)
        partials = [aggregate.partials(cut) for aggregate in self.aggregates.values()]
        owners = groups.numbers[cut.starts].tolist()
        sizes = (cut.ends - cut.starts).tolist()
        full: list[Window] = []
        filling: dict[int, Window] = {}
        for at, (owner, number) in enumerate(zip(owners, numbers, strict=True)):
            window = Window(keys[owner], number, sizes[at], 0, [one[at] for one in partials])
            before = held[owner]
            if before.end and before.start == number:
                window.end += before.end
                window.partials = self.codec.merged(before.partials, window.partials)
            if window.end == self.every_rows:
                full.append(window)
                # It is empty, but its number must be remembered.
                window = Window(keys[owner], number + 1, 0, 0, self._nothing())
            filling[owner] = window
        for owner, window in filling.items():
            place = (digest(keys[owner]),)
            self._filling.updateValue(place, self.codec.state_of(window, 0))
        return full

    def _cut(self, groups: Groups, held: list[Window]) -> tuple[Groups, list[int]]:
        """Divide each key's rows into windows; return them with their numbers."""
        before = np.array([one.end for one in held], dtype=np.int64)
        first = np.array([one.start for one in held], dtype=np.int64)
        places = np.arange(groups.table.num_rows) - groups.starts[groups.numbers]
        places += first[groups.numbers] * self.every_rows + before[groups.numbers]
        numbers: Ints = places // self.every_rows
        changed = np.flatnonzero(np.diff(numbers) != 0) + 1
        starts = np.union1d(groups.starts, changed)
        # Without a time, the rows of a key are ordered as they are counted.
        times = places if self.time is None else groups.times
        return Groups(groups.table, starts, times), numbers[starts].tolist()

    def _nothing(self) -> list[Any]:
        return self.codec.partials([None] * len(self.codec.partial_fields))
