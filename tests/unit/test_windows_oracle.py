"""Windows against an oracle: plain Python over the complete input, with its epochs.

The oracle knows nothing of state, timers and partials: it decides row by row what is late, keeps
all others, and computes every window from its rows. Hypothesis makes the rows, their order, the
cuts into epochs, and the windows.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from itertools import pairwise
from typing import Any, ClassVar

import pandas as pd
import pyarrow as pa
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from beadline.event_time import (
    CustomAggregate,
    approx_distinct,
    avg_of,
    collect_of,
    count,
    first_of,
    last_of,
    max_of,
    min_of,
    sum_of,
)
from beadline.event_time.counted import CountedWindows
from beadline.event_time.custom import AggregateTypes
from beadline.event_time.sessions import Sessions
from beadline.event_time.top import Top
from beadline.event_time.windows import Windowed, WindowShape
from tests.unit.event_time_state import EpochRunner, Told, tie_of

SECOND = 1_000_000
ALL_DUE_MS = 70_000  # behind the end of every window, and not behind its lateness
SCHEMA = pa.schema(
    [
        pa.field("n", pa.int64()),  # tells rows apart
        pa.field("k", pa.string()),
        pa.field("ts", pa.timestamp("us", tz="Europe/Berlin")),
        pa.field("x", pa.int64()),
    ]
)
AGGREGATES = {
    "rows": count(),
    "xs": count("x"),
    "total": sum_of("x"),
    "low": min_of("x"),
    "high": max_of("x"),
    "mean": avg_of("x"),
    "all": collect_of("x"),
    "first": first_of("x"),
    "last": last_of("x"),
}
Row = dict[str, Any]
Epochs = list[tuple[list[Row], bool]]  # with each: whether the next one's rows are there already
# Whole seconds, so that window edges, gaps and equal times are common, and a little beside them.
TIMES = st.one_of(
    st.none(),
    st.builds(
        lambda second, beside: second * SECOND + beside,
        st.integers(-15, 45),
        st.sampled_from([0, 0, 0, 0, -1, 1, 1000, 999_999]),
    ),
)
ROWS = st.fixed_dictionaries(
    {
        "k": st.sampled_from([None, "a", "b"]),
        "ts": TIMES,
        "x": st.one_of(st.none(), st.integers(-3, 3)),
    }
)
EPOCHS = st.lists(st.tuples(st.lists(ROWS, max_size=6), st.booleans()), min_size=1, max_size=7)
DELAYS_MS = st.sampled_from([0, 1, 2_000, 10_000])
LATENESS = st.sampled_from([0, 1_000, 3 * SECOND, 20 * SECOND])
EARLY = st.sampled_from([None, None, 1, 2])
SHAPES = st.builds(
    lambda slide, times, offset: WindowShape(slide * times, slide, offset % slide),
    st.sampled_from([5 * SECOND, 7 * SECOND, 1_500]),
    st.integers(1, 3),
    st.sampled_from([0, 2 * SECOND, 1]),
)
fast = settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.too_slow])


def numbered(epochs: Epochs) -> Epochs:
    """Give every row a number of its own."""
    n = 0
    found: Epochs = []
    for rows, more in epochs:
        found.append(([{"n": n + at, **row} for at, row in enumerate(rows)], more))
        n += len(rows)
    return found


def values(rows: Sequence[Row]) -> Row:
    """What the aggregates say of some rows."""
    pairs = sorted((row["ts"], row["x"]) for row in rows if row["x"] is not None)
    xs = [x for _, x in pairs]
    return {
        "rows": len(rows),
        "xs": len(xs),
        "total": sum(xs) if xs else None,
        "low": min(xs, default=None),
        "high": max(xs, default=None),
        "mean": sum(xs) / len(xs) if xs else None,
        "all": xs,
        "first": xs[0] if xs else None,
        "last": xs[-1] if xs else None,
    }


class Run:
    """All epochs of an operator, then those of other keys, by which everything is due and gone."""

    def __init__(self, operator: Any, epochs: Epochs, delay_ms: int) -> None:
        self.watermarks_ms: list[int] = []
        self.runs_ms: list[list[int]] = []  # the watermarks of an epoch, and of the one behind it
        self.told: list[Told] = []
        self.runner = EpochRunner(operator, SCHEMA, time="ts", delay_ms=delay_ms)
        for rows, more in epochs:
            self.watermarks_ms.append(self.runner.watermark_ms)
            self.runner.now_ms += 1
            before = len(self.runner.watermarks_ms)
            self.told.append(self.runner.epoch(rows, more=more))
            self.runs_ms.append(self.runner.watermarks_ms[before:])
        for watermark_ms in (ALL_DUE_MS, ALL_DUE_MS, ALL_DUE_MS + 100_000):
            self.told.append(self.runner.advance(watermark_ms))
            self.runs_ms.append(self.runner.watermarks_ms[-1:])
        left = {name for name, state in self.runner.handle.states.items() if state.exists()}
        assert left <= {"early", "dropped"}  # of a bucket, not of its windows
        assert not self.runner.handle.timers

    @property
    def results(self) -> list[Row]:
        return [row for told in self.told for row in told["main"]]

    @property
    def late(self) -> list[list[int]]:
        """The numbers of the late rows of each epoch."""
        assert not any(told["late"] for told in self.told[-3:])
        return [sorted(row["n"] for row in told["late"]) for told in self.told[:-3]]

    def final(self) -> dict[tuple[Any, int], Row]:
        """The result of the highest revision of each key and window."""
        newest: dict[tuple[Any, int], Row] = {}
        for row in self.results:
            place = (row["k"], row["window_start"])
            assert row["revision"] == (newest[place]["revision"] + 1 if place in newest else 0)
            newest[place] = row
        return newest


def is_late(time: int | None, length: int, lateness: int, watermark_ms: int) -> bool:
    """Whether something that begins at a time is over; before the first watermark, nothing is."""
    if time is None:
        return True
    return watermark_ms > 0 and time + length + lateness <= watermark_ms * 1000


# -- tumbling and sliding


def oracle_of_windows(
    epochs: Epochs, watermarks_ms: list[int], shape: WindowShape, lateness: int
) -> tuple[dict[tuple[Any, int], Row], list[list[int]]]:
    kept: dict[tuple[Any, int], list[Row]] = {}
    late: list[list[int]] = []
    for (rows, _), watermark_ms in zip(epochs, watermarks_ms, strict=False):
        late.append([])
        for row in rows:
            starts = starts_of(row["ts"], shape)
            if not starts or is_late(starts[0], shape.size_us, lateness, watermark_ms):
                late[-1].append(row["n"])
                continue
            for start in starts:
                if not is_late(start, shape.size_us, lateness, watermark_ms):
                    kept.setdefault((row["k"], start), []).append(row)
    return {place: values(rows) for place, rows in kept.items()}, late


def starts_of(time: int | None, shape: WindowShape) -> list[int]:
    """The starts of a row's windows, from the newest one."""
    starts: list[int] = []
    if time is None:
        return starts
    start = shape.offset_us
    while start > time:
        start -= shape.slide_us
    start += (time - start) // shape.slide_us * shape.slide_us
    while start + shape.size_us > time:
        starts.append(start)
        start -= shape.slide_us
    return starts


def firings(
    epochs: Epochs, runs_ms: list[list[int]], shape: WindowShape, lateness: int
) -> list[list[Row]]:
    """What each epoch emits: windows that have ended, and fired ones that have new rows."""
    kept: dict[tuple[Any, int], list[Row]] = {}
    fired: Counter[tuple[Any, int]] = Counter()
    told: list[list[Row]] = []
    for number, watermarks_ms in enumerate(runs_ms):
        changed = set()
        for row in epochs[number][0] if number < len(epochs) else []:
            for start in starts_of(row["ts"], shape):
                if not is_late(start, shape.size_us, lateness, watermarks_ms[0]):
                    kept.setdefault((row["k"], start), []).append(row)
                    changed.add((row["k"], start))
        told.append([])
        for watermark_ms in watermarks_ms:
            for (key, start), rows in kept.items():
                is_over = is_late(start, shape.size_us, 0, watermark_ms)
                if (key, start) in changed if fired[key, start] else is_over:
                    revision = fired[key, start]
                    told[-1].append({"k": key, "at": start, "revision": revision, **values(rows)})
                    fired[key, start] += 1
            changed = set()
    return told


@fast
@given(EPOCHS, SHAPES, DELAYS_MS, LATENESS, EARLY)
@example(  # a window that fires, and is corrected twice
    [([{"k": "a", "ts": second * SECOND, "x": 1}], False) for second in (1, 12, 2, 3)],
    WindowShape(5 * SECOND, 5 * SECOND),
    0,
    20 * SECOND,
    None,
)
def test_windows_are_those_of_the_oracle(
    epochs: Epochs, shape: WindowShape, delay_ms: int, lateness: int, early_ms: int | None
) -> None:
    epochs = numbered(epochs)
    operator = Windowed(
        time="ts",
        shape=shape,
        by=("k",),
        aggregates=AGGREGATES,
        schema=SCHEMA,
        lateness_us=lateness,
        keeps_late=True,
        early_ms=early_ms,
    )
    run = Run(operator, epochs, delay_ms)
    expected, late = oracle_of_windows(epochs, run.watermarks_ms, shape, lateness)
    assert run.late == late
    final = run.final()
    assert {place: {name: row[name] for name in AGGREGATES} for place, row in final.items()} == (
        expected
    )
    assert all(row["window_end"] - row["window_start"] == shape.size_us for row in run.results)
    if early_ms is None:
        names = ("k", "revision", *AGGREGATES)
        found = [
            [
                {"at": row["window_start"]} | {name: row[name] for name in names}
                for row in one["main"]
            ]
            for one in run.told
        ]
        expected_firings = firings(epochs, run.runs_ms, shape, lateness)
        for one, other in zip(found, expected_firings, strict=True):
            assert in_order(one) == in_order(other)


def in_order(rows: list[Row]) -> list[list[tuple[str, Any]]]:
    """Rows that may come in any order; each has a key, a window and a revision of its own."""
    return sorted((sorted(row.items()) for row in rows), key=repr)


# -- sessions


def sessions_of(rows: Sequence[Row], gap: int) -> list[list[Row]]:
    """Rows of one key by session: two that are at most the gap apart are in one."""
    found: list[list[Row]] = []
    for row in sorted(rows, key=lambda row: row["ts"]):
        if found and row["ts"] - found[-1][-1]["ts"] <= gap:
            found[-1].append(row)
        else:
            found.append([row])
    return found


def oracle_of_sessions(
    epochs: Epochs, watermarks_ms: list[int], gap: int, lateness: int, joins: bool
) -> tuple[dict[tuple[Any, int], Row], list[list[int]]]:
    """``joins``: a row that is late by itself may fall into a session that is not over."""
    kept: dict[Any, list[Row]] = {}
    over: list[tuple[Any, list[Row]]] = []
    late: list[list[int]] = []
    for (rows, _), watermark_ms in zip(epochs, watermarks_ms, strict=False):
        late.append([])
        for key, mine in kept.items():  # what is over takes no more rows
            for session in sessions_of(mine, gap):
                if is_late(session[-1]["ts"], gap, lateness, watermark_ms):
                    over.append((key, session))
                    kept[key] = [row for row in kept[key] if row not in session]
        held = {key: sessions_of(kept[key], gap) for key in kept}
        for row in rows:
            inside = (
                joins
                and row["ts"] is not None
                and any(
                    one[0]["ts"] <= row["ts"] <= one[-1]["ts"] + gap
                    for one in held.get(row["k"], [])
                )
            )
            if is_late(row["ts"], gap, lateness, watermark_ms) and not inside:
                late[-1].append(row["n"])
            else:
                kept.setdefault(row["k"], []).append(row)
    over += [(key, session) for key in kept for session in sessions_of(kept[key], gap)]
    starts = Counter((key, session[0]["ts"]) for key, session in over)
    assert set(starts.values()) <= {1}, "two sessions would have one key"
    return {
        (key, rows[0]["ts"]): {"window_end": rows[-1]["ts"] + gap, **values(rows)}
        for key, rows in over
    }, late


@settings(fast, max_examples=200)
@given(
    EPOCHS,
    st.sampled_from([SECOND, 4 * SECOND, 4 * SECOND + 1]),
    DELAYS_MS,
    LATENESS,
    st.booleans(),
    EARLY,
)
@example(  # a row that joins three sessions that have fired
    [
        ([{"k": "a", "ts": second * SECOND, "x": 1} for second in (0, 8, 16, 25)], False),
        ([{"k": "a", "ts": second * SECOND, "x": 1} for second in (4, 12)], False),
    ],
    4 * SECOND,
    0,
    20 * SECOND,
    True,
    None,
)
def test_sessions_are_those_of_the_oracle(
    epochs: Epochs, gap: int, delay_ms: int, lateness: int, joins: bool, early_ms: int | None
) -> None:
    epochs = numbered(epochs)
    operator = Sessions(
        time="ts",
        gap_us=gap,
        by=("k",),
        aggregates=AGGREGATES,
        schema=SCHEMA,
        lateness_us=lateness,
        keeps_late=True,
        joins_late=joins,
        early_ms=early_ms,
    )
    run = Run(operator, epochs, delay_ms)
    expected, late = oracle_of_sessions(epochs, run.watermarks_ms, gap, lateness, joins)
    assert run.late == late
    final = {place: row for place, row in run.final().items() if not row["deleted"]}
    names = ("window_end", *AGGREGATES)
    assert {place: {name: row[name] for name in names} for place, row in final.items()} == expected


# -- the same rows in other epochs


class Doubled(CustomAggregate):
    """An aggregate of a user's own."""

    state_type: ClassVar[AggregateTypes] = (pa.int64(),)
    returns = pa.int64()

    def add(self, rows: pd.DataFrame) -> tuple[Any, ...]:
        return (2 * len(rows),)

    def merge(self, one: tuple[Any, ...], other: tuple[Any, ...]) -> tuple[Any, ...]:
        return (one[0] + other[0],)

    def result(self, partial: tuple[Any, ...]) -> Any:
        return partial[0]


BEST = pa.schema([SCHEMA.field("x"), SCHEMA.field("n")])
CUT = {**AGGREGATES, "best": Top(2, BEST), "doubled": Doubled(), "distinct": approx_distinct("x")}


@settings(fast, max_examples=60)
@given(
    st.lists(ROWS, max_size=20),
    st.lists(st.lists(st.integers(0, 20), max_size=5), min_size=2, max_size=2),
    st.one_of(SHAPES, st.sampled_from([SECOND, 4 * SECOND])),
)
@example(  # sessions that merge, in one epoch and in two
    [{"k": "a", "ts": second * SECOND, "x": second} for second in (0, 8, 16, 25, 4, 12)],
    [[], [4]],
    4 * SECOND,
)
def test_where_nothing_is_late_cuts_do_not_matter(
    rows: list[Row], cuts: list[list[int]], shape: WindowShape | int
) -> None:
    """Nothing is late while the lateness is longer than the time between any two rows."""
    rows = [row for row in rows if row["ts"] is not None]
    common: dict[str, Any] = {
        "time": "ts", "by": ("k",), "aggregates": CUT, "schema": SCHEMA,
        "lateness_us": 100 * SECOND, "keeps_late": True,
    }  # fmt: skip
    operator = (
        Sessions(gap_us=shape, **common)
        if isinstance(shape, int)
        else Windowed(shape=shape, **common)
    )
    finals = []
    for places in cuts:
        bounds = sorted([0, *(min(place, len(rows)) for place in places), len(rows)])
        parts = [rows[start:end] for start, end in pairwise(bounds)]
        run = Run(operator, numbered([(part, False) for part in parts]), 1_000)
        assert not any(run.late)
        names = ("window_end", *CUT)
        finals.append(
            {
                place: {name: row[name] for name in names}
                for place, row in run.final().items()
                if not row.get("deleted")
            }
        )
    assert finals[0] == finals[1]


# -- counted rows


@fast
@given(EPOCHS, st.integers(1, 4), st.booleans())
def test_counted_rows_are_those_of_the_oracle(epochs: Epochs, every: int, timed: bool) -> None:
    epochs = numbered(epochs)
    aggregates = {"rows": count(), "total": sum_of("n"), "all": collect_of("n")}
    operator = CountedWindows(
        time="ts" if timed else None, by=("k",), aggregates=aggregates, schema=SCHEMA,
        every_rows=every,
    )  # fmt: skip
    runner = EpochRunner(operator, SCHEMA)
    told = [row for rows, _ in epochs for row in runner.epoch(rows)["main"]]
    by_key: dict[Any, list[Row]] = {}
    for rows, _ in epochs:
        in_order = sorted(rows, key=tie_of)
        if timed:
            in_order.sort(key=lambda row: (row["ts"] is None, row["ts"] or 0))
        for row in in_order:
            by_key.setdefault(row["k"], []).append(row)
    expected = {}
    for key, rows in by_key.items():
        for number in range(len(rows) // every):
            window = rows[number * every : (number + 1) * every]
            if timed:
                window = sorted(window, key=lambda r: (r["ts"] is None, r["ts"] or 0, r["n"]))
            expected[key, number] = [row["n"] for row in window]
    assert {(row["k"], row["window_number"]): row["all"] for row in told} == expected
    assert len(told) == len(expected)
    assert all(row["rows"] == every and row["revision"] == 0 for row in told)
    assert all(row["total"] == sum(row["all"]) for row in told)
