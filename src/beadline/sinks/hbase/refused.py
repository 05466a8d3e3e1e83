"""Rows that HBase would refuse, found at prepare, while nothing is decided.

At commit the epoch is decided, and a row that HBase will not take would hold it up for good.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from beadline.sink import Part, far_dates, refuse
from beadline.sinks.hbase.columns import Cells
from beadline.sinks.hbase.encode import encode

if TYPE_CHECKING:
    import pyarrow as pa

# HBase looks a row up as "<table>,<key>,99999999999999", which must be a key itself.
_KEY_BYTES_MAX = 32_767
_KEY_AROUND = 16
# What HBase adds to key, column and value of a cell, measured, and some more.
_CELL_AROUND = 64


@dataclass(frozen=True)
class Limits:
    """What a table takes."""

    key_bytes: int
    cell_bytes: int


def limits_of(table: str, cell_bytes_max: int) -> Limits:
    """Return the limits of a table, whose name takes something of the longest key."""
    return Limits(_KEY_BYTES_MAX - _KEY_AROUND - len(table.encode()), cell_bytes_max)


def without_refused(
    batch: pa.RecordBatch, cells: Cells, limits: Limits, part: Part
) -> pa.RecordBatch:
    """Refuse what HBase cannot take, each row once, and return the others."""
    import pyarrow.compute as pc

    if cells.deleted is not None:
        reason = f"null in column {cells.deleted!r}, which says whether the row is deleted"
        batch = refuse(batch, pc.is_null(batch.column(cells.deleted)), reason, part)
    reason = f"null in column {cells.row_key!r}, which is the row key"
    batch = refuse(batch, pc.is_null(batch.column(cells.row_key)), reason, part)
    batch = _without_far_dates(batch, cells, part)
    sizes = pc.binary_length(encode(batch.column(cells.row_key), cells.encoding))
    reason = f"column {cells.row_key!r} is empty, and HBase has no row without a key"
    batch, sizes = _refuse_by(batch, sizes, pc.equal(sizes, 0), reason, part)
    reason = (
        f"column {cells.row_key!r} makes a row key of more than {limits.key_bytes:,} bytes, "
        "which is HBase's limit with this table's name"
    )
    batch, sizes = _refuse_by(batch, sizes, pc.greater(sizes, limits.key_bytes), reason, part)
    for column, target in cells.targets.items():
        reason = (
            f"column {column!r} makes a cell of more than {limits.cell_bytes:,} bytes (the sink's "
            "cell_bytes_max, HBase's hbase.client.keyvalue.maxsize)"
        )
        large = _large(batch, cells, column, sizes, len(target), limits)
        if large is not None:
            batch, sizes = _refuse_by(batch, sizes, large, reason, part)
    return batch


def _refuse_by(
    batch: pa.RecordBatch, sizes: Any, bad: Any, reason: str, part: Part
) -> tuple[pa.RecordBatch, Any]:
    """Refuse rows, and forget the sizes of their keys too."""
    import pyarrow.compute as pc

    kept = refuse(batch, bad, reason, part)
    return kept, sizes if kept is batch else sizes.filter(pc.invert(bad))


def _large(
    batch: pa.RecordBatch, cells: Cells, column: str, keys: Any, target_bytes: int, limits: Limits
) -> Any:
    """Where a cell is too large; None if no cell of the column can be."""
    import pyarrow as pa
    import pyarrow.compute as pc

    values = batch.column(column)
    around = limits.key_bytes + target_bytes + _CELL_AROUND
    # Text of what is not text is short; the longest decimal has 76 digits.
    if values.nbytes + around <= limits.cell_bytes:
        return None
    lengths = pc.fill_null(pc.binary_length(encode(values, cells.encoding)), 0).cast(pa.int64())
    total = pc.add(pc.add(lengths, keys.cast(pa.int64())), target_bytes + _CELL_AROUND)
    large = pc.greater(total, limits.cell_bytes)
    if cells.deleted is not None:  # of a deleted row nothing but the key is sent
        large = pc.and_(large, pc.invert(batch.column(cells.deleted)))
    return large


def _without_far_dates(batch: pa.RecordBatch, cells: Cells, part: Part) -> pa.RecordBatch:
    if cells.encoding != "text":
        return batch
    for name in dict.fromkeys((cells.row_key, *cells.targets)):
        reason = f"column {name!r} is outside the years 0 to 9999, which is what text can say"
        batch = refuse(batch, far_dates(batch.column(name)), reason, part)
    return batch
