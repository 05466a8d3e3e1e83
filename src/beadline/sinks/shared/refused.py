"""What the sinks share in refusing rows, while nothing is decided."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from beadline.sink import Part

if TYPE_CHECKING:
    import pyarrow as pa

# What ISO text says with four digits of the year, in days from 1970.
_FIRST_DAY, _LAST_DAY = -719_528, 2_932_896
PER_DAY = {"s": 86_400, "ms": 86_400_000, "us": 86_400_000_000}


def refuse(batch: pa.RecordBatch, bad: Any, reason: str, part: Part) -> pa.RecordBatch:
    """Refuse the rows where ``bad`` is true, if there are any; return the others.

    None in its place says that there is nothing to look for.
    """
    import pyarrow.compute as pc

    if bad is None:
        return batch
    bad = pc.fill_null(bad, False)
    if not pc.any(bad, min_count=0).as_py():
        return batch
    part.refuse(batch.filter(bad), reason)
    return batch.filter(pc.invert(bad))


def not_utf8(column: pa.Array) -> Any:
    """Where a text is none: Spark casts bytes to a string without looking at them."""
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
    """Where a date or timestamp is outside of these days; of those that have ISO text, if not said.

    Nanoseconds do not reach that far.
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
