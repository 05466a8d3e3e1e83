"""Rows that HBase would refuse, found at prepare, while nothing is decided.

At commit the epoch is decided, and a row that HBase will not take would hold it up for good.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from beadline.sink import Part, larger_than, nulls, refuse, without_far_dates
from beadline.sinks.hbase.columns import Cells
from beadline.sinks.hbase.encode import encode

if TYPE_CHECKING:
    import pyarrow as pa

# HBase looks a row up as "<table>,<key>,99999999999999", which must be a key itself.
_KEY_BYTES_MAX = 32_767
_KEY_AROUND = 16
# What HBase adds to key, column and value of a cell, measured, and some more.
_CELL_AROUND = 64


def without_refused(
    batch: pa.RecordBatch, cells: Cells, table: str, cell_bytes_max: int, part: Part
) -> pa.RecordBatch:
    """Refuse what HBase cannot take, each row once, and return the others."""
    import pyarrow.compute as pc

    key_bytes_max = _KEY_BYTES_MAX - _KEY_AROUND - len(table.encode())
    if cells.deleted is not None:
        reason = f"null in column {cells.deleted!r}, which says whether the row is deleted"
        batch = refuse(batch, nulls(batch.column(cells.deleted)), reason, part)
    reason = f"null in column {cells.row_key!r}, which is the row key"
    batch = refuse(batch, nulls(batch.column(cells.row_key)), reason, part)
    if cells.encoding == "text":
        for name in dict.fromkeys((cells.row_key, *cells.targets)):
            batch = without_far_dates(batch, name, part)
    sizes = pc.binary_length(encode(batch.column(cells.row_key), cells.encoding))
    reason = f"column {cells.row_key!r} is empty, and HBase has no row without a key"
    batch, sizes = _refuse_by(batch, sizes, pc.equal(sizes, 0), reason, part)
    reason = (
        f"column {cells.row_key!r} makes a row key of more than {key_bytes_max:,} bytes, "
        "which is HBase's limit with this table's name"
    )
    batch, sizes = _refuse_by(batch, sizes, pc.greater(sizes, key_bytes_max), reason, part)
    for column, target in cells.targets.items():
        around = len(target) + _CELL_AROUND
        # Text of what is not text is short; the longest decimal has 76 digits.
        if batch.column(column).nbytes + key_bytes_max + around <= cell_bytes_max:
            continue
        reason = (
            f"column {column!r} makes a cell of more than {cell_bytes_max:,} bytes (the sink's "
            "cell_bytes_max, HBase's hbase.client.keyvalue.maxsize)"
        )
        large = _large(batch, cells, column, sizes, cell_bytes_max - around)
        batch, sizes = _refuse_by(batch, sizes, large, reason, part)
    return batch


def _refuse_by(
    batch: pa.RecordBatch, sizes: Any, bad: Any, reason: str, part: Part
) -> tuple[pa.RecordBatch, Any]:
    """Refuse rows, and drop their key sizes as well."""
    import pyarrow.compute as pc

    kept = refuse(batch, bad, reason, part)
    return kept, sizes if kept is batch else sizes.filter(pc.invert(bad))


def _large(batch: pa.RecordBatch, cells: Cells, column: str, key_sizes: Any, bytes_max: int) -> Any:
    """Where key and value of a column together are too large for a cell."""
    import pyarrow as pa
    import pyarrow.compute as pc

    room = pc.subtract(pa.scalar(bytes_max, pa.int64()), key_sizes.cast(pa.int64()))
    large = larger_than(room, [encode(batch.column(column), cells.encoding)])
    if cells.deleted is not None:  # of a deleted row nothing but the key is sent
        large = pc.and_(large, pc.invert(batch.column(cells.deleted)))
    return large
