"""``KeyedProcess``: processing per key with state and timers, as in Flink.

This module runs the same way on Spark and in memory. ``keyed_stream`` runs it on Spark's own
``StatefulProcessor``, where the user's key is Spark's grouping key; ``beadline.testing.keyed`` runs
it without Spark.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta, timezone
from typing import TYPE_CHECKING, Any

from pyspark.sql.types import Row

from beadline.event_time.keyed_state import (
    KeyedCodec,
    KeyedColumns,
    KeyedStates,
    KeyScope,
    OpenKeyedStates,
    StateDeclaration,
    in_order,
)
from beadline.event_time.operator import Clock
from beadline.outputs import LATE, MAIN

if TYPE_CHECKING:
    from pyspark.sql.streaming.stateful_processor import StatefulProcessorHandle

DROPPED_COUNT = "beadline_dropped"  # how many late rows are not in any output
EPOCH_START = datetime(1970, 1, 1, tzinfo=timezone.utc)
_TAKEN_AT_ONCE = 10_000
_RowsGiven = Iterable[Any] | None


class KeyedProcess:
    """A function of the rows of a key, with state and timers; Flink's ``KeyedProcessFunction``.

    >>> class Visits(KeyedProcess):
    ...     def open(self, state):
    ...         self.count = state.value("count", "bigint")
    ...
    ...     def process(self, row, ctx):
    ...         self.count.update((self.count.get() or 0) + 1)
    ...         yield {"user": row.user, "visits": self.count.get()}

    One instance serves many keys, one after the other: keep what belongs to a key in states, not
    in attributes. The methods must be deterministic: the same rows and the same state must give the
    same results, so use no clock but ``ctx.now`` and no random numbers. An epoch that was
    interrupted by a crash is computed again.
    """

    def open(self, state: KeyedStates) -> None:
        """Declare the states, and do nothing else: ``self.n = state.value("n", "bigint")``.

        It is called when the query is defined, and again by every task.
        """

    def process(self, row: Row, ctx: KeyedContext) -> _RowsGiven:
        """Process one row; yield or return rows for the output ``main``, or nothing."""
        raise NotImplementedError

    def process_rows(self, rows: list[Row], ctx: KeyedContext) -> _RowsGiven:
        """Process all rows of the key in an epoch; by default, ``process`` is called for each."""
        return self._each(rows, ctx)

    def _each(self, rows: list[Row], ctx: KeyedContext) -> Iterator[Any]:
        for row in rows:
            yield from rows_of(self.process(row, ctx), "process()")

    def on_timer(self, time: datetime, ctx: KeyedContext) -> _RowsGiven:
        """Handle a timer that fires; yield or return rows for the output ``main``."""
        raise NotImplementedError

    def __getattr__(self, name: str) -> Any:
        """Explain in the error how to declare a state."""
        if name.startswith("__"):  # looked up by copy and pickle
            raise AttributeError(name)
        raise AttributeError(
            f"{type(self).__name__} has no attribute {name!r}. If it is a state, declare it in "
            f"open(): self.{name} = state.value({name!r}, 'bigint')"
        )


def has(process: KeyedProcess, method: str) -> bool:
    """Whether a process overrides this method."""
    return getattr(type(process), method) is not getattr(KeyedProcess, method)


class KeyedContext:
    """The present key and time, timers and outputs; Flink's ``Context``."""

    def __init__(
        self, names: Sequence[str], codecs: dict[str, KeyedCodec], *, has_timers: bool
    ) -> None:
        """``names`` are the columns of the key."""
        self._key_row = Row(*names)
        self._codecs = codecs
        self._has_timers = has_timers
        self.taken: list[tuple[str, dict[str, Any]]] = []
        self.timers: dict[int, bool] = {}  # by milliseconds: set, or cancelled
        self.firing_ms: int | None = None

    def begin(self, key: Sequence[Any], clock: Clock) -> None:
        """Begin to process a key."""
        self.key: Row = self._key_row(*key)
        self.watermark: datetime | None = _time(clock.watermark_ms)
        self.now: datetime | None = _time(clock.now_ms)
        self.timers = {}

    def timer(self, at: datetime) -> None:
        """Set a timer: ``on_timer`` is called for this key when the clock has reached this time.

        The clock is the watermark, or the time of the epoch with ``clock="processing"``. A timer
        for a time that has passed fires in this epoch. Several timers of a key for the same time
        are one.
        """
        if not self._has_timers:
            raise RuntimeError("ctx.timer(): the process has no on_timer() method to be called")
        at_ms = _milliseconds("ctx.timer()", at)
        if self.firing_ms is not None and at_ms <= self.firing_ms:
            raise ValueError(
                "ctx.timer() in on_timer(): the time is not after that of the timer that fires, "
                "so it would fire again forever"
            )
        self.timers[at_ms] = True

    def cancel_timer(self, at: datetime) -> None:
        """Delete the timer of this key at this time, if there is one."""
        self.timers[_milliseconds("ctx.cancel_timer()", at)] = False

    def emit(self, row: Any) -> None:
        """Add a row to the output ``main``: a dict, a Row, or a tuple in the columns' order."""
        self.emit_to(MAIN, row)

    def emit_to(self, output: str, row: Any) -> None:
        """Add a row to one of the outputs."""
        codec = self._codecs.get(output)
        if codec is None:
            known = ", ".join(map(repr, self._codecs))
            raise KeyError(
                f"there is no output {output!r}; keyed_process(outputs=) declares {known}"
            )
        self.taken.append((output, codec.named(row)))

    def take(self) -> Iterator[tuple[str, dict[str, Any]]]:
        """Return the emitted rows, after a check of their types."""
        taken, self.taken = self.taken, []
        for output, codec in self._codecs.items():
            codec.check([row for name, row in taken if name == output])
        return iter(taken)


@dataclass(frozen=True)
class KeyedPlan:
    """The settings with which a keyed process is run."""

    by: tuple[str, ...]
    outputs: dict[str, KeyedColumns]
    states: dict[str, StateDeclaration]
    order: tuple[str, ...] = ()
    time: str | None = None  # event time, or else processing time
    late: str = "process"


@dataclass
class KeyedRows:
    """Runs a process on keys and their rows, with Spark's handle or one with the same methods."""

    process: KeyedProcess
    plan: KeyedPlan
    handle: StatefulProcessorHandle
    context: KeyedContext = field(init=False)

    def __post_init__(self) -> None:
        """Open the process."""
        name = type(self.process).__name__
        codecs = {
            output: columns.codec(f"output {output!r} of {name}")
            for output, columns in self.plan.outputs.items()
        }
        timers = has(self.process, "on_timer")
        self.context = KeyedContext(self.plan.by, codecs, has_timers=timers)
        self._scope = KeyScope()
        states = OpenKeyedStates(name, self.plan.states, self.handle, self._scope)
        self.process.open(states)
        self._states = states.opened

    def rows(
        self, key: Sequence[Any], rows: Sequence[tuple[Row, int]], clock: Clock
    ) -> Iterator[tuple[str, Any]]:
        """Process a key's rows of one epoch; each has a number that orders rows of equal times.

        Yields rows with their output, and the number of late rows that were dropped.
        """
        in_time = self._sorted(rows)
        watermark = _time(clock.watermark_ms)
        if self.plan.late != "process" and self.plan.time is not None and watermark is not None:
            late = [row for row in in_time if _is_late(row[self.plan.time], watermark)]
            if late and self.plan.late == "side":
                yield from ((LATE, row.asDict()) for row in late)
            elif late:
                yield DROPPED_COUNT, len(late)
            if late:
                in_time = [row for row in in_time if not _is_late(row[self.plan.time], watermark)]
        if not in_time:
            return
        self.context.begin(key, clock)
        self._scope.in_key = True
        yield from self._given(self.process.process_rows(in_time, self.context), "process_rows()")
        self._write_timers(None)
        self._end()

    def _sorted(self, rows: Sequence[tuple[Row, int]]) -> list[Row]:
        """Return the rows in an order that depends only on the rows themselves."""
        order = self.plan.order
        if order and len(rows) > 1:
            rows = sorted(rows, key=lambda one: (in_order(one[0][name] for name in order), one[1]))
        return [row for row, _ in rows]

    def timer(self, key: Sequence[Any], expired_ms: int, clock: Clock) -> Iterator[tuple[str, Any]]:
        """Fire all of a key's timers that are due, in order, when Spark reports the first of them.

        Spark reads a number of timers ahead, and also reports those that were cancelled since, or
        have fired here with an earlier one of their key: the list of present timers decides.
        """
        now_ms = clock.now_ms if self.plan.time is None else clock.watermark_ms
        listed = set(self.handle.listTimers())
        due = {at for at in listed if at <= now_ms}
        if not due:
            return
        self.context.begin(key, clock)
        self._scope.in_key = True
        timers = self.context.timers
        while due:
            at = self.context.firing_ms = min(due)
            time = EPOCH_START + timedelta(milliseconds=at)
            yield from self._given(self.process.on_timer(time, self.context), "on_timer()")
            timers[at] = False
            for other, is_set in timers.items():
                if is_set and other <= now_ms:
                    due.add(other)
            due -= {other for other, is_set in timers.items() if not is_set}
        self.context.firing_ms = None
        listed.discard(expired_ms)  # Spark deletes it
        self._write_timers(listed)
        self._end()

    def _given(self, rows: _RowsGiven, method: str) -> Iterator[tuple[str, Any]]:
        """Yield the rows that a method yields, returns or emits, a limited number at a time."""
        context = self.context
        for row in rows_of(rows, method):
            context.emit(row)
            if len(context.taken) >= _TAKEN_AT_ONCE:
                yield from context.take()
        yield from context.take()

    def _write_timers(self, listed: set[int] | None) -> None:
        """Register new timers with Spark and delete cancelled ones; each is a separate call."""
        timers = self.context.timers
        if listed is None:
            listed = set() if all(timers.values()) else set(self.handle.listTimers())
        for at, is_set in timers.items():
            if is_set and at not in listed:
                self.handle.registerTimer(at)
            elif not is_set and at in listed:
                self.handle.deleteTimer(at)

    def _end(self) -> None:
        for state in self._states:
            state.write()
        self._scope.in_key = False


def rows_of(given: _RowsGiven, method: str) -> Iterable[Any]:
    """Return the rows that a method returned; a single row is an error."""
    if given is None:
        return ()
    if isinstance(given, dict | tuple | str) or not isinstance(given, Iterable):
        raise TypeError(
            f"{method} returned a single {type(given).__name__}: it must yield rows, return them "
            "in a list, or call ctx.emit(row)"
        )
    return given


def _is_late(time: datetime | None, watermark: datetime) -> bool:
    return time is not None and time < watermark


def _time(at_ms: int) -> datetime | None:
    return EPOCH_START + timedelta(milliseconds=at_ms) if at_ms > 0 else None


def _milliseconds(what: str, at: datetime) -> int:
    """Return a time in milliseconds, rounded up: a timer never fires before its time.

    Spark's watermark is 0 until there is one: a timer before 1970 would fire at once, and be gone.
    """
    if not isinstance(at, datetime) or at.tzinfo is None:
        raise TypeError(
            f"{what} takes a datetime with a time zone, such as row.ts + timedelta(minutes=5), not "
            f"{'one without' if isinstance(at, datetime) else type(at).__name__}"
        )
    return max(1, -((EPOCH_START - at) // timedelta(milliseconds=1)))
