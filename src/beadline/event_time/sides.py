"""The two sides of a join: checks of their columns, and the column names of the results.

Keys appear once. Any other name that both sides have would give two columns of the same name, which
no sink could tell apart, so it is refused unless ``suffixes=`` makes them different.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING

from pyspark.sql.types import StructType

from beadline.errors import NOTHING_WRITTEN, BadQuery
from beadline.event_time.columns import WATERMARK_KEY, check_no_watermark, check_plain
from beadline.event_time.durations import Duration, microseconds, milliseconds
from beadline.event_time.watermarks import marked

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

Suffixes = tuple[str, str]
Delays = Duration | tuple[Duration, Duration] | None
SPARKS_NAMES = {
    "inner": "inner",
    "left": "left_outer",
    "right": "right_outer",
    "full": "full_outer",
}


@dataclass(frozen=True)
class Sides:
    """The key columns, and for the other columns of each side their names in the results."""

    keys: tuple[str, ...]
    left: dict[str, str]
    right: dict[str, str]


def sides(
    what: str,
    left: StructType,
    right: StructType,
    on: Sequence[str] | str,
    suffixes: Suffixes | None,
    *,
    added: Iterable[str] = (),
    hidden: Iterable[str] = (),
) -> Sides:
    """Check the columns of both sides; ``what`` is the name of the join, for the errors.

    ``added`` are additional columns of the results; ``hidden`` are columns of the right side that
    the results do not have.
    """
    for side, schema in (("left", left), ("right", right)):
        twice = [name for name, many in Counter(map(str.lower, schema.names)).items() if many > 1]
        if twice:
            raise BadQuery(
                f"{what}: the {side} side has more than one column {_listed(twice)}: rename or "
                f"drop one before the join. {NOTHING_WRITTEN}"
            )
    keys = (on,) if isinstance(on, str) else tuple(on)
    if not keys:
        raise BadQuery(
            f"{what}: on= is empty; name the key columns that both sides share. {NOTHING_WRITTEN}"
        )
    for name in keys:
        _check_key(what, name, left, right)
    added, hidden = set(added), set(hidden)
    names = _named(
        what,
        [name for name in left.names if name not in keys],
        [name for name in right.names if name not in keys and name not in hidden],
        {*keys, *added},
        suffixes,
    )
    return Sides(keys, *names)


def _check_key(what: str, name: str, left: StructType, right: StructType) -> None:
    one, other = (
        check_plain(f"{what}: the {side} side", "on", name, schema)
        for side, schema in (("left", left), ("right", right))
    )
    if one != other:
        raise BadQuery(
            f"{what}: on={name!r} is {one.simpleString()} on the left and {other.simpleString()} "
            f"on the right: cast one of them. {NOTHING_WRITTEN}"
        )


def _named(
    what: str,
    left: Sequence[str],
    right: Sequence[str],
    taken: set[str],
    suffixes: Suffixes | None,
) -> tuple[dict[str, str], dict[str, str]]:
    if suffixes is not None and (isinstance(suffixes, str) or len(suffixes) != 2):
        raise BadQuery(
            f"{what}: suffixes={suffixes!r}: it takes two strings, such as ('_left', '_right'). "
            f"{NOTHING_WRITTEN}"
        )
    both = {name.lower() for name in left} & {name.lower() for name in right}
    if both and suffixes is None:
        raise BadQuery(
            f"{what}: both sides have {_listed(n for n in left if n.lower() in both)}, which is "
            "not a key: rename one with withColumnRenamed(), drop it, or tell them apart with "
            f"suffixes=('_left', '_right'). {NOTHING_WRITTEN}"
        )
    ends = suffixes or ("", "")
    named = tuple(
        {name: name + end if name.lower() in both else name for name in side}
        for side, end in zip((left, right), ends, strict=True)
    )
    shown = [*named[0].values(), *named[1].values(), *taken]
    counted = Counter(map(str.lower, shown))
    twice = [name for name, many in counted.items() if many > 1]
    if twice:
        raise BadQuery(
            f"{what}: the results would have more than one column {_listed(twice)}: rename it on "
            f"one side, or choose other suffixes=. {NOTHING_WRITTEN}"
        )
    return named[0], named[1]


def _listed(names: Iterable[str]) -> str:
    return ", ".join(repr(name) for name in names)


def one_of(what: str, name: str, value: str, known: Iterable[str]) -> str:
    """Return an argument's value if it is one of the known ones, else raise."""
    known = tuple(known)
    if value not in known:
        words = ", ".join(repr(one) for one in known)
        raise BadQuery(f"{what}: {name}={value!r}: it must be one of {words}. {NOTHING_WRITTEN}")
    return value


def check_streaming(what: str, side: str, frame: DataFrame) -> None:
    """Refuse a frame that is not streaming: it has no watermark."""
    if not frame.isStreaming:
        raise BadQuery(
            f"{what}: the {side} side is not a streaming DataFrame; lookup_join() joins a stream "
            f"with a table. {NOTHING_WRITTEN}"
        )


def watermarked(
    what: str, side: str, frame: DataFrame, time: str, delay: Duration | None
) -> DataFrame:
    """Return a frame with a watermark on its time: its own, or this delay."""
    if delay is None and WATERMARK_KEY in frame.schema[time].metadata:
        return frame
    if delay is None:
        raise BadQuery(
            f"{what}: {time!r} of the {side} side has no watermark, so state would be kept "
            "forever. Give the longest that rows may be out of order: watermark='5 minutes', or "
            f"('1 minute', '2 minutes') for left and right. {NOTHING_WRITTEN}"
        )
    check_no_watermark(what, time, frame.schema)
    return marked(frame, time, milliseconds("watermark", delay, zero=True))


def both_delays(what: str, watermark: Delays) -> tuple[Duration | None, Duration | None]:
    """Return the delays of left and right, given one for both or two."""
    if watermark is None or isinstance(watermark, str | timedelta):
        return watermark, watermark
    if not isinstance(watermark, tuple | list) or len(watermark) != 2:
        raise BadQuery(
            f"{what}: watermark={watermark!r}: it takes one duration for both sides, or two, for "
            f"left and right. {NOTHING_WRITTEN}"
        )
    return watermark[0], watermark[1]


def signed_microseconds(name: str, value: Duration) -> int:
    """Return a duration in microseconds, which may be negative: ``"-5 minutes"``."""
    if isinstance(value, str) and value.strip().startswith("-"):
        return -microseconds(name, value.strip()[1:], zero=True)
    if isinstance(value, timedelta) and value < timedelta(0):
        return -microseconds(name, -value, zero=True)
    return microseconds(name, value, zero=True)
