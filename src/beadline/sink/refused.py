"""Rows that a target can never take: found at prepare, while nothing is decided (rule 23).

At commit the epoch is decided, and a row that cannot be written would block it for good. These are
the checks that many sinks share: nulls, rows that are too large, text that is not UTF-8 (Spark
casts bytes to strings without checking), dates that have no ISO text, and values that Python cannot
hold.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from beadline.sink.interface import Part

if TYPE_CHECKING:
    import pyarrow as pa

# The dates that ISO text can express with a year of four digits, in days since 1970.
_FIRST_DAY, _LAST_DAY = -719_528, 2_932_896
PER_DAY = {"s": 86_400, "ms": 86_400_000, "us": 86_400_000_000}
_PER_DAY_AND_NS = {**PER_DAY, "ns": 86_400_000_000_000}
UNREADABLE = (
    "a value in it cannot be read in Python: a date outside the years 1 to 9999, or bad text"
)
# One day inside Python's range: an offset from UTC may shift a timestamp by that much.
_FIRST_PYTHON_DAY, _LAST_PYTHON_DAY = -719_161, 2_932_895


def refuse(batch: pa.RecordBatch, bad: Any, reason: str, part: Part) -> pa.RecordBatch:
    """Refuse the rows where ``bad`` is true, if there are any; return the others.

    None for ``bad`` means that no row is bad.
    """
    import pyarrow.compute as pc

    if bad is None:
        return batch
    bad = pc.fill_null(bad, False)
    if not pc.any(bad, min_count=0).as_py():
        return batch
    part.refuse(batch.filter(bad), reason)
    return batch.filter(pc.invert(bad))


def nulls(column: pa.Array, *, nan: bool = False) -> Any:
    """Return where a value is null; with ``nan``, also where a float is NaN."""
    import pyarrow as pa
    import pyarrow.compute as pc

    nan = nan and pa.types.is_floating(column.type)
    return pc.is_null(column, nan_is_null=nan) if column.null_count or nan else None


def larger_than(bytes_max: Any, columns: Sequence[pa.Array]) -> Any:
    """Return where the texts and bytes of these columns exceed ``bytes_max`` together.

    ``bytes_max`` is a number, or one for each row.
    """
    import pyarrow as pa
    import pyarrow.compute as pc

    total: Any = pa.scalar(0, pa.int64())
    for column in columns:
        sizes = pc.fill_null(pc.binary_length(column), 0)
        total = pc.add(total, sizes.cast(pa.int64()))
    return pc.greater(total, bytes_max) if columns else None


def not_utf8(column: pa.Array) -> Any:
    """Return where a text is not UTF-8: Spark casts bytes to strings without checking them."""
    import pyarrow as pa
    import pyarrow.compute as pc

    if not (pa.types.is_string(column.type) or pa.types.is_large_string(column.type)):
        return None
    try:
        column.validate(full=True)
    except pa.ArrowInvalid:
        large = pa.types.is_large_string(column.type)
        texts = column.cast(pa.large_binary() if large else pa.binary()).to_pylist()
        bad = pa.array([text is not None and not _is_utf8(text) for text in texts], pa.bool_())
        return bad if pc.any(bad, min_count=0).as_py() else None
    return None


def _is_utf8(text: bytes) -> bool:
    try:
        text.decode()
    except UnicodeDecodeError:
        return False
    return True


def far_dates(column: pa.Array, first: int = _FIRST_DAY, last: int = _LAST_DAY) -> Any:
    """Return where a date or timestamp is outside these days; by default, those with ISO text.

    Timestamps in nanoseconds cannot be that far away.
    """
    import pyarrow as pa
    import pyarrow.compute as pc

    kind = column.type
    if pa.types.is_date32(kind):
        per_day, numbers = 1, column.cast(pa.int32()).cast(pa.int64())
    elif pa.types.is_date64(kind):
        per_day, numbers = PER_DAY["ms"], column.cast(pa.int64())
    elif pa.types.is_timestamp(kind) and kind.unit in PER_DAY:
        per_day, numbers = PER_DAY[kind.unit], column.cast(pa.int64())
    else:
        return None
    early = pc.less(numbers, first * per_day)
    late = pc.greater_equal(numbers, (last + 1) * per_day)
    return pc.fill_null(pc.or_(early, late), False)


def without_far_dates(
    batch: pa.RecordBatch, name: str, part: Part, but: Any = None
) -> pa.RecordBatch:
    """Refuse the rows whose date in a column has no ISO text, except where ``but`` is true."""
    import pyarrow.compute as pc

    far = far_dates(batch.column(name))
    if far is not None and but is not None:
        far = pc.and_not(far, but)
    reason = f"column {name!r} is outside the years 0 to 9999, all that ISO text can express"
    return refuse(batch, far, reason, part)


def without_unreadable(batch: pa.RecordBatch, part: Part) -> pa.RecordBatch:
    """Refuse the rows that Python cannot hold, and return the others."""
    import pyarrow as pa

    if _all_readable(batch):
        return batch
    bad = [not _can_be_read(batch.slice(row, 1)) for row in range(batch.num_rows)]
    return refuse(batch, pa.array(bad, pa.bool_()), UNREADABLE, part)


def _all_readable(batch: pa.RecordBatch) -> bool:
    """Whether every value can be converted to Python; checked without converting them."""
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
        return _within(column, PER_DAY["ms"] if types.is_date64(kind) else 1)
    if types.is_timestamp(kind):
        return _within(column, _PER_DAY_AND_NS[kind.unit])
    if types.is_nested(kind):
        column.to_pylist()  # raises; a faster check for nested dates is not worth the code
    return True


def _within(column: pa.Array, per_day: int) -> bool:
    """Whether all days are well inside Python's range; if not, the batch is checked row by row."""
    import pyarrow as pa
    import pyarrow.compute as pc

    wide = column.cast(pa.int32()) if pa.types.is_date32(column.type) else column
    bounds = pc.min_max(wide.cast(pa.int64())).as_py()
    if bounds["min"] is None:
        return True
    inside = bounds["min"] >= _FIRST_PYTHON_DAY * per_day
    return bool(inside and bounds["max"] < _LAST_PYTHON_DAY * per_day)


def _can_be_read(row: pa.RecordBatch) -> bool:
    import pyarrow as pa

    try:
        row.validate(full=True)
        row.to_pylist()
    except (pa.ArrowException, ValueError, OverflowError):
        return False
    return True
