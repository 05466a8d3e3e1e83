"""The content checksum of a part: does a recomputed part hold the same rows (rule 8)?

Shuffled rows arrive in any order, so each row is hashed by Spark's ``xxhash64`` and the hashes are
summed. That costs a fifth of the time that Spark takes to read small rows from Kafka. A plan
without a shuffle gives the rows of an epoch in the same order every time, so the worker computes a
CRC-32 of the columns, value by value, from Arrow's buffers; including the order makes it stricter,
and it costs a twentieth. It is meant to detect a plan that computes something else the second time,
not a forger: one such part in four thousand million would go unnoticed. A plan that was changed
from one kind to the other is another plan: its replay does not match, and stops.
"""

from __future__ import annotations

import hashlib
import zlib
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

SUMMED = "xxhash64, summed"
ORDERED = "crc32 of the columns, in order"


class Ordered:
    """A running hash of a part's columns, whatever its division into batches."""

    def __init__(self) -> None:
        self._columns: list[Any] = []

    def update(self, batch: pa.RecordBatch) -> None:
        """Add the next rows."""
        if not self._columns:
            self._columns = [_hash_of(kind)() for kind in batch.schema.types]
        for running, column in zip(self._columns, batch.columns, strict=True):
            running.update(column)

    @property
    def value(self) -> int:
        """The hash of all rows so far, as a signed 64-bit number."""
        whole = hashlib.sha256(b"".join(column.digest() for column in self._columns))
        return int.from_bytes(whole.digest()[:8], "little", signed=True)


class _Nulls:
    """The positions of a column's nulls; costs next to nothing if there are none."""

    def __init__(self) -> None:
        self._rows = 0
        self._where = 0

    def update(self, column: pa.Array) -> None:
        if column.null_count:
            (found,) = column.is_null().to_numpy(zero_copy_only=False).nonzero()
            self._where = zlib.crc32((found + self._rows).astype("<i8").data, self._where)
        self._rows += len(column)

    def digest(self) -> bytes:
        return b"%d %d;" % (self._rows, self._where)


class _Numbers:
    """A column of numbers or times, each of ``width`` bytes."""

    def __init__(self) -> None:
        self._values = 0
        self._nulls = _Nulls()

    def update(self, column: pa.Array) -> None:
        self._nulls.update(column)
        width = column.type.bit_width // 8
        if column.null_count:  # the bytes under a null are undefined
            column = pc.fill_null(column.view(f"int{8 * width}"), 0)
        begin = column.offset * width
        data = memoryview(column.buffers()[1])[begin : begin + len(column) * width]
        self._values = zlib.crc32(data, self._values)

    def digest(self) -> bytes:
        return b"%d " % self._values + self._nulls.digest()


class _Texts:
    """A column of texts or bytes of variable length."""

    def __init__(self) -> None:
        self._data = 0
        self._lengths = 0
        self._nulls = _Nulls()

    def update(self, column: pa.Array) -> None:
        _, offsets, data = column.buffers()
        wide = pa.types.is_large_string(column.type) or pa.types.is_large_binary(column.type)
        ends = np.frombuffer(offsets, np.dtype("i8" if wide else "i4"))
        ends = ends[column.offset : column.offset + len(column) + 1]
        self._nulls.update(column)
        # No value is longer than 2 GiB: Spark has none.
        self._lengths = zlib.crc32(np.diff(ends).astype("<i4").data, self._lengths)
        if data is not None:
            self._data = zlib.crc32(memoryview(data)[int(ends[0]) : int(ends[-1])], self._data)

    def digest(self) -> bytes:
        return b"%d %d " % (self._data, self._lengths) + self._nulls.digest()


def supported(schema: pa.Schema) -> bool:
    """Whether all columns are of types that ``Ordered`` takes."""
    return all(_hash_of(kind) is not None for kind in schema.types)


def _hash_of(kind: Any) -> Any:
    texts = (pa.types.is_string, pa.types.is_binary, pa.types.is_large_string)
    if any(one(kind) for one in (*texts, pa.types.is_large_binary)):
        return _Texts
    numbers = (pa.types.is_integer, pa.types.is_float32, pa.types.is_float64)
    if any(one(kind) for one in (*numbers, pa.types.is_date, pa.types.is_timestamp)):
        return _Numbers
    return None
