"""The rows of a part on their way to a server: kept to be sent again, and halved where one is bad.

A server stops at the first row that it does not take, or says of a whole statement that something
in it is wrong. Malformed JSON, a CHECK, a character that its encoding lacks: only the server can
tell. So what failed is sent again in halves until the rows are found; these are refused and the
others stay. And a connection that is lost takes all rows of its transaction with it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from beadline.sink import Part
from beadline.sinks.shared.sql.plan import TablePlan

if TYPE_CHECKING:
    import pyarrow as pa

KEPT_BYTES_MAX = 64 << 20


def misfits(
    batch: pa.RecordBatch, send: Callable[[pa.RecordBatch], str | None], first: int = 0
) -> dict[int, str]:
    """Send what the server takes of a batch; return the other rows, by number, and why.

    ``send`` returns why the server took nothing of what it was given, or None if it took all.
    """
    if not batch.num_rows:
        return {}
    why = send(batch)
    if why is None:
        return {}
    if batch.num_rows == 1:
        return {first: why}
    half = batch.num_rows // 2
    found = misfits(batch.slice(0, half), send, first)
    return found | misfits(batch.slice(half), send, first + half)


class ResendableRows:
    """The rows of a part that its table takes; readable again from the start while they are kept.

    Each batch is read once: a row that was refused is not refused again. Kept as they came, not as
    they are sent: a row that the server refuses becomes a dead-letter record as it was.
    """

    def __init__(self, plan: TablePlan[Any], batches: Iterator[pa.RecordBatch], part: Part) -> None:
        """Nothing is read before it is asked for; ``batches`` have no rows that do not fit."""
        self.plan = plan
        self.count = 0
        self.batches = 0
        self.failure: BaseException | None = None
        self.restartable = True
        self._unread = batches
        self._part = part
        self._kept: list[pa.RecordBatch] = []
        self._kept_bytes = 0

    def __iter__(self) -> Iterator[pa.RecordBatch]:
        """Yield what is kept, then read the rest."""
        yield from list(self._kept)
        while True:
            try:
                batch = next(self._unread, None)
            except BaseException as failure:
                # The rows behind it would be missing from another try.
                self.failure = failure
                raise
            if batch is None:
                return
            self._keep(batch)
            yield batch

    def sent(self) -> Iterator[pa.RecordBatch]:
        """Yield the same in the form of the table's columns, for a client library to read."""
        for batch in self:
            try:
                sent = self.plan.sent(batch)
            except BaseException as failure:
                # Through the library it would come out as another error.
                self.failure = failure
                raise
            yield sent

    def send_each(self, send: Callable[[pa.RecordBatch], str | None]) -> None:
        """Send batch by batch, and refuse the rows that the server does not take."""
        for number, batch in enumerate(self):
            found = misfits(batch, send)
            if found:
                self._refuse(number, batch, found)

    def _refuse(self, number: int, batch: pa.RecordBatch, reasons: Mapping[int, str]) -> None:
        """Refuse rows of the batch that came as this number, each for its own reason."""
        import pyarrow as pa

        refuse_rows(self._part, batch, reasons)
        self.count -= len(reasons)
        if self.restartable:
            good = [row for row in range(batch.num_rows) if row not in reasons]
            self._kept[number] = batch.take(pa.array(good, pa.int64()))

    def all_differ_in(self, names: Sequence[str]) -> bool:
        """Whether no two rows, now that all are read, are alike in these columns.

        Also False if that is no longer known, because not all rows were kept.
        """
        import pyarrow as pa

        if not names or not self.restartable:
            return False
        values = pa.Table.from_batches([batch.select(list(names)) for batch in self._kept])
        different = values.group_by(list(names), use_threads=False).aggregate([]).num_rows
        return bool(different == values.num_rows)

    def _keep(self, batch: pa.RecordBatch) -> None:
        self.count += batch.num_rows
        self.batches += 1
        self._kept_bytes += batch.nbytes
        if self._kept_bytes <= KEPT_BYTES_MAX:
            self._kept.append(batch)
        else:
            self.restartable = False
            self._kept.clear()


def refuse_rows(part: Part, batch: pa.RecordBatch, reasons: Mapping[int, str]) -> None:
    """Refuse rows of a batch, by number, each for its own reason."""
    for row, reason in reasons.items():
        part.refuse(batch.slice(row, 1), reason)
