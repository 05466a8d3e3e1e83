"""The batches of a part, cut from its staged file."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from beadline.sink import StagedPart, Staging

if TYPE_CHECKING:
    import pyarrow as pa


class Lane:
    """The batches of one part, cut from its file one after the other."""

    def __init__(self, staging: Staging, part: StagedPart) -> None:
        self._part = part
        self._staging = staging
        self._tables: Iterator[pa.Table] = iter(())
        self._at = (-1, 0)

    def table(self, first: int, cut: int) -> pa.Table:
        """Return the rows from ``first`` on; asked in order, the file is read once."""
        if self._at != (first, cut):
            self._tables = cuts(self._staging.read(self._part), first, cut)
        found = next(self._tables)
        self._at = (first + found.num_rows, cut)
        return found


def cuts(batches: Iterator[pa.RecordBatch], first: int, size: int) -> Iterator[pa.Table]:
    """Leave out the first rows, and cut what follows into tables of ``size`` rows."""
    import pyarrow as pa

    taken: list[pa.RecordBatch] = []
    room = size
    for batch in batches:
        skipped = min(first, batch.num_rows)
        first -= skipped
        while skipped < batch.num_rows:
            piece = batch.slice(skipped, room)
            taken.append(piece)
            skipped += piece.num_rows
            room -= piece.num_rows
            if not room:
                yield pa.Table.from_batches(taken)
                taken, room = [], size
    if taken:
        yield pa.Table.from_batches(taken)
