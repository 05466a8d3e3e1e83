"""Top-N of windows that fire again, against sorting everything that came in time."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pyarrow as pa
from hypothesis import given, settings
from hypothesis import strategies as st

from beadline.event_time.codec import Window, WindowCodec
from beadline.event_time.groups import Groups
from beadline.event_time.top import Top
from beadline.event_time.windows import Windowed, WindowShape
from tests.unit.event_time_state import EpochRunner

TIME = pa.timestamp("us", tz="UTC")
ROWS = pa.schema([("k", pa.string()), ("at", TIME), ("x", pa.float64()), ("name", pa.string())])
KEPT = pa.schema([("x", pa.float64()), ("name", pa.string())])
SIZE_S = 10
LATENESS_S = 20
DELAY_S = 5

Row = tuple[str | None, int, float | None, str | None]  # key, seconds, value, name
VALUES = st.sampled_from([None, math.nan, -1.0, 0.0, 1.0, 2.0])
EVENTS = st.lists(
    st.lists(
        st.tuples(
            st.sampled_from(["a", None]),
            st.integers(1, 60),
            VALUES,
            st.sampled_from(["m", "n", None]),
        ),
        max_size=8,
    ),
    max_size=6,
)


def rows_of(*rows: Row) -> list[dict[str, Any]]:
    return [{"k": k, "at": at * 10**6, "x": x, "name": name} for k, at, x, name in rows]


def windows(top: Top) -> EpochRunner:
    """Return windows that may fire again."""
    operator = Windowed(
        time="at",
        shape=WindowShape(SIZE_S * 10**6, SIZE_S * 10**6),
        by=("k",),
        aggregates={"best": top},
        schema=ROWS,
        lateness_us=LATENESS_S * 10**6,
    )
    return EpochRunner(operator, ROWS, time="at", delay_ms=DELAY_S * 1000)


def told(epochs: list[list[Row]], n: int, *, descending: bool) -> dict[Any, list[Any]]:
    """Return what an upsert sink holds at the end: by key, window and rank."""
    runner = windows(Top(n, KEPT, descending))
    found = [runner.epoch(rows_of(*rows), more=True) for rows in epochs]
    held: dict[Any, dict[int, Any]] = {}
    for row in (row for one in [*found, runner.advance(10**9)] for row in one["main"]):
        place = held.setdefault((row["k"], row["window_start"] // 10**6), {})
        place.update(enumerate(row["best"]))
    return {place: [ranks[at] for at in sorted(ranks)] for place, ranks in held.items()}


def oracle(epochs: list[list[Row]], n: int, *, descending: bool) -> dict[Any, list[Any]]:
    """Sort the rows of each window that were in time."""
    windows: dict[Any, list[Row]] = {}
    watermark_s = 0
    for rows in epochs:
        for row in rows:
            start = row[1] // SIZE_S * SIZE_S
            if watermark_s <= 0 or start + SIZE_S + LATENESS_S > watermark_s:
                windows.setdefault((row[0], start), []).append(row)
        watermark_s = max([watermark_s, *(row[1] - DELAY_S for row in rows)])

    def place(row: Row) -> Any:
        value, name = row[2], row[3]
        unknown = 2 if value is None else int(math.isnan(value))
        size = 0.0 if unknown else value or 0.0
        return unknown, -size if descending else size, name is None, name or ""

    return {
        window: [{"x": row[2], "name": row[3]} for row in sorted(rows, key=place)[:n]]
        for window, rows in windows.items()
    }


@settings(deadline=None, max_examples=60)
@given(EVENTS, st.integers(1, 4), st.booleans())
def test_ranks_are_those_of_all_rows_in_time(
    epochs: list[list[Row]], n: int, descending: bool
) -> None:
    # As text: NaN is not equal to itself.
    assert repr(sorted(told(epochs, n, descending=descending).items(), key=repr)) == repr(
        sorted(oracle(epochs, n, descending=descending).items(), key=repr)
    )


def test_a_late_row_emits_all_ranks_again() -> None:
    runner = windows(Top(2, KEPT))
    runner.epoch(rows_of(("a", 1, 5.0, "m"), ("a", 2, 4.0, "n")))
    assert [row["revision"] for row in runner.advance(10_000)["main"]] == [0]
    (again,) = runner.epoch(rows_of(("a", 3, 9.0, "o")))["main"]
    assert again["revision"] == 1
    assert [row["name"] for row in again["best"]] == ["o", "m"]


def test_what_the_state_holds_does_not_grow_with_the_rows() -> None:
    runner = windows(Top(3, KEPT))
    sizes = []
    for number in range(50):
        runner.epoch(rows_of(("a", 1, float(number), "m")))
        (value,) = runner.handle.states["open"].held.values()
        sizes.append(sum(len(one) for one in value if isinstance(one, bytes)))
    assert len(set(sizes[3:])) == 1


def test_rows_with_a_time_too_far_for_python_have_ranks() -> None:
    """9999-12-31 23:59:59 in New York is of the year 10000 in UTC, and 1-1-1 in Berlin of 0."""
    times = [253_402_318_799_000_000, -62_135_600_000_000_000]
    table = pa.table({"x": [1.0, 2.0], "until": pa.array(times, TIME)})
    top = Top(2, table.schema)
    (partial,) = top.partials(Groups(table, np.array([0]), np.array([1, 2])))
    codec = WindowCodec(ROWS, (), {"best": top})
    (row,) = codec.results([Window((), 0, 1, 0, [partial])])["best"].combine_chunks()
    assert row.values.field("until").cast(pa.int64()).to_pylist() == times[::-1]
