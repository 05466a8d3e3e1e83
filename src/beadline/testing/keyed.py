"""A ``KeyedProcess`` in memory, epoch by epoch, without Spark: for users' own unit tests.

    run = KeyedRun(Silence(), by="user", outputs={"alerts": "user string"}, time="ts",
                   watermark="5 minutes")
    run.epoch([{"user": "ann", "ts": noon}])
    run.epoch([{"user": "bob", "ts": noon + timedelta(minutes=20)}])
    assert run.epoch()["alerts"] == [{"user": "ann"}]

What a process keeps, emits and sets timers for goes through the very code that runs on Spark; only
the state store is a dict. Types are known where a Spark session runs, or with a ``StructType``;
without either, the names of columns are all that is checked.
"""

from __future__ import annotations

import copy
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import datetime, timedelta, timezone
from typing import Any, cast

from pyspark.sql.streaming.stateful_processor import StatefulProcessorHandle
from pyspark.sql.types import Row

from beadline.event_time.durations import Duration, milliseconds
from beadline.event_time.keyed import DROPPED_COUNT, EPOCH_START, KeyedProcess, KeyedRows
from beadline.event_time.keyed_state import in_order
from beadline.event_time.keyed_stream import (
    KeyedClock,
    OutputColumns,
    keyed_plan,
)
from beadline.event_time.operator import Clock

_START = datetime(2026, 1, 1, tzinfo=timezone.utc)


class KeyedRun:
    """A process and its state. Takes what ``keyed_process`` takes, but for the frame."""

    def __init__(
        self,
        process: KeyedProcess,
        *,
        by: Sequence[str] | str,
        outputs: Mapping[str, OutputColumns] | OutputColumns,
        time: str | None = None,
        watermark: Duration | None = None,
        clock: KeyedClock = "event",
        late: str = "process",
        order: Sequence[str] | str | None = None,
    ) -> None:
        """See ``beadline.event_time.keyed_process``."""
        self._plan = keyed_plan(process, by, outputs, time, watermark, clock, late, order)
        self._delay_ms = 0 if watermark is None else milliseconds("watermark", watermark, zero=True)
        self._store = MemoryStates()
        handle = cast(StatefulProcessorHandle, self._store)
        self._keyed = KeyedRows(copy.copy(process), self._plan, handle)
        self._largest_ms = 0
        self._now = _START
        self.dropped = 0  # late rows, so far

    @property
    def watermark(self) -> datetime | None:
        """What the next epoch's watermark is."""
        at_ms = self._watermark_ms()
        return EPOCH_START + timedelta(milliseconds=at_ms) if at_ms else None

    def epoch(
        self, rows: Iterable[Mapping[str, Any] | Row] = (), *, now: datetime | None = None
    ) -> dict[str, list[dict[str, Any]]]:
        """Run one epoch; return what each output got.

        As on Spark, the rows come first, then the timers that are due by the watermark, which is
        that of the rows before this epoch: call it once more, without rows, to see what the last
        ones do to timers. ``now`` is the epoch's time, a second after the last one's if not given.
        """
        self._now = now if now is not None else self._now + timedelta(seconds=1)
        clock = Clock(self._watermark_ms(), _ms(self._now))
        self._store.now_ms = clock.now_ms
        taken: list[tuple[str, Any]] = []
        for key, group in self._by_key(rows):
            self._store.key = key
            taken += self._keyed.rows(key, group, clock)
        due_ms = clock.now_ms if self._plan.time is None else clock.watermark_ms
        for at_ms, key in self._store.due(due_ms):
            self._store.key = key
            taken += self._keyed.timer(key, at_ms, clock)
            self._store.timers.get(key, set()).discard(at_ms)
        names = [*self._plan.outputs, *(["late"] if self._plan.late == "side" else [])]
        self.dropped += sum(count for name, count in taken if name == DROPPED_COUNT)
        return {name: [row for tag, row in taken if tag == name] for name in names}

    def _by_key(
        self, rows: Iterable[Mapping[str, Any] | Row]
    ) -> list[tuple[tuple[Any, ...], list[tuple[Row, Any]]]]:
        groups: dict[tuple[Any, ...], list[tuple[Row, Any]]] = {}
        for given in rows:
            values = given.asDict() if isinstance(given, Row) else given
            row = Row(*values)(*values.values())
            key = tuple(row[name] for name in self._plan.by)
            groups.setdefault(key, []).append((row, repr(row)))
            time = row[self._plan.time] if self._plan.time is not None else None
            if time is not None:
                self._largest_ms = max(self._largest_ms, _ms(time))
        return sorted(groups.items(), key=lambda one: in_order(one[0]))

    def _watermark_ms(self) -> int:
        return max(0, self._largest_ms - self._delay_ms)


def _ms(at: datetime) -> int:
    return (at - EPOCH_START) // timedelta(milliseconds=1)


class MemoryStates:
    """In the place of Spark's handle: states and timers of every key, in dicts."""

    def __init__(self) -> None:
        """Nothing yet."""
        self.key: tuple[Any, ...] = ()
        self.now_ms = 0
        self.timers: dict[tuple[Any, ...], set[int]] = {}

    def getValueState(  # noqa: N802
        self, name: str, schema: Any, ttl_ms: int | None
    ) -> MemoryValue:
        """Return a value."""
        return MemoryValue(self, ttl_ms)

    def getListState(  # noqa: N802
        self, name: str, schema: Any, ttl_ms: int | None
    ) -> MemoryList:
        """Return a list."""
        return MemoryList(self, ttl_ms)

    def getMapState(  # noqa: N802
        self, name: str, key: Any, value: Any, ttl_ms: int | None
    ) -> MemoryMap:
        """Return a map."""
        return MemoryMap(self, ttl_ms)

    def registerTimer(self, at_ms: int) -> None:  # noqa: N802
        """Set a timer of the key."""
        self.timers.setdefault(self.key, set()).add(at_ms)

    def deleteTimer(self, at_ms: int) -> None:  # noqa: N802
        """Remove a timer of the key."""
        self.timers.get(self.key, set()).discard(at_ms)

    def listTimers(self) -> Iterator[int]:  # noqa: N802
        """Yield the timers of the key."""
        return iter(sorted(self.timers.get(self.key, set())))

    def due(self, until_ms: int) -> list[tuple[int, tuple[Any, ...]]]:
        """Return the timers that have come, read ahead as Spark does."""
        found = [(at, key) for key, set_ in self.timers.items() for at in set_ if at <= until_ms]
        return sorted(found, key=lambda one: (one[0], in_order(one[1])))


class _Memory:
    """Entries of each key, which may expire."""

    def __init__(self, states: MemoryStates, ttl_ms: int | None) -> None:
        self._states = states
        self._ttl_ms = ttl_ms
        self._held: dict[tuple[Any, ...], list[tuple[Any, Any, float]]] = {}

    def _there(self) -> list[tuple[Any, Any, float]]:
        held = self._held.get(self._states.key, [])
        return [one for one in held if one[2] > self._states.now_ms]

    def _add(self, entry: Any, value: Any) -> None:
        until = float("inf") if self._ttl_ms is None else self._states.now_ms + self._ttl_ms
        self._held[self._states.key] = [*self._there(), (entry, value, until)]

    def clear(self) -> None:
        """Remove all."""
        self._held.pop(self._states.key, None)


class MemoryValue(_Memory):
    """In the place of Spark's ``ValueState``."""

    def get(self) -> Any:
        """Return the value."""
        return next((value for _, value, _ in self._there()), None)

    def update(self, value: Any) -> None:
        """Set the value."""
        self.clear()
        self._add(None, value)


class MemoryList(_Memory):
    """In the place of Spark's ``ListState``."""

    def get(self) -> Iterator[Any]:
        """Yield the values."""
        return (value for _, value, _ in self._there())

    def put(self, values: Iterable[Any]) -> None:
        """Set the whole list."""
        self.clear()
        self.appendList(values)

    def appendList(self, values: Iterable[Any]) -> None:  # noqa: N802
        """Add at the end."""
        for value in values:
            self._add(None, value)


class MemoryMap(_Memory):
    """In the place of Spark's ``MapState``."""

    def getValue(self, key: Any) -> Any:  # noqa: N802
        """Return the value of a key."""
        return next((value for entry, value, _ in self._there() if entry == key), None)

    def iterator(self) -> Iterator[tuple[Any, Any]]:
        """Yield keys and values."""
        return ((entry, value) for entry, value, _ in self._there())

    def updateValue(self, key: Any, value: Any) -> None:  # noqa: N802
        """Set the value of a key."""
        self.removeKey(key)
        self._add(key, value)

    def removeKey(self, key: Any) -> None:  # noqa: N802
        """Remove a key."""
        self._held[self._states.key] = [one for one in self._there() if one[0] != key]
