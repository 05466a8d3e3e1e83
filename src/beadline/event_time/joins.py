"""Joins of two streams by time: within an interval of each other, or in the same window.

Both are Spark's own stream-stream joins, which keep only the rows that the watermarks and the time
condition require. Beadline adds readable conditions, column names that do not clash, and a defined
treatment of null: Spark's full outer join would match null keys with one another, and would keep a
row without a time in its state forever.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import astuple
from datetime import timedelta
from typing import TYPE_CHECKING, Literal

from pyspark.sql import functions as F

from beadline.errors import NOTHING_WRITTEN, BadQuery
from beadline.event_time.codec import END, START
from beadline.event_time.columns import check_time, column_of
from beadline.event_time.durations import Duration
from beadline.event_time.sides import (
    SPARKS_NAMES,
    Delays,
    Sides,
    Suffixes,
    both_delays,
    check_streaming,
    one_of,
    sides,
    signed_microseconds,
    watermarked,
)
from beadline.event_time.windowed import nulls_counted
from beadline.event_time.windows import window_shape

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

How = Literal["inner", "left", "right", "full"]
_LEFT, _RIGHT = "beadline_left_", "beadline_right_"
_WINDOW = "beadline_window"


def interval_join(
    left: DataFrame,
    right: DataFrame,
    on: Sequence[str] | str,
    *,
    left_time: str,
    right_time: str,
    between: tuple[Duration, Duration],
    how: How = "inner",
    watermark: Delays = None,
    suffixes: Suffixes | None = None,
) -> DataFrame:
    """Join the rows of two streams whose times are within an interval of each other.

    A right row matches if its time is within [left time + lower, left time + upper], both ends
    included, where ``between=(lower, upper)``; a bound may be negative. ``on`` names the key
    columns, which both sides must have; null matches nothing. With ``how="left"``, ``"right"`` or
    ``"full"`` a row without a match is emitted once, with nulls, when the watermark shows that no
    match can come anymore.

    ``watermark`` is the longest that rows may be out of order, one for both sides or one each; None
    if the frames have watermarks of their own. The smaller of the two watermarks counts: rows
    behind it are dropped by Spark, and counted in its progress (``numRowsDroppedByWatermark``).

    >>> paid = interval_join(orders, payments, on="order_id", left_time="ordered_at",
    ...                      right_time="paid_at", between=("0 seconds", "1 hour"), how="left",
    ...                      watermark=("1 minute", "5 minutes"))
    """
    what = "interval_join()"
    join = SPARKS_NAMES[one_of(what, "how", how, SPARKS_NAMES)]
    lower_us, upper_us = _bounds(what, between)
    named = _checked(what, left, right, on, left_time, right_time, suffixes)
    one, other = _with_watermarks(what, left, right, left_time, right_time, watermark)
    one, other = _own_names(one, _LEFT), _own_names(other, _RIGHT)
    from_time, to_time = column_of(_LEFT + left_time), column_of(_RIGHT + right_time)
    condition = (
        _same_keys(named)
        & from_time.isNotNull()
        & to_time.isNotNull()
        & (to_time >= from_time + F.lit(timedelta(microseconds=lower_us)))
        & (to_time <= from_time + F.lit(timedelta(microseconds=upper_us)))
    )
    joined = one.join(other, condition, join)
    return joined.select(*_keys(named, how), *_others(named))


def window_join(
    left: DataFrame,
    right: DataFrame,
    on: Sequence[str] | str,
    *,
    left_time: str,
    right_time: str,
    size: Duration,
    slide: Duration | None = None,
    offset: Duration = "0 seconds",
    how: How = "inner",
    watermark: Delays = None,
    suffixes: Suffixes | None = None,
) -> DataFrame:
    """Join the rows of two streams that have the same keys and fall into the same window.

    Each pair of rows is emitted once per window that contains both, with ``window_start`` and
    ``window_end``; ``slide`` makes windows overlap, as in ``windowed``. With ``how="left"``,
    ``"right"`` or ``"full"``, a row without a match is emitted when the watermark has passed the
    end of its window. A row without a time is in no window, and is not emitted. ``watermark`` is as
    in ``interval_join``.

    >>> seen = window_join(clicks, views, on="page", left_time="clicked_at",
    ...                    right_time="viewed_at", size="10 minutes", watermark="1 minute")
    """
    what = "window_join()"
    join = SPARKS_NAMES[one_of(what, "how", how, SPARKS_NAMES)]
    shape = window_shape(what, size, slide, offset)
    named = _checked(what, left, right, on, left_time, right_time, suffixes, (START, END))
    left, right = nulls_counted(left, left_time), nulls_counted(right, right_time)
    one, other = _with_watermarks(what, left, right, left_time, right_time, watermark)
    lengths = tuple(f"{length} microseconds" for length in astuple(shape))
    one = _in_windows(_own_names(one, _LEFT), _LEFT, left_time, lengths)
    other = _in_windows(_own_names(other, _RIGHT), _RIGHT, right_time, lengths)
    same = column_of(_LEFT + _WINDOW) == column_of(_RIGHT + _WINDOW)
    joined = one.join(other, _same_keys(named) & same, join)
    window = _either(_LEFT + _WINDOW, _RIGHT + _WINDOW, how)
    return joined.select(
        *_keys(named, how),
        window.getField("start").alias(START),
        window.getField("end").alias(END),
        *_others(named),
    )


def _bounds(what: str, between: tuple[Duration, Duration]) -> tuple[int, int]:
    if not isinstance(between, tuple | list) or len(between) != 2:
        raise BadQuery(
            f"{what}: between={between!r}: it takes two durations, such as ('-5 minutes', "
            f"'10 minutes'). {NOTHING_WRITTEN}"
        )
    lower_us, upper_us = (signed_microseconds("between", bound) for bound in between)
    if lower_us > upper_us:
        raise BadQuery(
            f"{what}: between={tuple(between)!r}: the lower bound is above the upper one, so "
            f"nothing could match; swap them. {NOTHING_WRITTEN}"
        )
    return lower_us, upper_us


def _checked(
    what: str,
    left: DataFrame,
    right: DataFrame,
    on: Sequence[str] | str,
    left_time: str,
    right_time: str,
    suffixes: Suffixes | None,
    added: Sequence[str] = (),
) -> Sides:
    check_streaming(what, "left", left)
    check_streaming(what, "right", right)
    check_time(what, "left_time", left_time, left.schema)
    check_time(what, "right_time", right_time, right.schema)
    return sides(what, left.schema, right.schema, on, suffixes, added=added)


def _with_watermarks(
    what: str,
    left: DataFrame,
    right: DataFrame,
    left_time: str,
    right_time: str,
    watermark: Delays,
) -> tuple[DataFrame, DataFrame]:
    left_delay, right_delay = both_delays(what, watermark)
    return (
        watermarked(what, "left", left, left_time, left_delay),
        watermarked(what, "right", right, right_time, right_delay),
    )


def _own_names(frame: DataFrame, prefix: str) -> DataFrame:
    """Return a frame with column names that the other side does not have, even in a self-join."""
    return frame.select([column_of(name).alias(prefix + name) for name in frame.columns])


def _in_windows(frame: DataFrame, prefix: str, time: str, lengths: Sequence[str]) -> DataFrame:
    """Return the rows once per window; the watermark is then on the window, not on the time."""
    name = prefix + time
    window = F.window(column_of(name), *lengths)
    return frame.withColumn(prefix + _WINDOW, window).withMetadata(name, {})


def _same_keys(named: Sides) -> Column:
    same = F.lit(True)
    for name in named.keys:
        one, other = column_of(_LEFT + name), column_of(_RIGHT + name)
        same &= (one == other) & one.isNotNull() & other.isNotNull()
    return same


def _keys(named: Sides, how: str) -> list[Column]:
    return [_either(_LEFT + name, _RIGHT + name, how).alias(name) for name in named.keys]


def _either(left: str, right: str, how: str) -> Column:
    """Return a column that both sides have, from the side that always has a row."""
    if how == "full":
        return F.coalesce(column_of(left), column_of(right))
    return column_of(right if how == "right" else left)


def _others(named: Sides) -> list[Column]:
    return [
        *(column_of(_LEFT + name).alias(shown) for name, shown in named.left.items()),
        *(column_of(_RIGHT + name).alias(shown) for name, shown in named.right.items()),
    ]
