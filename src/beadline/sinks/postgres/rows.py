"""The rows of a part on their way: checked once, and kept so that they can be sent again.

Kept as they came, not as they are sent: a row that the server refuses goes to the dead letters as
it was.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

from beadline.sink import Part
from beadline.sinks.postgres.plan import Plan

if TYPE_CHECKING:
    import pyarrow as pa

KEPT_BYTES_MAX = 64 << 20


class Rows:
    """What the table takes of a part's rows, again from the start while they are kept.

    Batches are checked once: a row that was refused is not refused again.
    """

    def __init__(self, plan: Plan, batches: Iterator[pa.RecordBatch], part: Part) -> None:
        """Nothing is read before it is asked for."""
        self.plan = plan
        self.count = 0
        self.batches = 0
        self.failure: BaseException | None = None
        self.restartable = True
        self._batches = batches
        self._part = part
        self._kept: list[pa.RecordBatch] = []
        self._kept_bytes = 0

    def __iter__(self) -> Iterator[pa.RecordBatch]:
        """Yield what is kept, then go on to read."""
        yield from list(self._kept)
        for batch in self._batches:
            taken = self.plan.taken(batch, self._part) if batch.num_rows else batch
            if taken.num_rows:
                self._keep(taken)
                yield taken

    def sent(self) -> Iterator[pa.RecordBatch]:
        """Yield the same in the form of the table's columns, for a client library to read."""
        try:
            for batch in self:
                yield self.plan.sent(batch)
        except GeneratorExit:
            raise  # the library wants no more, for a reason of its own
        except BaseException as failure:
            # Through the library it would come out as another error.
            self.failure = failure
            raise

    def refuse(self, number: int, batch: pa.RecordBatch, reasons: Mapping[int, str]) -> None:
        """Refuse rows of the batch that came as this number, each for its own reason."""
        import pyarrow as pa

        for row, reason in reasons.items():
            self._part.refuse(batch.slice(row, 1), reason)
        self.count -= len(reasons)
        if self.restartable:
            good = [row for row in range(batch.num_rows) if row not in reasons]
            self._kept[number] = batch.take(pa.array(good, pa.int64()))

    def no_key_twice(self) -> bool:
        """Whether that is certain, now that all is read; if not, the server must be asked."""
        import pyarrow as pa

        key = list(self.plan.exact_key)
        if not key or not self.restartable:
            return False
        keys = pa.Table.from_batches([batch.select(key) for batch in self._kept])
        different = keys.group_by(key, use_threads=False).aggregate([]).num_rows
        return bool(different == keys.num_rows)

    def _keep(self, batch: pa.RecordBatch) -> None:
        self.count += batch.num_rows
        self.batches += 1
        self._kept_bytes += batch.nbytes
        if self._kept_bytes <= KEPT_BYTES_MAX:
            self._kept.append(batch)
        else:
            self.restartable = False
            self._kept.clear()
