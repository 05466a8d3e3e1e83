"""What sinks look for in rows that their target could never take."""

from __future__ import annotations

import pyarrow as pa

from beadline.ids import PartId
from beadline.sink import Part, larger_than, nulls, without_far_dates

FAR_S = 253_402_300_800  # the year 10000


def test_a_nan_is_a_null_only_where_the_target_keeps_none() -> None:
    numbers, words = pa.array([1.0, None, float("nan")]), pa.array(["nan", "", "x"])
    assert nulls(numbers).to_pylist() == [False, True, False]
    assert nulls(numbers, nan=True).to_pylist() == [False, True, True]
    assert nulls(words) is None
    assert nulls(words, nan=True) is None


def test_sizes_are_added_up_and_a_null_has_none() -> None:
    columns = [
        pa.array(["ab", None, "abcd"]),
        pa.array([b"abc", b"abc", None], pa.large_binary()),
        pa.array([b"x", b"x", None], pa.binary(1)),
    ]
    assert larger_than(5, columns).to_pylist() == [True, False, False]
    assert larger_than(pa.array([6, 3, 4]), columns).to_pylist() == [False, True, False]
    assert larger_than(0, []) is None


def test_a_date_without_text_does_not_count_in_a_row_that_is_deleted() -> None:
    refused: list[int] = []
    part = Part(
        PartId("q", "a" * 32, "s", 1, 0, 0, 0),
        refuse=lambda rows, reason: refused.extend(rows.column("n").to_pylist()),
    )
    batch = pa.record_batch(
        {
            "n": [1, 2, 3],
            "at": pa.array([0, FAR_S, FAR_S], pa.timestamp("s")),
            "gone": [False, True, False],
        }
    )
    kept = without_far_dates(batch, "at", part, but=batch.column("gone"))
    assert (kept.column("n").to_pylist(), refused) == ([1, 2], [3])
    assert without_far_dates(batch, "at", part).column("n").to_pylist() == [1]
