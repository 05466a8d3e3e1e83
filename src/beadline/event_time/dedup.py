"""The first row of each key within a time: what a source repeats shows once.

It is Spark's ``dropDuplicatesWithinWatermark``, which forgets a key when the watermark has passed
its first row by the watermark's own delay. So a delay of ``within`` is what keeps a key for as long
as a duplicate may be taken in at all: a copy that is farther behind is late, and is dropped too.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from pyspark.sql.types import StructType

from beadline.errors import NOTHING_WRITTEN, BadQuery
from beadline.event_time.columns import WATERMARK_KEY, check_no_watermark, check_plain, check_time
from beadline.event_time.durations import Duration, milliseconds
from beadline.event_time.watermarks import marked

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


def deduplicated(
    frame: DataFrame,
    by: Sequence[str] | str,
    time: str,
    *,
    within: Duration,
    watermark: Duration | None = None,
) -> DataFrame:
    """Keep the first row of each key, and drop those that repeat it within a time.

    ``by`` are the columns that make two rows the same: ids that the source does not use again. Two
    rows of a key whose times are at most ``within`` apart never both show. Which of them shows is
    the one that comes first; of those that come in one epoch, any of them, whatever their times
    are. Beyond ``within``, a key is known for up to as long again, until the watermark makes Spark
    forget it. Null is a key like any other; a row without a time is forgotten at once.

    ``watermark`` is the longest that rows may be out of order, if that is more than ``within``. A
    row that is farther behind the newest one than both is late: dropped by Spark, and counted in
    its progress (``numRowsDroppedByWatermark``).

    >>> once = deduplicated(events, by="event_id", time="ts", within="1 hour")
    """
    what = "deduplicated()"
    if not frame.isStreaming:
        raise BadQuery(
            f"{what}: this is not a streaming DataFrame; dropDuplicates() does it for a table. "
            f"{NOTHING_WRITTEN}"
        )
    check_time(what, "time", time, frame.schema)
    keys = (by,) if isinstance(by, str) else tuple(by)
    _check_keys(what, keys, frame.schema)
    delay_ms = milliseconds("within", within)
    if watermark is not None:
        delay_ms = max(delay_ms, milliseconds("watermark", watermark, zero=True))
    marked_ms = frame.schema[time].metadata.get(WATERMARK_KEY)
    if marked_ms is None:
        frame = marked(frame, time, delay_ms)
    elif watermark is not None:
        check_no_watermark(what, time, frame.schema)
    elif marked_ms < delay_ms:
        raise BadQuery(
            f"{what}: column {time!r} has a watermark of {marked_ms / 1000:g} seconds, and Spark "
            f"knows a key for no longer: within={within!r} needs one of {delay_ms / 1000:g} "
            "seconds. Leave withWatermark() out, so that deduplicated() sets it. "
            f"{NOTHING_WRITTEN}"
        )
    return frame.dropDuplicatesWithinWatermark(list(keys))


def _check_keys(what: str, keys: Sequence[str], schema: StructType) -> None:
    if not keys:
        raise BadQuery(f"{what}: by= names the columns that make rows the same. {NOTHING_WRITTEN}")
    for name in keys:
        check_plain(what, "by", name, schema)
