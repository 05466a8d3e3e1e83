"""What an epoch does to a table: at most one put and one delete per key, in any order.

HBase has no order of writes: the newest time wins, and a delete hides a put of its own time and of
every time before, whichever came first. So the order that matters is decided here, over all parts
of an epoch (partition, then row): the last change of each key counts. A put is then written at the
decision's time t, and every delete at t - 1:

- a row that the epoch deleted before it put it again loses its old cells and keeps the new ones;
- a null removes the older versions of its cell;
- two decisions are at least 1 ms apart, so the next epoch's deletes, at t + 1 - 1, hide this
  epoch's puts, and this epoch's deletes never hide the next one's puts, whenever they arrive.

No two changes of one query contradict one another at one time, so they may be sent in any
order, repeated, and come late: which is what a replay does.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from beadline.sinks.hbase.client import delete, put, row_of
from beadline.sinks.hbase.columns import Cells
from beadline.sinks.hbase.encode import encode

if TYPE_CHECKING:
    import pyarrow as pa

BATCH_BYTES = 1 << 20


@dataclass(frozen=True)
class Mutations:
    """Rows that go to HBase in one call, under one time."""

    rows: list[Any]
    at_ms: int


@dataclass(frozen=True)
class Changes:
    """The last change of each key in an epoch: rows to put, and keys whose older cells go."""

    puts: list[pa.RecordBatch]
    deletes: list[pa.Array]


def last_changes(batches: Sequence[pa.RecordBatch], cells: Cells) -> Changes:
    """Return the last change of each key in these rows, which are in their order."""
    import numpy as np
    import pyarrow as pa

    keys = [encode(batch.column(cells.row_key), cells.encoding) for batch in batches]
    count = sum(map(len, keys))
    if cells.deleted is None:
        deleted = pa.chunked_array([pa.array(np.zeros(count, dtype=bool))], pa.bool_())
    else:
        deleted = pa.chunked_array([b.column(cells.deleted) for b in batches], pa.bool_())
    columns = {
        "key": pa.chunked_array(keys, pa.binary()),
        "position": pa.chunked_array([pa.array(np.arange(count))], pa.int64()),
        "deleted": deleted,
    }
    by_key = pa.table(columns).group_by("key").aggregate([("position", "max"), ("deleted", "any")])
    puts = np.zeros(count, dtype=bool)
    puts[by_key.column("position_max").to_numpy()] = True
    puts &= ~deleted.to_numpy()
    gone = by_key.filter(by_key.column("deleted_any")).column("key")
    return Changes(list(_chosen(batches, puts)), [chunk for chunk in gone.chunks if len(chunk)])


def _chosen(batches: Sequence[pa.RecordBatch], chosen: Any) -> Iterator[pa.RecordBatch]:
    """Yield the chosen rows, batch by batch, so that nothing large is copied at once."""
    import pyarrow as pa

    begin = 0
    for batch in batches:
        mask = chosen[begin : begin + batch.num_rows]
        begin += batch.num_rows
        kept = batch if mask.all() else batch.filter(pa.array(mask))
        if kept.num_rows:
            yield kept


def pieces(changes: Changes, rows: int) -> Iterator[pa.RecordBatch | pa.Array]:
    """Cut the changes into pieces of at most ``rows`` rows; puts first.

    In this order a row that is deleted and put again is never absent for a reader.
    """
    for whole in (*changes.puts, *changes.deletes):
        for begin in range(0, len(whole), rows):
            yield whole.slice(begin, rows)


def mutations(
    piece: pa.RecordBatch | pa.Array, cells: Cells, families: Sequence[str], at_ms: int
) -> Iterator[Mutations]:
    """Yield the calls that a piece takes; puts at the decision's time, deletes just before."""
    import pyarrow as pa

    if isinstance(piece, pa.RecordBatch):
        yield from _puts(piece, cells, at_ms)
        yield from _removed_cells(piece, cells, at_ms)
    else:
        all_families = [delete(family.encode()) for family in families]
        yield Mutations([row_of(key, all_families) for key in piece.to_pylist()], at_ms - 1)


def _puts(batch: pa.RecordBatch, cells: Cells, at_ms: int) -> Iterator[Mutations]:
    """Yield calls of about ``BATCH_BYTES``, or one row if that is larger."""
    columns = list(cells.targets.values())
    values = [encode(batch.column(name), cells.encoding).to_pylist() for name in cells.targets]
    keys = encode(batch.column(cells.row_key), cells.encoding).to_pylist()
    rows: list[Any] = []
    size = 0
    for key, *row in zip(keys, *values, strict=True):
        filled = [(c, value) for c, value in zip(columns, row, strict=True) if value is not None]
        if not filled:
            continue
        rows.append(row_of(key, [put(column, value) for column, value in filled]))
        size += sum(len(key) + len(column) + len(value) for column, value in filled)
        if size >= BATCH_BYTES:
            yield Mutations(rows, at_ms)
            rows, size = [], 0
    if rows:
        yield Mutations(rows, at_ms)


def _removed_cells(batch: pa.RecordBatch, cells: Cells, at_ms: int) -> Iterator[Mutations]:
    """A null says that the cell is not there: what was there goes."""
    import pyarrow.compute as pc

    keys = None
    rows: dict[bytes, list[Any]] = {}
    for name, column in cells.targets.items():
        nulls = pc.is_null(batch.column(name))
        if pc.any(nulls, min_count=0).as_py():
            keys = encode(batch.column(cells.row_key), cells.encoding) if keys is None else keys
            removal = delete(column)
            for key in keys.filter(nulls).to_pylist():
                rows.setdefault(key, []).append(removal)
    if rows:
        yield Mutations([row_of(key, removals) for key, removals in rows.items()], at_ms - 1)
