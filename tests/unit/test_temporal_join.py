"""The operator of temporal_join() against the simplest search through everything that came."""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from beadline.event_time import asof
from beadline.event_time.asof import AsOf
from beadline.event_time.keys import digest
from beadline.event_time.sides import Sides
from tests.unit.event_time_state import EpochRunner, Told

TIME = pa.timestamp("us", tz="UTC")
LEFT = pa.schema([("k", pa.string()), ("at", TIME), ("n", pa.int64())])
RIGHT = pa.schema(
    [("k", pa.string()), ("since", TIME), ("price", pa.int64()), ("gone", pa.bool_())]
)
INPUT = pa.schema([("left", pa.struct(list(LEFT))), ("right", pa.struct(list(RIGHT)))])
NAMES = Sides(("k",), {"at": "at", "n": "n"}, {"since": "since", "price": "price"})
DELAY_MS = 5
END_MS = 10**6


@dataclass(frozen=True)
class Event:
    """A row of either side; times in milliseconds, in the order in which they come."""

    left: bool
    key: str | None
    at_ms: int | None
    number: int
    gone: bool | None = None

    @property
    def at_us(self) -> int | None:
        return None if self.at_ms is None else self.at_ms * 1000


def rows_of(events: list[Event]) -> list[dict[str, Any]]:
    """Return events as the operator takes them: one column for each side."""
    return [
        {"left": {"k": one.key, "at": one.at_us, "n": one.number}}
        if one.left
        else {"right": {"k": one.key, "since": one.at_us, "price": one.number, "gone": one.gone}}
        for one in events
    ]


def operator(**more: Any) -> AsOf:
    return AsOf(NAMES, "at", "since", LEFT, RIGHT, deleted="gone", **more)


def run(
    one: AsOf, epochs: list[list[Event]], *, to_end: bool = True
) -> tuple[list[Told], EpochRunner]:
    """Run epochs with the watermark that Spark would have; return what comes out, and the state."""
    runner = EpochRunner(one, INPUT)
    newest = {True: -math.inf, False: -math.inf}
    found = []
    for events in [*epochs, []]:
        here = [event for event in events if event.left or event.key is not None]
        found.append(runner.epoch(rows_of(here), more=True))
        for event in events:
            if event.at_ms is not None:
                newest[event.left] = max(newest[event.left], event.at_ms)
        reached = min(newest.values()) - DELAY_MS
        if reached > runner.watermark_ms:
            runner.watermark_ms = int(reached)
    if to_end:
        found.append(runner.advance(END_MS))
    return found, runner


def main(found: list[Told]) -> list[tuple[Any, ...]]:
    rows = [row for told in found for row in told["main"]]
    shown = [(row["n"], row["k"], row["price"], _ms(row["since"])) for row in rows]
    return sorted(shown, key=repr)


def late(found: list[Told]) -> list[int]:
    return sorted(row["n"] for told in found for row in told["late"])


def counted(found: list[Told], name: str) -> list[int]:
    return [row[name] for told in found for row in told[name]]


def held(runner: EpochRunner, name: str) -> dict[Any, Any]:
    """Return the entries of a map in the state."""
    entries: dict[Any, Any] = runner.handle.states[name].held
    return entries


def _ms(time_us: int | None) -> int | None:
    return None if time_us is None else time_us // 1000


def oracle(events: list[Event], *, left_join: bool) -> list[tuple[Any, ...]]:
    """Search all versions for each row."""
    found: list[tuple[Any, ...]] = []
    for row in events:
        if not row.left or row.at_ms is None:
            continue
        versions = [
            (one.at_ms, one.number, one.gone is not None, bool(one.gone))
            for one in events
            if not one.left and one.key == row.key and row.key is not None
            if one.at_ms is not None and one.at_ms <= row.at_ms
        ]
        newest = max(versions, default=None)
        if newest is not None and not newest[3]:
            found.append((row.number, row.key, newest[1], newest[0]))
        elif left_join:
            found.append((row.number, row.key, None, None))
    return sorted(found, key=repr)


@st.composite
def in_time(draw: st.DrawFn) -> list[list[Event]]:
    """Events that are out of order by less than the delay, cut into epochs anywhere."""
    times = sorted(draw(st.lists(st.integers(1, 60), max_size=25)))
    # At most 5 behind the newest before it: its own time, less 0 to 4, put in the order of these.
    shifted = sorted(
        (at + draw(st.integers(0, DELAY_MS - 1)), number, at) for number, at in enumerate(times)
    )
    events = [
        Event(
            draw(st.booleans()),
            draw(st.sampled_from(["a", "b", None])),
            at if draw(st.integers(0, 9)) else None,
            number=number % 7,
            gone=draw(st.sampled_from([None, False, True])),
        )
        for number, (_, _, at) in enumerate(shifted)
    ]
    cuts = sorted(draw(st.sets(st.integers(0, len(events)), max_size=5)))
    bounds = [0, *cuts, len(events)]
    return [events[start:end] for start, end in pairwise(bounds)]


@settings(deadline=None, max_examples=60)
@given(in_time(), st.booleans(), st.integers(1, 4))
def test_every_row_has_the_version_of_its_time(
    epochs: list[list[Event]], left_join: bool, chunk_rows: int
) -> None:
    before, asof.CHUNK_ROWS_MAX = asof.CHUNK_ROWS_MAX, chunk_rows
    try:
        found, runner = run(operator(keeps_unmatched=left_join, keeps_late=True), epochs)
    finally:
        asof.CHUNK_ROWS_MAX = before
    events = [event for epoch in epochs for event in epoch]
    assert main(found) == oracle(events, left_join=left_join)
    assert late(found) == sorted(one.number for one in events if one.left and one.at_ms is None)
    assert held(runner, "waiting") == {}
    assert runner.handle.timers == set()


@settings(deadline=None, max_examples=60)
@given(st.lists(st.lists(st.tuples(st.booleans(), st.integers(1, 99)), max_size=4), max_size=8))
def test_each_row_shows_once_or_is_late(cut: list[list[tuple[bool, int]]]) -> None:
    number = iter(range(10**6))
    epochs = [[Event(left, "a", at, next(number)) for left, at in epoch] for epoch in cut]
    found, runner = run(operator(keeps_unmatched=True, keeps_late=True), epochs)
    shown = [row[0] for row in main(found)]
    rows = [event.number for epoch in epochs for event in epoch if event.left]
    assert sorted([*shown, *late(found)]) == rows
    assert len(late(found)) == len(set(late(found)))
    # And when: late at or behind the watermark, else once it has passed, with the newest version.
    waiting: list[Event] = []
    known: list[tuple[int, int]] = []
    for told, events, reached in zip(found, [*epochs, [], []], runner.watermarks_ms, strict=True):
        late_here = [one.number for one in events if one.left and 0 < (one.at_ms or 0) <= reached]
        waiting += [one for one in events if one.left and one.number not in late_here]
        known += [(one.at_ms or 0, one.number) for one in events if not one.left]
        due = [one for one in waiting if (one.at_ms or 0) <= reached]
        waiting = [one for one in waiting if one not in due]
        answers = []
        for one in due:
            newest = max((each for each in known if each[0] <= (one.at_ms or 0)), default=None)
            answers.append((one.number, "a", *((newest[1], newest[0]) if newest else (None, None))))
        assert (late([told]), main([told])) == (sorted(late_here), sorted(answers, key=repr))


def rows(*events: tuple[str, int, int]) -> list[Event]:
    """Return events of key a: ("left", time, number)."""
    return [Event(side == "left", "a", at, number) for side, at, number in events]


def test_a_version_of_the_same_time_counts() -> None:
    found, _ = run(operator(keeps_late=True), [rows(("left", 10, 1), ("right", 10, 7))])
    assert main(found) == [(1, "a", 7, 10)]


@pytest.mark.parametrize("order", [(7, 8), (8, 7)])
def test_of_versions_of_one_time_the_larger_counts(order: tuple[int, int]) -> None:
    one, other = order
    together = rows(("right", 10, one), ("right", 10, other), ("left", 11, 1))
    assert main(run(operator(keeps_late=True), [together])[0]) == [(1, "a", 8, 10)]
    apart = [rows(("right", 10, one)), rows(("right", 10, other), ("left", 11, 1))]
    assert main(run(operator(keeps_late=True), apart)[0]) == [(1, "a", 8, 10)]


def test_versions_that_nothing_can_need_are_forgotten() -> None:
    epochs = [rows(("left", at, at), ("right", at, at)) for at in range(10, 300)]
    _, runner = run(operator(), epochs, to_end=False)
    (versions,) = held(runner, "versions").values()
    # The newest by the watermark, and what is newer.
    assert asof._unpacked(versions, RIGHT).num_rows <= DELAY_MS + 2
    assert len(held(runner, "waiting")) <= DELAY_MS + 2
    assert len(runner.handle.timers) <= DELAY_MS + 2


def test_a_key_whose_newest_version_is_deleted_is_forgotten() -> None:
    events = [Event(False, "a", 10, 1, gone=False), Event(False, "a", 20, 2, gone=True)]
    found, runner = run(operator(), [events, rows(("left", 90, 1), ("right", 95, 3))])
    assert main(found) == []
    epochs = [
        events,
        [Event(True, "b", 90, 1), Event(False, "b", 95, 3)],
        [Event(False, "a", 20, 0)],
    ]
    _, runner = run(operator(), epochs)
    assert digest(("a",)) not in [place for (place,) in held(runner, "versions")]


def test_what_is_late_is_counted_where_nothing_takes_it() -> None:
    epochs = [rows(("left", 50, 1), ("right", 50, 1)), rows(("left", 45, 2), ("right", 40, 2))]
    found, _ = run(operator(), epochs)
    assert counted(found, "dropped") == [1]
    assert counted(found, "late_versions") == [1]
    found, _ = run(operator(keeps_late=True), epochs)
    assert late(found) == [2]


def test_a_late_version_is_used_for_rows_that_wait() -> None:
    epochs = [rows(("left", 52, 1), ("right", 50, 1), ("right", 60, 2))]
    epochs.append(rows(("right", 51, 3), ("right", 46, 4)))
    found, _ = run(operator(), [rows(("left", 57, 0), ("right", 50, 1)), *epochs])
    assert (1, "a", 3, 51) in main(found)


def test_rows_of_before_1970_wait_like_others() -> None:
    epochs = [
        rows(("left", -50, 1), ("right", -60, 7)),
        [],
        rows(("left", 90, 2), ("right", 90, 8)),
    ]
    found, runner = run(operator(keeps_late=True), epochs)
    assert main(found) == [(1, "a", 7, -60), (2, "a", 8, 90)]
    assert runner.handle.timers == set()


def test_the_version_that_is_valid_at_the_watermark_stays() -> None:
    moved = [Event(True, "b", 60, 0), Event(False, "b", 60, 0)]
    # In the third epoch the watermark has passed the version of a, and the row that it answers.
    epochs = [rows(("right", 10, 7), ("left", 11, 1)), moved, [], rows(("left", 70, 2))]
    found, _ = run(operator(), epochs)
    assert [row for row in main(found) if row[1] == "a"] == [(1, "a", 7, 10), (2, "a", 7, 10)]


FAR_US = (
    253_402_318_799_000_000  # what 9999-12-31 23:59:59 is in New York: Python has no year 10000
)


def test_versions_of_one_time_with_a_time_too_far_for_python() -> None:
    right = pa.schema([*RIGHT, ("until", TIME)])
    input_ = pa.schema([INPUT.field("left"), ("right", pa.struct(list(right)))])
    sides = Sides(("k",), NAMES.left, {"price": "price", "until": "until"})
    runner = EpochRunner(AsOf(sides, "at", "since", LEFT, right), input_)
    versions = [{"k": "a", "since": 1, "price": 7, "until": until} for until in (FAR_US, None)]
    row = {"left": {"k": "a", "at": 2, "n": 1}}
    runner.epoch([*({"right": version} for version in versions), row], more=True)
    assert [row["until"] for row in runner.advance(END_MS)["main"]] == [FAR_US]
