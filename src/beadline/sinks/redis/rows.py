"""Rows as a script takes them: a list of keys, and a list of texts for each column."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from beadline.sinks.redis.columns import ONE_VALUE, Layout, binary

if TYPE_CHECKING:
    import pyarrow as pa


@dataclass(frozen=True)
class Rows:
    """Some rows; ``partitions`` says of each from which part it is, for whoever must name it."""

    keys: list[bytes]
    columns: list[list[bytes]]
    partitions: list[int]

    def __len__(self) -> int:
        return len(self.keys)

    def cut(self, begin: int, end: int | None = None) -> Rows:
        """Return the rows from one number to before another."""
        wanted = slice(begin, end)
        columns = [column[wanted] for column in self.columns]
        return Rows(self.keys[wanted], columns, self.partitions[wanted])

    def take(self, numbers: Sequence[int]) -> Rows:
        """Return the rows of these numbers."""
        columns = [[column[number] for number in numbers] for column in self.columns]
        keys = [self.keys[number] for number in numbers]
        return Rows(keys, columns, [self.partitions[number] for number in numbers])

    def extend(self, more: Rows) -> None:
        """Put more rows of the same shape behind these."""
        self.keys.extend(more.keys)
        self.partitions.extend(more.partitions)
        if not self.columns:
            self.columns.extend([] for _ in more.columns)
        for column, values in zip(self.columns, more.columns, strict=True):
            column.extend(values)


def rows_of(batch: pa.RecordBatch, layout: Layout, partition: int) -> Rows:
    """Return a batch as text, made column by column, in the order that ``script`` expects."""
    count = batch.num_rows
    prefix = layout.prefix.encode()
    if layout.key:
        keys = _texts(batch, layout.key)
        keys = [prefix + key for key in keys] if prefix else keys
    else:
        keys = [prefix + layout.into.encode()] * count
    columns: list[list[bytes]] = []
    if layout.command in ONE_VALUE:
        columns.append(_texts(batch, layout.value))
    fields = layout.fields(batch.schema.names)
    if fields:
        columns += [_texts(batch, name) for name in fields]
        columns.append(_present([batch.column(name) for name in fields], count))
    if isinstance(layout.expire, str):
        columns.append(_texts(batch, layout.expire))
    if layout.deleted:
        columns.append(_texts(batch, layout.deleted))
    return Rows(keys, columns, [partition] * count)


def _texts(batch: pa.RecordBatch, name: str) -> list[bytes]:
    """A column's texts; what is null is empty, and somebody else says that it is null."""
    column = binary(batch.column(name))
    found: list[bytes] = (column.fill_null(b"") if column.null_count else column).to_pylist()
    return found


def _present(columns: Sequence[Any], count: int) -> list[bytes]:
    """Say for each row which fields are there: nothing if all are, else a 1 or 0 for each."""
    if not any(column.null_count for column in columns):
        return [b""] * count
    marks = [[b"1" if there else b"0" for there in c.is_valid().to_pylist()] for c in columns]
    return [b"".join(row) for row in zip(*marks, strict=True)]
