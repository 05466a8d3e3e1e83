"""Session windows with allowed lateness: rows of a key that follow each other within a gap.

A session begins with its first row and ends a gap behind its last one. As with Spark's
``session_window``, a row that comes exactly at the end of a session belongs to it. A row may make
a session longer, begin it earlier, or join several sessions to one, also when they have fired: then
the result is told again with a higher ``revision``. A result is known by its key and
``window_start``, so where the start changes, the old one is told once more with ``deleted``.

A row is *late* if a session of this row alone would be past the watermark and the allowed lateness,
unless it falls into a session that is still held. (Without that condition a row that is very late
could begin a session earlier than the ones that were forgotten, and be told under the start of one
of them. Spark's own sessions, without lateness, have no such exception; so it is not made either
where no lateness was asked for.)

State, per bucket of keys: all sessions of a key in one row, since a key has few; and an index by
the time at which something is due. An index entry says when to look at a key and no more: a session
that has grown since is looked at then, and gets another entry. So a session costs an entry per gap,
not per epoch.
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
    PLACE,
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
    """One session of a key. ``revision`` is that of its next result: 0 until it is told."""

    start: int
    end: int
    partials: list[Partial]
    revision: int = 0
    looked_at: int | None = None  # the time of its entry in the index
    fired: bool = False
    changed: bool = True  # since it was told


@dataclass
class _Change:
    """What an epoch makes of the sessions of its keys."""

    told: list[Window] = field(default_factory=list)
    timers: set[int] = field(default_factory=set)


@dataclass(kw_only=True)
class Sessions(WindowOperator):
    """The operator of session windows."""

    gap_us: int
    joins_late: bool = True  # rows that are late by themselves into sessions that are still held

    def __post_init__(self) -> None:
        """Work out the columns of state and results."""
        self.use(WindowCodec(self.schema, self.by, self.aggregates, deletes=True))

    def open(self, handle: StatefulProcessorHandle) -> None:
        """Name the state."""
        self._handle = handle
        session = pa.struct([*_SESSION, *self.codec.partial_fields])
        held = spark_schema([*self.codec.key_fields, pa.field("sessions", pa.list_(session))])
        self._sessions: MapState = handle.getMapState("sessions", PLACE, held)
        self._index: MapState = handle.getMapState("index", PLACE, "nothing boolean")
        if self.early_ms is not None:
            self._changed: MapState = handle.getMapState("changed", PLACE, "nothing boolean")
            self._early = handle.getValueState("early", "told_ms bigint")

    # -- rows

    def process(self, rows: pa.Table, clock: Clock) -> Iterator[pa.Table]:
        """Put the rows into sessions."""
        now_us = self.now_us(clock)
        times, known = self.times(rows, now_us)
        in_time = known & (times + self.gap_us + self.lateness_us > now_us)
        if self.joins_late and not in_time.all():
            in_time = in_time | self._falls_into_held(rows, times, known & ~in_time, now_us)
        if not in_time.all():
            yield from self.late(rows.filter(pa.array(~in_time)))
            rows, times = rows.filter(pa.array(in_time)), times[in_time]
        if rows.num_rows:
            yield from self.told(self._take(self._chains(group(rows, self.by, times)), now_us))
        if self.early_ms is not None:
            yield from self.told(self._so_far(clock))

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
        """Cut the rows of each key where two are more than a gap apart."""
        far = np.flatnonzero(np.diff(groups.times) > self.gap_us) + 1
        return groups.cut(np.union1d(groups.starts, far))

    def _take(self, chains: Groups, now_us: int) -> list[Window]:
        """Merge chains of rows into the sessions of their keys; return what is told at once."""
        firsts, ends = chains.times[chains.starts], chains.times[chains.ends - 1] + self.gap_us
        partials = [aggregate.partials(chains) for aggregate in self.aggregates.values()]
        new: dict[bytes, tuple[tuple[Any, ...], list[Session]]] = {}
        bounds = zip(chains.firsts(self.by), firsts.tolist(), ends.tolist(), strict=True)
        for at, (key, start, end) in enumerate(bounds):
            session = Session(start, end, [partial[at] for partial in partials])
            new.setdefault(digest(key), (key, []))[1].append(session)
        change = _Change()
        for place, (key, sessions) in new.items():
            self._take_key(place, key, sessions, change, now_us)
        for time_us in change.timers:
            self._handle.registerTimer(timer_at(time_us))
        return change.told

    def _take_key(
        self, place: bytes, key: tuple[Any, ...], new: list[Session], change: _Change, now_us: int
    ) -> None:
        _, held = self._held(place)
        # What is past the lateness fires, or is forgotten, behind the rows: it takes no more.
        kept = [one for one in held if self._gone_at(one) <= now_us]
        alive = [one for one in held if self._gone_at(one) > now_us]
        for cluster in _clusters([*alive, *new]):
            before = [one for one in cluster if one.looked_at is not None]
            if len(before) == len(cluster):  # no row came to it
                kept.extend(cluster)
                continue
            session = self._joined(cluster)
            # Its start is the key of its result: what was told under another one is withdrawn.
            for one in before:
                if one.revision and one.start != session.start:
                    change.told.append(self._window(key, one, deleted=True))
            if session.end <= now_us:
                change.told.append(self._tell(key, session))
                session.fired = True
            elif self.early_ms is not None:
                self._changed.updateValue((place,), (True,))
            self._look_later(place, session, change.timers)
            kept.append(session)
        self._hold(place, key, kept)

    def _joined(self, cluster: Sequence[Session]) -> Session:
        """Return one session of several that belong together."""
        first = cluster[0]
        session = Session(first.start, max(one.end for one in cluster), first.partials)
        for one in cluster[1:]:
            session.partials = self.codec.merged(session.partials, one.partials)
        for one in cluster:
            if one.start == session.start:  # at most one of them was told
                session.revision = max(session.revision, one.revision)
            if one.looked_at is not None:
                looked_at = one.looked_at if session.looked_at is None else session.looked_at
                session.looked_at = min(looked_at, one.looked_at)
        return session

    def _so_far(self, clock: Clock) -> list[Window]:
        """Return what has changed since results were told early, if it is time to."""
        if not self.early_is_due(self._early, clock):
            return []
        now_us = self.now_us(clock)
        results = []
        for (place,) in list(self._changed.keys()):
            self._changed.removeKey((place,))
            key, sessions = self._held(bytes(place))
            for session in sessions:
                # What is due fires in this very epoch.
                if session.changed and session.end > now_us:
                    results.append(self._tell(key, session))
            self._hold(bytes(place), key, sessions)
        return results

    # -- time

    def expire(self, timer_ms: int, clock: Clock) -> Iterator[pa.Table]:
        """Fire what is due, and forget what cannot change any more."""
        now_us = self.now_us(clock)
        change = _Change()
        due = list(takewhile(lambda key: time_of(key[0]) <= now_us, self._index.keys()))
        for (entry,) in due:
            self._index.removeKey((entry,))
        for place in dict.fromkeys(bytes(entry[8:]) for (entry,) in due):
            key, sessions = self._held(place)
            kept = []
            for session in sessions:
                if session.end <= now_us and not session.fired:
                    change.told.append(self._tell(key, session))
                    session.fired = True
                if self._gone_at(session) > now_us:
                    self._look_later(place, session, change.timers, now_us)
                    kept.append(session)
            if sessions:
                self._hold(place, key, kept)
        for time_us in change.timers:
            self._handle.registerTimer(timer_at(time_us))
        yield from self.told(change.told)

    def _gone_at(self, session: Session) -> int:
        return session.end + self.lateness_us

    def _look_later(
        self, place: bytes, session: Session, timers: set[int], now_us: int | None = None
    ) -> None:
        """See to it that a session is looked at when it is due: to be fired, or forgotten."""
        due = self._gone_at(session) if session.fired else session.end
        entry = session.looked_at
        if entry is not None and entry <= due and (now_us is None or entry > now_us):
            return
        session.looked_at = due
        self._index.updateValue((big_endian(due) + place,), (True,))
        timers.add(due)

    # -- what comes out, and what is held

    def _tell(self, key: tuple[Any, ...], session: Session) -> Window:
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
