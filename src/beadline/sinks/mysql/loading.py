"""Rows into one table: by ``LOAD DATA LOCAL`` where the server allows it, or by ``INSERT``.

``LOAD DATA LOCAL`` changes what does not fit and only warns, in strict mode too, because the server
cannot stop the client; so it runs inside a transaction, and any warning rolls it back.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from beadline.sink import Part, PrepareFailed, Reason
from beadline.sinks.mysql.columns import ROW, MySqlColumn, quoted
from beadline.sinks.mysql.connection import Connection, MySqlServer
from beadline.sinks.mysql.plan import MySqlSettings
from beadline.sinks.mysql.problems import (
    BAD_VALUE,
    CONSTRAINT,
    DUPLICATE_KEY,
    code_of,
    library_errors,
    without_values,
)
from beadline.sinks.mysql.text import LINES, TUPLES, bytes_of, rows_text
from beadline.sinks.shared.sql.plan import TablePlan

if TYPE_CHECKING:
    import pyarrow as pa

CHUNK_BYTES = 8 << 20
_INSERT_BYTES = 4 << 20  # of one statement; more gains nothing
_MARGIN_BYTES = 4096  # of a packet, for what is not rows
_NOT_ALLOWED = frozenset((1148, 2068, 3948, 3950, 4166))  # LOAD DATA LOCAL is switched off


class Misfit(Exception):
    """The server does not take a value; ``str`` is what it said, ``shown`` that without values."""

    @property
    def shown(self) -> str:
        """What an error may show: each warning masked alone, or all between two would be hidden."""
        return "; ".join(map(without_values, self.args))

    def __str__(self) -> str:
        """Return the whole."""
        return "; ".join(self.args)


class Loader:
    """Puts rows into a table, in a transaction that is the caller's."""

    local_allowed = True

    def __init__(
        self, connection: Connection, table: str, columns: Sequence[MySqlColumn], *, numbered: bool
    ) -> None:
        """``numbered`` says that the table has Beadline's own column that numbers its rows."""
        self._connection = connection
        self._table = table
        self._columns = tuple(columns)
        self._numbered = numbered
        ((allowed, packet),) = connection.ask("SELECT @@local_infile, @@max_allowed_packet")
        self._local = bool(allowed) and self.local_allowed
        self._packet_bytes = int(packet) - _MARGIN_BYTES

    def load(self, batch: pa.RecordBatch, first_row: int) -> int:
        """Put the rows in; return how many are new. ``Misfit`` if one does not fit."""
        try:
            if self._local:
                try:
                    return self._load(batch, first_row)
                except library_errors() as error:
                    if code_of(error) not in _NOT_ALLOWED:
                        raise
                    self._local = False
            return self._insert(batch, first_row)
        except library_errors() as error:
            wrong = BAD_VALUE if self._numbered else BAD_VALUE | CONSTRAINT
            if code_of(error) in wrong:
                raise Misfit(str(error.args[1])) from None
            raise

    def _load(self, batch: pa.RecordBatch, first_row: int) -> int:
        rows, _ = self._text(batch, first_row, local=True)
        taken = self._connection.load(self._load_statement(), rows)
        # A row that is there already is one of a load whose answer was lost.
        known = DUPLICATE_KEY if self._numbered else frozenset()
        changed = [
            warned.text for warned in self._connection.warnings() if warned.code not in known
        ]
        if changed:
            raise Misfit(*dict.fromkeys(changed))
        return taken

    def _insert(self, batch: pa.RecordBatch, first_row: int) -> int:
        import numpy as np

        rows, ends = self._text(batch, first_row, local=False)
        head, tail = self._insert_statement()
        most = min(self._packet_bytes, _INSERT_BYTES)
        taken = begin = 0
        while begin < batch.num_rows:
            end = int(np.searchsorted(ends, ends[begin] + most, side="right")) - 1
            end = max(end, begin + 1)
            values = bytes(rows[int(ends[begin]) : int(ends[end]) - 1])  # without the last comma
            taken += self._connection.send(head + values + tail)
            begin = end
        return taken

    def _text(
        self, batch: pa.RecordBatch, first_row: int, *, local: bool
    ) -> tuple[memoryview, Sequence[int]]:
        form = LINES if local else TUPLES
        text = rows_text(batch, self._columns, form, first_row if self._numbered else None)
        rows, ends = bytes_of(text)
        if len(rows) > self._packet_bytes and (ends[1:] - ends[:-1]).max() > self._packet_bytes:
            raise Misfit(f"the row is larger than max_allowed_packet, {self._packet_bytes:,} bytes")
        return rows, ends

    def _names(self) -> list[str]:
        names = [quoted(column.name) for column in self._columns]
        return [quoted(ROW), *names] if self._numbered else names

    def _load_statement(self) -> str:
        names, unhexed = [], []
        if self._numbered:
            names.append(quoted(ROW))
        for index, column in enumerate(self._columns):
            name = quoted(column.name)
            if column.type in ("binary", "varbinary") or column.type.endswith("blob"):
                names.append(f"@b{index}")
                unhexed.append(f"{name} = UNHEX(@b{index})")
            else:
                names.append(name)
        changes = f" SET {', '.join(unhexed)}" if unhexed else ""
        return (
            f"LOAD DATA LOCAL INFILE 'beadline' INTO TABLE {quoted(self._table)} "
            "CHARACTER SET utf8mb4 FIELDS TERMINATED BY '\\t' ENCLOSED BY '' ESCAPED BY '\\\\' "
            f"LINES STARTING BY '' TERMINATED BY '\\n' ({', '.join(names)}){changes}"
        )

    def _insert_statement(self) -> tuple[bytes, bytes]:
        head = f"INSERT INTO {quoted(self._table)} ({', '.join(self._names())}) VALUES "
        again = f" ON DUPLICATE KEY UPDATE {quoted(ROW)} = {quoted(ROW)}" if self._numbered else ""
        return head.encode(), again.encode()


class PartWriter:
    """What a writer of one part knows, whether it stages the rows or prepares a transaction."""

    def __init__(
        self, server: MySqlServer, settings: MySqlSettings, plan: TablePlan[MySqlColumn], part: Part
    ) -> None:
        """Nothing is made before there is a row to keep."""
        self._server = server
        self._settings = settings
        self._plan = plan
        self._part = part
        self._columns = tuple(each.column for each in plan.columns)
        self._about = f"{settings.where}, epoch {part.id.epoch}, part {part.id.partition}"

    def _load(self, loader: Loader, chunk: pa.RecordBatch, first_row: int) -> int:
        """Put the rows of a chunk in, in the form of the table's columns."""
        return loader.load(self._plan.sent(chunk), first_row)

    def _why(self, misfit: Misfit) -> Reason:
        head = f"{self._settings.where} does not take it: "
        return Reason(f"{head}{misfit}", f"{head}{misfit.shown}")

    def _too_few(self, taken: int, chunk: pa.RecordBatch) -> PrepareFailed:
        return PrepareFailed(f"{self._about}: {taken} of {chunk.num_rows} rows were taken")


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
