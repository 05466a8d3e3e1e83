"""What runs in Spark's Python workers: Arrow batches in, one ack per part out."""

from __future__ import annotations

import gc
import os
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from pyspark import TaskContext

from beadline.committable import Committable
from beadline.points import reach
from beadline.protocol.batch import Ticket
from beadline.sink import Part, Sink
from beadline.spark.acks import Ack
from beadline.spark.checksum import ORDERED, SUMMED, Ordered
from beadline.spark.refusals import Refusals, Refusing, keeping
from beadline.spark.slots import SLOTS, WorkerSlots, parse

CHECKSUM = "__beadline_checksum"
TICKET = "beadline.ticket"
# Spark and the sinks load more at the end of the first task, so once is not enough; doing it
# forever would keep garbage alive that happens to be there at a freeze.
WARM_UP_TASKS = 3
# The names of mallopt(3).
_TRIM_THRESHOLD, _TOP_PAD, _MMAP_THRESHOLD = -1, -2, -3
_KEPT_BYTES = 64 << 20
_GROWN_BY_BYTES = 4 << 20
_SET_BY_USER = ("MALLOC_TRIM_THRESHOLD_", "MALLOC_TOP_PAD_", "MALLOC_MMAP_THRESHOLD_")
_LARGE_BYTES = 32 << 20  # larger blocks are returned at once; glibc allows no more than this
_tasks_seen = 0
_worker = WorkerSlots()

BatchTask = Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]


class Counted:
    """Counts rows and computes their checksum as batches pass through."""

    def __init__(
        self, batches: Iterator[pa.RecordBatch], checksum: str | None, tagged: bool = False
    ) -> None:
        """With ``SUMMED`` the last column is Spark's hash of the row; a tag may precede it.

        Both are removed.
        """
        self._batches = batches
        self._kind = checksum
        self._tagged = tagged
        self.tag: int | None = None
        self.rows = 0
        self.row_bytes = 0
        self._sum = 0
        self._ordered = Ordered()

    def __iter__(self) -> Iterator[pa.RecordBatch]:
        """Yield the batches that have rows, without the columns that are not the sink's."""
        extra = int(self._kind == SUMMED) + int(self._tagged)
        for batch in self._batches:
            if batch.num_rows == 0:
                continue
            if self._kind == SUMMED:
                hashes = batch.column(batch.num_columns - 1)
                # Wraps around at 64 bits, which is as good as any other sum.
                self._sum += pc.sum(hashes).as_py() or 0
            if self._tagged and self.rows == 0:
                self.tag = batch.column(batch.num_columns - extra)[0].as_py()
                assert self.tag is not None, "the first row of a part has no tag"
            self.rows += batch.num_rows
            self.row_bytes = max(self.row_bytes, batch.nbytes // batch.num_rows)
            own = batch.select(list(range(batch.num_columns - extra))) if extra else batch
            if self._kind == ORDERED:
                self._ordered.update(own)
            yield own

    @property
    def checksum(self) -> int | None:
        """The content checksum, as a signed 64-bit number."""
        if self._kind is None:
            return None
        if self._kind == ORDERED:
            return self._ordered.value
        return (self._sum + 2**63) % 2**64 - 2**63


def _this_part() -> tuple[Part, TaskContext]:
    """Which part the running task must make: Spark carries the ticket as a local property."""
    context = TaskContext.get()
    assert context is not None
    text = context.getLocalProperty(TICKET)
    assert text is not None, "the job was run without its ticket"
    ticket = Ticket.from_text(text)
    part = ticket.part(context.partitionId(), context.taskAttemptId())
    table = parse(context.getLocalProperty(SLOTS))
    writer = f"{ticket.query.incarnation} {ticket.sink} {ticket.generation}"
    # An epoch may be prepared twice; the stage then differs.
    epoch = f"{ticket.epoch} {context.stageId()}"
    number = context.attemptNumber()
    return replace(
        part, slot=_worker.take(writer, epoch, table, context.partitionId(), number)
    ), context


def prepare_task(
    sink: Sink[Any], checksum: str | None, refusing: Refusing = None, tagged: bool = False
) -> BatchTask:
    """Return the function that prepares one part and answers with its ack.

    The same function serves every epoch, so that Spark is given it once. ``refusing`` takes the
    rows that the sink refuses, if there is a dead-letter sink. ``tagged`` says that the rows are
    shared with other sinks (``sharing``).
    """

    def task(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        warm_up_worker()
        part, context = _this_part()
        part, refusals = keeping(part, refusing)
        reach("prepare.part")
        counted = Counted(batches, checksum, tagged)
        committable = sink.prepare(iter(counted), part)
        for _ in counted:  # a sink that stopped early must not leave data in Spark's pipe
            raise RuntimeError(f"{type(sink).__name__}.prepare did not read all of its rows")
        reach("prepare.acked")
        yield _ack(part, context, counted, refusals, committable)

    return task


def publish_task(sink: Sink[Any], refusing: Refusing = None, tagged: bool = False) -> BatchTask:
    """Return the function that publishes one part at once."""

    def task(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        warm_up_worker()
        part, context = _this_part()
        part, refusals = keeping(part, refusing)
        counted = Counted(batches, None, tagged)
        sink.publish(iter(counted), part)
        yield _ack(part, context, counted, refusals, None)

    return task


def _ack(
    part: Part,
    context: TaskContext,
    counted: Counted,
    refusals: Refusals,
    committable: Committable | None,
) -> pa.RecordBatch:
    """Return what the driver is told about one part."""
    return Ack(
        partition=part.id.partition,
        attempt=part.id.attempt,
        retries=context.attemptNumber(),
        rows=counted.rows - len(refusals),
        row_bytes=counted.row_bytes,
        checksum=counted.checksum,
        slot=part.slot,
        committable=None if committable is None else committable.to_json(),
        worker=worker_name(),
        refused=refusals.to_text(),
        tag=counted.tag,
    ).to_batch()


def worker_name() -> str:
    """This process's name. A function, because the task is pickled with the values it names."""
    return _worker.name


def warm_up_worker() -> None:
    """Make a reused worker available for its next task sooner.

    PySpark's daemon runs a full garbage collection after every task, some 40 ms with pyarrow and
    pandas loaded, while the next task waits. What is loaded by now lives as long as the worker, so
    it need not be scanned again.
    """
    global _tasks_seen
    if not _tasks_seen:
        keep_memory()
    if _tasks_seen < WARM_UP_TASKS:
        _tasks_seen += 1
        gc.collect()
        gc.freeze()


def keep_memory() -> bool:
    """Let this worker keep the memory of one batch for the next; return whether that was possible.

    glibc returns the memory of a batch to the system when it is free, and every page of the next
    batch then causes a page fault and is zeroed before it is filled with rows: with small rows, a
    twelfth of a worker's CPU. So more of it is kept, at the end of each of glibc's heaps. Values
    set in the environment are left alone.
    """
    if any(name in os.environ for name in _SET_BY_USER):
        return False
    if "glibc.malloc" in os.environ.get("GLIBC_TUNABLES", ""):
        return False
    try:
        import ctypes

        mallopt = ctypes.CDLL(None).mallopt
    except (ImportError, OSError, AttributeError):  # another C library, or a bare Python
        return False
    settings = (
        (_MMAP_THRESHOLD, _LARGE_BYTES),
        (_TRIM_THRESHOLD, _KEPT_BYTES),
        (_TOP_PAD, _GROWN_BY_BYTES),
    )
    return all(mallopt(name, value) == 1 for name, value in settings)
