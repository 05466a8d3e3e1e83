"""Binary COPY of a part's rows: all in one go, or batch by batch where a row is at fault.

COPY stops at the first row that the server does not take, and says nothing of the others. Malformed
JSON, a domain's or a table's check, a character that the database's encoding lacks: only the server
can tell. So after such a failure the part is sent once more, each batch after a savepoint, and a
batch that fails is halved until the rows are found; these are refused and the others stay.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from beadline.sinks.postgres.connect import Run
from beadline.sinks.postgres.problems import is_misfit, why_refused
from beadline.sinks.postgres.rows import Rows

if TYPE_CHECKING:
    import pyarrow as pa

_SAVEPOINT = "beadline"


@dataclass(frozen=True)
class Copying:
    """Into one table, on one connection, in a transaction that is the caller's.

    ``known_as`` is what reasons call the table: the name of a staging table says nothing.
    """

    cursor: Any
    run: Run
    schema: str
    table: str
    known_as: str
    dsn: str

    def all(self, rows: Rows) -> None:
        """Send everything in one COPY, as it is read."""
        import pyarrow as pa

        batches = rows.sent()
        first = next(batches, None)
        if first is not None:
            self._send(pa.RecordBatchReader.from_batches(first.schema, chained(first, batches)))

    def carefully(self, rows: Rows) -> None:
        """Send batch by batch, and refuse the rows that the server does not take."""
        for number, batch in enumerate(rows):
            found = self._misfits(rows, batch, 0)
            if found:
                rows.refuse(number, batch, found)

    def _misfits(self, rows: Rows, batch: pa.RecordBatch, first: int) -> dict[int, str]:
        """Send what can be sent; return the other rows, by number, and why."""
        if not batch.num_rows:
            return {}
        self.run(f"SAVEPOINT {_SAVEPOINT}")
        try:
            self._send(rows.plan.sent(batch))
            why = None
        except Exception as error:
            if not is_misfit(error):
                raise
            why = why_refused(error, self.dsn).replace(self.table, self.known_as)
            self.run(f"ROLLBACK TO SAVEPOINT {_SAVEPOINT}")
        self.run(f"RELEASE SAVEPOINT {_SAVEPOINT}")
        if why is None:
            return {}
        if batch.num_rows == 1:
            return {first: why}
        half = batch.num_rows // 2
        found = self._misfits(rows, batch.slice(0, half), first)
        return found | self._misfits(rows, batch.slice(half), first + half)

    def _send(self, data: Any) -> None:
        self.cursor.adbc_ingest(self.table, data, mode="append", db_schema_name=self.schema)


def chained(first: pa.RecordBatch, others: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Yield the first, then the others."""
    yield first
    yield from others
