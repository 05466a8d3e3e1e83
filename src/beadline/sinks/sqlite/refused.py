"""Rows that a table would refuse or change, found while nothing is decided.

At commit the epoch is decided, and a row that the database will not take would hold it up for good.
What only the database can know (UNIQUE, CHECK, a trigger) is still only found there.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import TYPE_CHECKING, Any

from beadline.sink import Part, larger_than, not_utf8, nulls, refuse, without_far_dates
from beadline.sinks.shared.column_text import is_bytes
from beadline.sinks.shared.sql.checks import deletes
from beadline.sinks.sqlite.columns import folded

if TYPE_CHECKING:
    import pyarrow as pa

_ROW_BYTES_MAX = 1_000_000_000  # SQLite's own limit, unless it was built with another
_VALUE_BYTES = 10  # of a value, beside its text or bytes


def without_refused(
    batch: pa.RecordBatch,
    never_null: Collection[str],
    part: Part,
    key: Collection[str] = (),
    deleted: str | None = None,
) -> pa.RecordBatch:
    """Refuse what the table cannot take, each row once, and return the others.

    ``never_null`` and ``key`` hold folded names of columns: those that take no null, and those of
    the key, which are all that has to fit of a row that the column ``deleted`` marks.
    """
    for name in batch.schema.names:
        mark = None if folded(name) in key else deleted
        if folded(name) in never_null:
            reason = f"null in column {name!r}, which is part of the key or NOT NULL"
            batch = _refuse(batch, nulls(batch.column(name), nan=True), reason, part, mark)
        reason = f"column {name!r} holds bytes that are not UTF-8: cast it to binary, or repair it"
        batch = _refuse(batch, not_utf8(batch.column(name)), reason, part, mark)
        batch = without_far_dates(batch, name, part, deletes(batch, mark))
    reason = f"it is larger than SQLite's limit for a row, {_ROW_BYTES_MAX:,} bytes"
    return _refuse(batch, _large(batch), reason, part, deleted)


def _refuse(
    batch: pa.RecordBatch, bad: Any, reason: str, part: Part, deleted: str | None
) -> pa.RecordBatch:
    import pyarrow.compute as pc

    gone = None if bad is None else deletes(batch, deleted)
    return refuse(batch, bad if gone is None else pc.and_not(bad, gone), reason, part)


def _large(batch: pa.RecordBatch) -> Any:
    """Where a row is too large; nowhere if all rows together are not."""
    around = batch.num_columns * _VALUE_BYTES
    if batch.nbytes + batch.num_rows * around <= _ROW_BYTES_MAX:
        return None
    columns = [column for column in batch.columns if is_bytes(column.type)]
    return larger_than(_ROW_BYTES_MAX - around, columns)
