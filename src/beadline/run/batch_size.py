"""How large Spark makes the Arrow batches that it hands to the Python workers.

Spark ends a batch at so many rows or so many bytes, whichever comes first. To know the bytes, it
asks every column for its size after every row, which is a tenth of the time in which it makes
batches of small rows. So where the rows of the last epoch were so small that their number ends
every batch long before, Spark is told not to count bytes in the next; one epoch with large rows,
and it counts again. A value that the user has set is left alone.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from beadline.run.acks import Ack

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

BYTES = "spark.sql.execution.arrow.maxBytesPerBatch"
ROWS = "spark.sql.execution.arrow.maxRecordsPerBatch"
_BYTES_DEFAULT = 64 << 20
_UNCOUNTED = (1 << 31) - 1
_SMALL = 16  # a batch of small rows is at most this part of the limit


class BatchSize:
    """What one query has told Spark."""

    def __init__(self) -> None:
        self._rows = 0
        self._ours: bool | None = None
        self._counting = True

    def learn(self, session: SparkSession, acks: Iterable[Ack]) -> None:
        """Look at an epoch's rows, and tell Spark about the next one."""
        largest = max((ack.row_bytes for ack in acks), default=0)
        if not largest:
            return
        if self._ours is None:
            self._ours = _limit(session) == _BYTES_DEFAULT
            self._rows = int(session.conf.get(ROWS) or 0)
        small = 0 < self._rows * largest <= _BYTES_DEFAULT // _SMALL
        if self._ours and small == self._counting:
            session.conf.set(BYTES, str(_UNCOUNTED if small else _BYTES_DEFAULT))
            self._counting = not small


def _limit(session: SparkSession) -> int | None:
    """Return Spark's limit, which it prints with a unit; None if this Spark has none.

    Asked without a default of ours: with one, Spark does not tell its own.
    """
    from pyspark.errors import PySparkException

    try:
        digits = (session.conf.get(BYTES) or "").removesuffix("b")
    except PySparkException:
        return None
    return int(digits) if digits.isdecimal() else None
