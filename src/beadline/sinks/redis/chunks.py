"""Which rows go into one script: of one ledger, in their order, and few enough.

Redis does nothing else while a script runs, so each is kept to some milliseconds. Without a cluster
the rows go in the order of parts and of rows in each. In a cluster they are sorted by slot first,
the order within a slot kept: enough rows at a time that a slot's share is worth a script.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, replace

from beadline.sinks.redis import ledger
from beadline.sinks.redis.ledger import slots_of
from beadline.sinks.redis.script import ScriptRows

ROWS_MAX = 2_000
VALUES_MAX = 20_000
BYTES_MAX = 4 << 20
SORTED_ROWS_MAX = 200_000
SORTED_BYTES_MAX = 64 << 20


@dataclass(frozen=True)
class Chunk:
    """Rows of one ledger, of which the first is number ``first`` of the epoch there."""

    ledger: bytes
    first: int
    rows: ScriptRows

    @property
    def end(self) -> int:
        """The number of the row after the last."""
        return self.first + len(self.rows)

    def after(self, done: int) -> Chunk:
        """Return the rows that are left when ``done`` rows of the ledger are there."""
        return replace(self, first=done, rows=self.rows.cut(done - self.first))


def in_order(rows: Iterator[ScriptRows], key: bytes, done: int) -> Iterator[list[Chunk]]:
    """Yield chunks of one ledger, a few at a time; the first ``done`` rows are there already."""
    first = 0
    for some in rows:
        chunks = [chunk for chunk in _cut(key, first, some) if chunk.end > done]
        first += len(some)
        if chunks:
            yield [chunk.after(max(done, chunk.first)) for chunk in chunks]


def by_slot(rows: Iterator[ScriptRows], prefix: str, query: str) -> Iterator[list[Chunk]]:
    """Yield chunks of many ledgers, sorted by slot."""
    counted: dict[int, int] = defaultdict(int)
    for some in _gathered(rows):
        numbers: dict[int, list[int]] = defaultdict(list)
        for number, slot in enumerate(slots_of(some.keys)):
            numbers[slot].append(number)
        chunks: list[Chunk] = []
        for slot, wanted in numbers.items():
            key = ledger.slot_key(prefix, query, slot)
            chunks += _cut(key, counted[slot], some.take(wanted))
            counted[slot] += len(wanted)
        yield chunks


def _gathered(rows: Iterator[ScriptRows]) -> Iterator[ScriptRows]:
    """Yield the same rows, more at a time."""
    gathered, size = ScriptRows([], [], []), 0
    for some in rows:
        gathered.extend(some)
        size += _bytes(some)
        if len(gathered) >= SORTED_ROWS_MAX or size >= SORTED_BYTES_MAX:
            yield gathered
            gathered, size = ScriptRows([], [], []), 0
    if len(gathered):
        yield gathered


def _cut(key: bytes, first: int, rows: ScriptRows) -> Iterator[Chunk]:
    count = max(1, min(ROWS_MAX, VALUES_MAX // (len(rows.columns) + 1)))
    for begin in range(0, len(rows), count):
        yield from _cut_by_bytes(Chunk(key, first + begin, rows.cut(begin, begin + count)))


def _cut_by_bytes(chunk: Chunk) -> Iterator[Chunk]:
    """Cut by the bytes of each row, once more: the average does not reveal a large one."""
    if _bytes(chunk.rows) <= BYTES_MAX:
        yield chunk
        return
    columns = (chunk.rows.keys, *chunk.rows.columns)
    begin, size = 0, 0
    for row, values in enumerate(zip(*columns, strict=True)):
        more = sum(map(len, values))
        if row > begin and size + more > BYTES_MAX:
            yield Chunk(chunk.ledger, chunk.first + begin, chunk.rows.cut(begin, row))
            begin, size = row, 0
        size += more
    yield Chunk(chunk.ledger, chunk.first + begin, chunk.rows.cut(begin))


def _bytes(rows: ScriptRows) -> int:
    return sum(sum(map(len, column)) for column in (rows.keys, *rows.columns))
