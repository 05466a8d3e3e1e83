"""Rows cut into chunks of about the same size, whatever batches they come in."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from beadline.sinks.mysql.loading import CHUNK_BYTES

if TYPE_CHECKING:
    import pyarrow as pa


def chunks_of(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Yield batches of at most ``CHUNK_BYTES`` each, unless a row is larger; none is empty."""
    held: list[pa.RecordBatch] = []
    size_bytes = 0
    for batch in batches:
        for piece in _pieces(batch):
            if held and size_bytes + piece.nbytes > CHUNK_BYTES:
                yield _joined(held)
                held, size_bytes = [], 0
            held.append(piece)
            size_bytes += piece.nbytes
    if held:
        yield _joined(held)


def _pieces(batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
    if not batch.num_rows:
        return
    rows = max(1, batch.num_rows * CHUNK_BYTES // max(batch.nbytes, 1))
    for start in range(0, batch.num_rows, rows):
        yield batch.slice(start, rows)


def _joined(held: list[pa.RecordBatch]) -> pa.RecordBatch:
    import pyarrow as pa

    if len(held) == 1:
        return held[0]
    (joined,) = pa.Table.from_batches(held).combine_chunks().to_batches()
    return joined
