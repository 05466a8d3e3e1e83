"""One epoch's rows, computed once for several sinks, and the proof that all sinks got the same.

The rows are kept by a *local checkpoint*, which is made by the first job that reads them. If an
executor dies in that job, after a part's ack, its rows are lost, and Spark silently computes the
part again; so does a second attempt at a slow task. A plan with a non-deterministic Python function
would then give two sinks different rows (rule 24). So each computation of a part draws a random
*tag*, which travels with the part's first row and comes back with the acks: sinks with the same
tags were given the same rows.

After the first job the lineage is cut: losing a part then fails the next job.
"""

from __future__ import annotations

import re
from collections.abc import Container, Iterable
from contextlib import suppress
from functools import cached_property
from typing import TYPE_CHECKING, Any

from pyspark import SparkContext
from pyspark.sql import DataFrame, Observation
from pyspark.sql import functions as F
from pyspark.sql.classic.column import _to_seq

from beadline.shared.retry import polls

if TYPE_CHECKING:
    from pyspark.sql import Column

    from beadline.sink import BoundSink

TAG = "__beadline_tag"
Tags = dict[int, int]  # by the number of the part
_METRIC = "beadline.tags"
_RANDOM_BITS = 40  # the part's number lies above them
_ROW_BITS = 33  # of Spark's monotonically_increasing_id(), whose other bits are the part's number
_PRUNED_WAIT_S = 0.2


class Columns:
    """Spark expressions, built once per query."""

    @cached_property
    def tag(self) -> Column:
        """Drawn when a part is computed. Not by Spark's rand() or uuid(), which keep their seed."""
        first = f"(monotonically_increasing_id() & {(1 << _ROW_BITS) - 1}L) = 0"
        part = f"shiftleft(cast(spark_partition_id() as bigint), {_RANDOM_BITS})"
        drawn = f"xxhash64(reflect('java.util.UUID', 'randomUUID')) & {(1 << _RANDOM_BITS) - 1}L"
        return F.expr(f"if({first}, {part} | ({drawn}), null)")

    @cached_property
    def seen(self) -> Column:
        """All tags among the rows that were read."""
        return F.collect_set(TAG).alias(_METRIC)

    @cached_property
    def none(self) -> Any:
        """No further columns, as a JVM value."""
        context = SparkContext._active_spark_context
        assert context is not None
        return _to_seq(context, [])


class Shared:
    """The rows of one epoch, kept while its sinks are prepared."""

    def __init__(self, frame: DataFrame, columns: Columns, eager: bool) -> None:
        """Nothing is computed yet, unless it is ``eager``."""
        # Directly through the JVM here and below: PySpark asks it several times for the same thing.
        tagged = frame._jdf.withColumn(TAG, columns.tag._jc).localCheckpoint(eager)
        self.frame = DataFrame(tagged, frame.sparkSession)
        self._columns = columns
        self._cut = eager  # whether a job has run, so that no part is computed again
        self._first: Tags | None = None
        self._kept: Tags | None = None

    def without_tags(self, metrics: Observation | None) -> DataFrame:
        """Return the rows without tags; the tags that are read become a metric."""
        if metrics is not None:
            return self.frame.observe(metrics, self._columns.seen).drop(TAG)
        seen = self.frame._jdf.observe(_METRIC, self._columns.seen._jc, self._columns.none)
        return DataFrame(seen.drop(TAG), self.frame.sparkSession)

    def all_read(self, tags: Tags) -> Tags:
        """Record and return the tags of a sink that reads every row."""
        self._cut = True
        self._first = self._first or tags
        return tags

    def some_read(self, seen: Tags) -> Tags | None:
        """Return the tags of all parts, for a sink with its own ``rows=`` that has read some.

        That does not show whether other parts were empty or not read. Once the lineage is cut it
        makes no difference: parts no longer change. But a part that was empty in the very first
        job, and has rows now, may have been computed again: then return None, to prepare it again.
        """
        first, self._cut = not self._cut, True
        if seen == self._first or len(seen) == _parts(self.frame):
            return seen
        kept = self._read_tags() if self._kept is None else self._kept
        if other := sorted(part for part, tag in seen.items() if kept.get(part) != tag):
            raise RuntimeError(f"Spark computed part(s) {other} of the epoch's rows again")
        return None if first and kept != seen else kept

    def _read_tags(self) -> Tags:
        """Read the tags of the kept rows; it is as cheap as a job can be."""
        rows = self.frame.where(F.col(TAG).isNotNull()).select(TAG)
        self._kept = _by_part(rows._jdf.collectAsList().toString())
        return self._kept


def whole_rows_first(sinks: Iterable[BoundSink], own: Container[str]) -> list[BoundSink]:
    """Order sinks so that one that reads every row is prepared before those with a ``rows=``.

    Its acks show the tags of all parts, so that no extra job has to read them. A dead-letter sink
    stays after the one that it serves.
    """
    sinks = list(sinks)
    owners = {sink.dead_letter: sink.name for sink in sinks if sink.dead_letter}
    return sorted(sinks, key=lambda sink: owners.get(sink.name, sink.name) in own)


def tags_in(execution: Any) -> Tags:
    """Return the tags that a job has read, from Spark's record of its execution."""
    found = execution.observedMetrics().get(_METRIC)
    return {} if found.isEmpty() else _by_part(found.get().toString())


def tags_of(metrics: Observation) -> Tags:
    """Return the tags that a finished job has read; none if it read no rows.

    Spark omits a branch that gives no rows (a filter that is never true), and its metrics.
    """
    again = polls(_PRUNED_WAIT_S, 0.001)
    while not metrics._jo.future().isCompleted():  # type: ignore[union-attr]
        if not again():
            return {}
    row = metrics._jo.getRow()  # type: ignore[union-attr]
    return _by_part(row.toString())  # that is the only metric, or there is none


def _parts(frame: DataFrame) -> int:
    return int(frame._jdf.queryExecution().logical().rdd().getNumPartitions())


def release(frame: DataFrame) -> None:
    """Free the blocks of a local checkpoint now, not at some later garbage collection.

    If that fails, Spark has stopped or is gone, which is reported elsewhere.
    """
    with suppress(Exception):
        frame._jdf.queryExecution().logical().rdd().unpersist(False)


def _by_part(text: str) -> Tags:
    """Parse the tags from what Spark prints for a list of them."""
    tags = {int(digits) for digits in re.findall(r"\d+", text)}
    found = {tag >> _RANDOM_BITS: tag for tag in tags}
    if len(found) != len(tags):
        raise RuntimeError("Spark computed a part of the epoch's rows twice within one job")
    return found
