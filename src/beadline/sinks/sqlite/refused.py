"""Rows that a table would refuse or change, found while nothing is decided.

At commit the epoch is decided, and a row that the database will not take would hold it up for good.
What only the database can know (UNIQUE, CHECK, a trigger) still comes up there.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import TYPE_CHECKING, Any

from beadline.sink import Part, far_dates, not_utf8, refuse
from beadline.sinks.sqlite.columns import folded

if TYPE_CHECKING:
    import pyarrow as pa

ROW_BYTES_MAX = 1_000_000_000  # SQLite's own limit, unless it was built with another
_VALUE_BYTES = 10  # of a value, beside its text or bytes


def without_refused(
    batch: pa.RecordBatch, never_null: Collection[str], part: Part
) -> pa.RecordBatch:
    """Refuse what the table cannot take, each row once, and return the others.

    ``never_null`` holds the folded names of columns that take no null.
    """
    for name in batch.schema.names:
        if folded(name) in never_null:
            reason = f"null in column {name!r}, which is part of the key or NOT NULL"
            batch = refuse(batch, _nulls(batch.column(name)), reason, part)
        reason = f"column {name!r} holds bytes that are not UTF-8: cast it to binary, or repair it"
        batch = refuse(batch, not_utf8(batch.column(name)), reason, part)
        reason = f"column {name!r} is outside the years 0 to 9999, all that ISO text can express"
        batch = refuse(batch, far_dates(batch.column(name)), reason, part)
    reason = f"it is larger than SQLite's limit for a row, {ROW_BYTES_MAX:,} bytes"
    return refuse(batch, _large(batch), reason, part)


def _nulls(column: pa.Array) -> Any:
    """Where SQLite would find a null: it keeps NaN as one."""
    import pyarrow as pa
    import pyarrow.compute as pc

    floating = pa.types.is_floating(column.type)
    return pc.is_null(column, nan_is_null=floating) if column.null_count or floating else None


def _large(batch: pa.RecordBatch) -> Any:
    """Where a row is too large; nowhere if all rows together are not."""
    import pyarrow as pa
    import pyarrow.compute as pc

    if batch.nbytes + batch.num_rows * batch.num_columns * _VALUE_BYTES <= ROW_BYTES_MAX:
        return None
    total = pa.array([batch.num_columns * _VALUE_BYTES] * batch.num_rows, pa.int64())
    for column in batch.columns:
        if pa.types.is_fixed_size_binary(column.type):
            total = pc.add(total, column.type.byte_width)
        elif pa.types.is_binary(column.type) or pa.types.is_string(column.type) or _wide(column):
            total = pc.add(total, pc.fill_null(pc.binary_length(column), 0).cast(pa.int64()))
    return pc.greater(total, ROW_BYTES_MAX)


def _wide(column: pa.Array) -> bool:
    import pyarrow as pa

    return bool(pa.types.is_large_binary(column.type) or pa.types.is_large_string(column.type))
