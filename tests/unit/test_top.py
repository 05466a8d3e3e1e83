"""Top-N of windows that fire again, against sorting everything that came in time."""

from __future__ import annotations

import math
from typing import Any

import pyarrow as pa
from hypothesis import given, settings
from hypothesis import strategies as st

from beadline.event_time.top import Top
from beadline.event_time.windows import Windowed, WindowShape
from tests.event_time_state import Bucket

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


def table(rows: list[Row]) -> pa.Table:
    columns: list[Any] = list(zip(*rows, strict=True)) or [[], [], [], []]
    times = pa.array([at * 10**6 for at in columns[1]], pa.int64()).cast(TIME)
    arrays = [
        pa.array(list(columns[0]), pa.string()),
        times,
        pa.array(list(columns[2]), pa.float64()),
        pa.array(list(columns[3]), pa.string()),
    ]
    return pa.table(arrays, schema=ROWS)


def windows(top: Top) -> Bucket:
    """Return windows that may fire again."""
    return Bucket(
        Windowed(
            time="at",
            shape=WindowShape(SIZE_S * 10**6, SIZE_S * 10**6),
            by=("k",),
            aggregates={"best": top},
            schema=ROWS,
            lateness_us=LATENESS_S * 10**6,
        )
    )


def told(epochs: list[list[Row]], n: int, *, descending: bool) -> dict[Any, list[Any]]:
    """Return what an upsert sink holds at the end: by key, window and rank."""
    bucket, watermark_s = windows(Top(n, KEPT, descending)), 0
    held: dict[Any, dict[int, Any]] = {}
    for number, rows in enumerate([*epochs, [], []]):
        if number == len(epochs) + 1:
            watermark_s = 10**6
        for part in bucket.epoch(table(rows), watermark_s * 1000):
            for row in (one["main"] for one in part.to_pylist() if one["main"] is not None):
                place = held.setdefault((row["k"], round(row["window_start"].timestamp())), {})
                place.update(enumerate(row["best"]))
        watermark_s = max([watermark_s, *(row[1] - DELAY_S for row in rows)])
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


def test_a_late_row_tells_all_ranks_again() -> None:
    bucket = windows(Top(2, KEPT))
    bucket.epoch(table([("a", 1, 5.0, "m"), ("a", 2, 4.0, "n")]), 0)
    assert [part["main"][0].as_py()["revision"] for part in bucket.epoch(None, 10_000)] == [0]
    (part,) = bucket.epoch(table([("a", 3, 9.0, "o")]), 12_000)
    again = part["main"][0].as_py()
    assert again["revision"] == 1
    assert [row["name"] for row in again["best"]] == ["o", "m"]


def test_what_the_state_holds_does_not_grow_with_the_rows() -> None:
    bucket = windows(Top(3, KEPT))
    sizes = []
    for number in range(50):
        bucket.epoch(table([("a", 1, float(number), "m")]), 0)
        ((value,),) = [list(bucket.states["open"].held.values())]
        sizes.append(sum(len(one) for one in value if isinstance(one, bytes)))
    assert len(set(sizes[3:])) == 1
