"""Rows that Redis would never take, found while nothing is decided.

What only the server can know, a key that holds something of another type or a total beyond 64 bits,
is found at commit.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from beadline.sink import Part, larger_than, nulls, refuse, without_far_dates
from beadline.sinks.redis.columns import EXPIRE_MAX_S, ONE_VALUE, Layout, binary
from beadline.sinks.redis.ledger import MARK

if TYPE_CHECKING:
    import pyarrow as pa

_ROW_BYTES_MAX = 512 * 1024 * 1024  # Redis's own limit for a value; it takes twice that at once
_INT64_MAX = 2**63 - 1


def without_refused(batch: pa.RecordBatch, layout: Layout, part: Part) -> pa.RecordBatch:
    """Refuse what Redis cannot take, each row once, and return the others."""
    if layout.key:
        reason = f"null in column {layout.key!r}, which holds the key"
        batch = refuse(batch, nulls(batch.column(layout.key)), reason, part)
        reason = f"the key in column {layout.key!r} contains {MARK!r}, which is Beadline's own"
        if layout.prefix:
            reason = f"with prefix={layout.prefix!r} {reason}"
        batch = refuse(batch, _marked(batch.column(layout.key), layout.prefix), reason, part)
    if layout.deleted:
        reason = f"null in column {layout.deleted!r}: is the row deleted or not?"
        batch = refuse(batch, nulls(batch.column(layout.deleted)), reason, part)
    fields = layout.fields(batch.schema.names)
    for name in (*layout.special, *fields):
        needless = layout.deleted and name != layout.key
        gone = batch.column(layout.deleted) if needless else None
        batch = without_far_dates(batch, name, part, but=gone)
    if layout.command in ONE_VALUE:
        batch = _without_bad_values(batch, layout, part)
    if isinstance(layout.expire, str):
        reason = f"column {layout.expire!r} must be 1 to {EXPIRE_MAX_S:,} seconds, or null"
        bad = _kept(batch, layout, _outside(batch.column(layout.expire), 1, EXPIRE_MAX_S))
        batch = refuse(batch, bad, reason, part)
    if layout.command == "XADD":
        reason = "every field is null, and an entry of a stream needs one"
        batch = refuse(batch, _all_null(batch, fields), reason, part)
    if batch.nbytes > _ROW_BYTES_MAX:
        reason = f"the row is larger than {_ROW_BYTES_MAX:,} bytes, Redis's limit"
        values = [binary(batch.column(name)) for name in (*layout.special, *fields)]
        batch = refuse(batch, larger_than(_ROW_BYTES_MAX, values), reason, part)
    return batch


def _without_bad_values(batch: pa.RecordBatch, layout: Layout, part: Part) -> pa.RecordBatch:
    import pyarrow as pa
    import pyarrow.compute as pc

    reason = f"null in column {layout.value!r}, which {layout.command} needs"
    bad = _kept(batch, layout, nulls(batch.column(layout.value)))
    batch = refuse(batch, bad, reason, part)
    column = batch.column(layout.value)
    if layout.command == "INCRBY" and pa.types.is_uint64(column.type):
        reason = f"column {layout.value!r} is above {_INT64_MAX}, the most that INCRBY can add"
        batch = refuse(batch, pc.greater(column, pa.scalar(_INT64_MAX, pa.uint64())), reason, part)
    if layout.command == "INCRBYFLOAT" and pa.types.is_floating(column.type):
        reason = f"column {layout.value!r} is not a finite number, and cannot be added"
        batch = refuse(batch, pc.invert(pc.is_finite(column)), reason, part)
    return batch


def _kept(batch: pa.RecordBatch, layout: Layout, bad: Any) -> Any:
    """The value of a row that deletes its key is not needed."""
    import pyarrow.compute as pc

    if bad is None or not layout.deleted:
        return bad
    return pc.and_(bad, pc.invert(batch.column(layout.deleted)))


def _marked(column: pa.Array, prefix: str) -> Any:
    import pyarrow.compute as pc

    texts = binary(column)
    bad = pc.match_substring(texts, MARK.encode())
    for length in range(1, len(MARK)):
        if prefix.endswith(MARK[:length]):  # its beginning is in the prefix already
            bad = pc.or_(bad, pc.starts_with(texts, MARK[length:].encode()))
    return pc.fill_null(bad, False)


def _outside(column: pa.Array, least: int, most: int) -> Any:
    import pyarrow.compute as pc

    if not len(column):
        return None
    return pc.fill_null(pc.or_(pc.less(column, least), pc.greater(column, most)), False)


def _all_null(batch: pa.RecordBatch, fields: tuple[str, ...]) -> Any:
    import pyarrow.compute as pc

    bad = None
    for name in fields:
        empty = nulls(batch.column(name))
        if empty is None:
            return None
        bad = empty if bad is None else pc.and_(bad, empty)
    return bad
