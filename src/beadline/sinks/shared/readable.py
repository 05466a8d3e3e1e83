"""Rows that become Python values at commit: what Python cannot hold is refused at prepare.

At commit the epoch is decided, and a row that cannot be read would hold it up for good (rule 23): a
date after the year 9999, or text that is not UTF-8, which Spark makes of bytes without looking.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from beadline.sink import Part
from beadline.sinks.shared.refused import refuse

if TYPE_CHECKING:
    import pyarrow as pa

UNREADABLE = (
    "a value in it cannot be read in Python: a date outside the years 1 to 9999, or bad text"
)
# A day inside what Python has: an offset from UTC may move a timestamp so far.
_FIRST_DAY, _LAST_DAY = -719_161, 2_932_895
_PER_DAY = {"s": 86_400, "ms": 86_400_000, "us": 86_400_000_000, "ns": 86_400_000_000_000}


def without_unreadable(batch: pa.RecordBatch, part: Part) -> pa.RecordBatch:
    """Refuse the rows that Python cannot hold, and return the others."""
    import pyarrow as pa

    if _all_readable(batch):
        return batch
    bad = [not _can_be_read(batch.slice(row, 1)) for row in range(batch.num_rows)]
    return refuse(batch, pa.array(bad, pa.bool_()), UNREADABLE, part)


def _all_readable(batch: pa.RecordBatch) -> bool:
    """Whether every value of every row becomes a Python value; without making them."""
    import pyarrow as pa

    try:
        batch.validate(full=True)
        return all(_readable(column) for column in batch.columns)
    except (pa.ArrowException, ValueError, OverflowError):
        return False


def _readable(column: pa.Array) -> bool:
    from pyarrow import types

    kind = column.type
    if types.is_date(kind):
        return _within(column, _PER_DAY["ms"] if types.is_date64(kind) else 1)
    if types.is_timestamp(kind):
        return _within(column, _PER_DAY[kind.unit])
    if types.is_nested(kind):
        column.to_pylist()  # raises; how deep a date may hide is not worth a second way
    return True


def _within(column: pa.Array, per_day: int) -> bool:
    """Whether all days are well inside; a batch that is not is looked at row by row."""
    import pyarrow as pa
    import pyarrow.compute as pc

    wide = column.cast(pa.int32()) if pa.types.is_date32(column.type) else column
    bounds = pc.min_max(wide.cast(pa.int64())).as_py()
    if bounds["min"] is None:
        return True
    inside = bounds["min"] >= _FIRST_DAY * per_day
    return bool(inside and bounds["max"] < _LAST_DAY * per_day)


def _can_be_read(row: pa.RecordBatch) -> bool:
    import pyarrow as pa

    try:
        row.validate(full=True)
        row.to_pylist()
    except (pa.ArrowException, ValueError, OverflowError):
        return False
    return True
