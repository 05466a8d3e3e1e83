"""The size of the Arrow batches that Spark hands to the Python workers.

Spark ends a batch at a number of rows or of bytes, whichever comes first. To know the bytes, it
asks every column for its size after every row, which takes a tenth of the time of making batches of
small rows. So where the rows of all sinks have been so small that their number always ends a batch
first, Spark is told not to count bytes. After one epoch with large rows, it counts for as long as
the query runs. A value that the user has set is left alone, and so are all values if the query has
Python functions of its own: they get batches by the same settings, and maybe of larger rows.

Batches of small rows also get more rows: a batch of one and a half megabytes still lies in a
processor's cache, and what is done once per batch, here and by a server, is done less often.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from beadline.spark.acks import Ack
from beadline.spark.conf import is_set, value_of

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

BYTES = "spark.sql.execution.arrow.maxBytesPerBatch"
ROWS = "spark.sql.execution.arrow.maxRecordsPerBatch"
_BYTES_DEFAULT = 64 << 20
_UNCOUNTED = (1 << 31) - 1
_SMALL = 16  # a batch of small rows is at most this part of the limit
_KNOWN_ROWS = 100
_ROWS_MAX = 20_000
_SMALL_BYTES = 3 << 19  # of a batch of small rows


class BatchSize:
    """The settings that one query has made in Spark."""

    def __init__(self, shared: bool = False) -> None:
        """``shared``: the query has Python functions of its own, whose rows may be larger."""
        self._shared = shared
        self._ours: bool | None = None  # whether bytes are counted by Spark's own default
        self._rows_ours = False
        self._rows = 0
        self._seen = 0
        self._largest = 0
        self._told = (False, 0)

    @property
    def small(self) -> bool:
        """Whether the rows are so small that their bytes are not counted."""
        return self._told[0]

    def note(self, acks: Iterable[Ack]) -> None:
        """Look at the rows that a sink was given."""
        for ack in acks:
            self._seen += ack.rows
            self._largest = max(self._largest, ack.row_bytes)

    def tell(self, session: SparkSession) -> None:
        """Tell Spark about the next epoch, for all sinks together."""
        if self._shared or not self._largest:
            return
        if self._ours is None:
            self._ours = _limit(session) == _BYTES_DEFAULT
            self._rows = int(session.conf.get(ROWS) or 0)
            self._rows_ours = not is_set(session, ROWS)
            self._told = (False, self._rows)
        known = self._ours and self._seen >= _KNOWN_ROWS
        small = known and 0 < self._rows * self._largest <= _BYTES_DEFAULT // _SMALL
        rows = self._rows
        if small and self._rows_ours:
            rows = max(rows, min(_ROWS_MAX, _SMALL_BYTES // self._largest))
        if (small, rows) != self._told:
            session.conf.set(BYTES, str(_UNCOUNTED if small else _BYTES_DEFAULT))
            if self._rows_ours:
                session.conf.set(ROWS, str(rows))
            self._told = (small, rows)


def _limit(session: SparkSession) -> int | None:
    """Return Spark's limit, which it prints with a unit; None if this Spark has none."""
    digits = (value_of(session, BYTES) or "").removesuffix("b")
    return int(digits) if digits.isdecimal() else None
