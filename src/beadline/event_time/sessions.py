"""Session windows with allowed lateness: rows of a key that follow each other within a gap.

A session begins with its first row and ends one gap after its last. As with Spark's
``session_window``, a row exactly at the end of a session belongs to it. A row may extend a session,
make it begin earlier, or merge several sessions into one, even if they have fired: then the result
is emitted again with a higher ``revision``. A result is identified by its key and
``window_start``, so if the start changes, the old result is emitted once more with ``deleted``.

A row is *late* if the watermark has reached the end of a session of this row alone plus the
allowed lateness, unless it falls into a session that is still held. (Without that exception a
very late row could start a session before those that were dropped, and be emitted under the start
of one of them. Spark's own sessions, which have no lateness, make no such exception; so none is
made here without allowed lateness.)

State, per bucket of keys: all sessions of a key in one row, since a key has few; and an index by
the time at which something is due. An index entry only says when to check a key: a session that has
grown since is checked then, and gets another entry. So a session costs one entry per gap, not one
per epoch.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import takewhile
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from beadline.event_time.aggregates import Partial
from beadline.event_time.codec import (
    Window,
    WindowCodec,
    WindowOperator,
    big_endian,
    spark_schema,
    time_of,
    timer_at,
)
from beadline.event_time.groups import Bools, Groups, Ints, group
from beadline.event_time.keys import digest
from beadline.event_time.operator import Clock

if TYPE_CHECKING:
    from pyspark.sql.streaming.stateful_processor import MapState, StatefulProcessorHandle

_SESSION = (
    pa.field("start_us", pa.int64()),
    pa.field("end_us", pa.int64()),
    pa.field("revision", pa.int64()),
    pa.field("looked_at_us", pa.int64()),
    pa.field("fired", pa.bool_()),
    pa.field("changed", pa.bool_()),
)


@dataclass
class Session:
    """One session of a key. ``revision`` is that of its next result: 0 until it is emitted."""

    start: int
    end: int
    partials: list[Partial]
    revision: int = 0
    looked_at: int | None = None  # the time of its entry in the index
    fired: bool = False
    changed: bool = True  # since it was last emitted


@dataclass
class _Effects:
    """The results and timers that an epoch's rows lead to."""

    results: list[Window] = field(default_factory=list)
    timers: set[int] = field(default_factory=set)


@dataclass(kw_only=True)
class Sessions(WindowOperator):
    """The operator of session windows."""

    gap_us: int
    joins_late: bool = True  # whether late rows are added to sessions that are still held

    def __post_init__(self) -> None:
        """Determine the columns of state and results."""
        self.use(WindowCodec(self.schema, self.by, self.aggregates, deletes=True))

    @property
    def divided(self) -> str:
        """The gap."""
        return f"gap_us={self.gap_us}"

    def open(self, handle: StatefulProcessorHandle) -> None:
        """Declare the state variables."""
        super().open(handle)
        self._handle = handle
        session = pa.struct([*_SESSION, *self.codec.partial_fields])
        held = spark_schema([*self.codec.key_fields, pa.field("sessions", pa.list_(session))])
        self._sessions: MapState = handle.getMapState("sessions", self.place, held)
        self._index: MapState = handle.getMapState("index", self.place, "nothing boolean")
        if self.early_ms is not None:
            self._changed: MapState = handle.getMapState("changed", self.place, "nothing boolean")
            self._early = handle.getValueState("early", "told_ms bigint")

    # -- rows

    def process(self, rows: pa.Table, clock: Clock) -> Iterator[pa.Table]:
        """Add the rows to sessions."""
        now_us = self.now_us(clock)
        times, known = self.times(rows, now_us)
        in_time = known & (times + self.gap_us > self.gone_us(now_us))
        if self.joins_late and not in_time.all():
            in_time = in_time | self._falls_into_held(rows, times, known & ~in_time, now_us)
        if not in_time.all():
            yield from self.late(rows.filter(pa.array(~in_time)))
            rows, times = rows.filter(pa.array(in_time)), times[in_time]
        if rows.num_rows:
            yield from self.emit(self._take(self._chains(group(rows, self.by, times)), now_us))
        if self.early_ms is not None:
            yield from self.emit(self._so_far(clock))

    def _falls_into_held(self, rows: pa.Table, times: Ints, which: Bools, now_us: int) -> Bools:
        """Return which of these rows fall into a session that may still change."""
        found = np.zeros(len(times), dtype=bool)
        at = np.flatnonzero(which)
        single = Groups(rows.take(pa.array(at)), np.arange(len(at)), times[at])
        sessions: dict[bytes, list[Session]] = {}
        for key, row in zip(single.firsts(self.by), at.tolist(), strict=True):
            place = digest(key)
            if place not in sessions:
                sessions[place] = self._held(place)[1]
            time = int(times[row])
            found[row] = any(
                one.start <= time <= one.end and self._gone_at(one) > now_us
                for one in sessions[place]
            )
        return found

    def _chains(self, groups: Groups) -> Groups:
        """Split the rows of each key where two are more than a gap apart."""
        far = np.flatnonzero(np.diff(groups.times) > self.gap_us) + 1
        return groups.cut(np.union1d(groups.starts, far))

    def _take(self, chains: Groups, now_us: int) -> list[Window]:
        """Merge chains of rows into the sessions of their keys; return the immediate results."""
        firsts, ends = chains.times[chains.starts], chains.times[chains.ends - 1] + self.gap_us
        partials = [aggregate.partials(chains) for aggregate in self.aggregates.values()]
        new: dict[bytes, tuple[tuple[Any, ...], list[Session]]] = {}
        bounds = zip(chains.firsts(self.by), firsts.tolist(), ends.tolist(), strict=True)
        for at, (key, start, end) in enumerate(bounds):
            session = Session(start, end, [partial[at] for partial in partials])
            new.setdefault(digest(key), (key, []))[1].append(session)
        change = _Effects()
        for place, (key, sessions) in new.items():
            self._take_key(place, key, sessions, change, now_us)
        for time_us in change.timers:
            self._handle.registerTimer(timer_at(time_us))
        return change.results

    def _take_key(
        self, place: bytes, key: tuple[Any, ...], new: list[Session], change: _Effects, now_us: int
    ) -> None:
        _, held = self._held(place)
        # Sessions past the lateness take no more rows: they fire, or are dropped, after the rows.
        kept = [one for one in held if self._gone_at(one) <= now_us]
        alive = [one for one in held if self._gone_at(one) > now_us]
        for cluster in _clusters([*alive, *new]):
            before = [one for one in cluster if one.looked_at is not None]
            if len(before) == len(cluster):  # no new row
                kept.extend(cluster)
                continue
            session = self._joined(cluster)
            # Its start is the key of its result: a result under another start is deleted.
            for one in before:
                if one.revision and one.start != session.start:
                    change.results.append(self._window(key, one, deleted=True))
            if session.end <= now_us:
                change.results.append(self._result(key, session))
                session.fired = True
            elif self.early_ms is not None:
                self._changed.updateValue((place,), (True,))
            self._look_later(place, session, change.timers)
            kept.append(session)
        self._hold(place, key, kept)

    def _joined(self, cluster: Sequence[Session]) -> Session:
        """Merge sessions that belong together into one."""
        first = cluster[0]
        session = Session(first.start, max(one.end for one in cluster), first.partials)
        for one in cluster[1:]:
            session.partials = self.codec.merged(session.partials, one.partials)
        for one in cluster:
            if one.start == session.start:  # at most one of them was emitted
                session.revision = max(session.revision, one.revision)
            if one.looked_at is not None:
                looked_at = one.looked_at if session.looked_at is None else session.looked_at
                session.looked_at = min(looked_at, one.looked_at)
        return session

    def _so_far(self, clock: Clock) -> list[Window]:
        """Return the sessions that changed since the last early results, if it is time for them."""
        if not self.early_is_due(self._early, clock):
            return []
        now_us = self.now_us(clock)
        results = []
        for (place,) in list(self._changed.keys()):
            self._changed.removeKey((place,))
            key, sessions = self._held(bytes(place))
            for session in sessions:
                # A session that is due fires later in this epoch anyway.
                if session.changed and session.end > now_us:
                    results.append(self._result(key, session))
            self._hold(bytes(place), key, sessions)
        return results

    # -- time

    def expire(self, timer_ms: int, clock: Clock) -> Iterator[pa.Table]:
        """Fire the sessions that are due, and drop those that cannot change anymore."""
        now_us = self.now_us(clock)
        change = _Effects()
        due = list(takewhile(lambda key: time_of(key[0]) <= now_us, self._index.keys()))
        for (entry,) in due:
            self._index.removeKey((entry,))
        dropped = False
        for place in dict.fromkeys(bytes(entry[8:]) for (entry,) in due):
            key, sessions = self._held(place)
            kept = []
            for session in sessions:
                if session.end <= now_us and not session.fired:
                    change.results.append(self._result(key, session))
                    session.fired = True
                if self._gone_at(session) > now_us:
                    self._look_later(place, session, change.timers, now_us)
                    kept.append(session)
            if sessions:
                self._hold(place, key, kept)
            dropped |= len(kept) < len(sessions)
        if dropped:
            self.note_dropped(now_us)
        for time_us in change.timers:
            self._handle.registerTimer(timer_at(time_us))
        yield from self.emit(change.results)

    def _gone_at(self, session: Session) -> int:
        return session.end + self.lateness_us

    def _look_later(
        self, place: bytes, session: Session, timers: set[int], now_us: int | None = None
    ) -> None:
        """Ensure that a session is checked when it is due to fire or to be dropped."""
        due = self._gone_at(session) if session.fired else session.end
        entry = session.looked_at
        if entry is not None and entry <= due and (now_us is None or entry > now_us):
            return
        session.looked_at = due
        self._index.updateValue((big_endian(due) + place,), (True,))
        timers.add(due)

    # -- results, and state

    def _result(self, key: tuple[Any, ...], session: Session) -> Window:
        window = self._window(key, session)
        session.revision += 1
        session.changed = False
        return window

    def _window(self, key: tuple[Any, ...], one: Session, *, deleted: bool = False) -> Window:
        return Window(key, one.start, one.end, one.revision, one.partials, deleted)

    def _held(self, place: bytes) -> tuple[tuple[Any, ...], list[Session]]:
        row = self._sessions.getValue((place,))
        if row is None:
            return (), []
        *key, sessions = row
        found = []
        for start, end, revision, looked_at, fired, changed, *values in sessions:
            partials = self.codec.partials(values)
            found.append(Session(start, end, partials, revision, looked_at, fired, changed))
        return tuple(key), found

    def _hold(self, place: bytes, key: tuple[Any, ...], sessions: Sequence[Session]) -> None:
        if not sessions:
            self._sessions.removeKey((place,))
            if self.early_ms is not None:
                self._changed.removeKey((place,))
            return
        rows = []
        for one in sorted(sessions, key=lambda one: one.start):
            flags = (one.looked_at, one.fired, one.changed)
            values = self.codec.values(self._window(key, one))
            rows.append((one.start, one.end, one.revision, *flags, *values))
        self._sessions.updateValue((place,), (*key, rows))


def _clusters(sessions: list[Session]) -> Iterator[list[Session]]:
    """Yield sessions that belong together, in the order of their starts."""
    held: list[Session] = []
    end = 0
    for session in sorted(sessions, key=lambda one: (one.start, one.looked_at is None)):
        if held and session.start > end:
            yield held
            held = []
        end = max(end, session.end) if held else session.end
        held.append(session)
    if held:
        yield held
