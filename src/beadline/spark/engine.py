"""The engine behind the protocol: one epoch's DataFrame, prepared by Spark jobs."""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

from pyspark.sql import Column, DataFrame, Observation
from pyspark.sql import functions as F
from pyspark.sql.pandas.functions import pandas_udf
from pyspark.sql.streaming.query import StreamingQuery
from pyspark.util import PythonEvalType

from beadline import dead_letter
from beadline.dead_letter import RefusedRow
from beadline.protocol.batch import Acks, Ticket
from beadline.sink import BoundSink, FrameSink, Sink
from beadline.spark.acks import (
    ACK_TYPE,
    Ack,
    collect,
    prepared_part,
    refused_rows,
    refusing_of,
    write_frame,
)
from beadline.spark.arrow_rdd import ArrowTask, arrow_task, executed_plan, plan_of_epoch
from beadline.spark.batch_size import BatchSize
from beadline.spark.checkpoint import SparkProgress, planned_offsets
from beadline.spark.checks import to_arrow
from beadline.spark.checksum import ORDERED, SUMMED, supported
from beadline.spark.failures import reason
from beadline.spark.partitioning import Partitioning
from beadline.spark.plan import is_narrow
from beadline.spark.progress_facts import WatermarkReader
from beadline.spark.refusals import keeping
from beadline.spark.sharing import TAG, Columns, Shared, Tags, release, tags_in, tags_of
from beadline.spark.slots import SLOTS, SlotOwners
from beadline.spark.source_files import PlannedFiles
from beadline.spark.tasks import CHECKSUM, TICKET, BatchTask, prepare_task, publish_task

_TAG = f"`{TAG}`"
RowsFunction = Callable[[DataFrame], DataFrame]


@dataclass
class Engine:
    """What all epochs of one running query share."""

    progress: SparkProgress
    planned: PlannedFiles
    rows: Mapping[str, RowsFunction]
    stateful: bool
    narrow: bool
    speculation: bool
    partitioning: Partitioning = field(default_factory=Partitioning)
    query: StreamingQuery | None = None  # Spark's run id, once it has started
    owners: dict[str, SlotOwners] = field(default_factory=lambda: defaultdict(SlotOwners))
    functions: dict[tuple[str, str], Any] = field(default_factory=dict)
    arrow_tasks: dict[tuple[str, str], ArrowTask | None] = field(default_factory=dict)
    checksums: dict[str, Column] = field(default_factory=dict)
    columns: Columns = field(default_factory=Columns)
    kinds: dict[str, str] = field(default_factory=dict)
    batch_size: BatchSize = field(default_factory=BatchSize)
    watermarks: WatermarkReader | None = None  # if the plan has one
    # Sinks whose columns are the stream's own: asking and selecting costs milliseconds per epoch.
    columns_match: set[str] = field(default_factory=set)
    syncing: ThreadPoolExecutor = field(
        default_factory=lambda: ThreadPoolExecutor(1, thread_name_prefix="beadline-sync")
    )

    def close(self) -> None:
        """End the threads, and leave the session as it was."""
        self.syncing.shutdown(wait=False)
        if self.progress.topics is not None:
            self.progress.topics.close()
        with suppress(Exception):  # Spark is gone, and its settings too
            self.partitioning.unpin()

    def use(self, query: StreamingQuery | None) -> None:
        """Note which Spark query calls back; None while it is not known."""
        self.query = query

    def batch(self, frame: DataFrame, number: int) -> SparkBatch:
        """Return one epoch, as Spark gave it to ``foreachBatch``."""
        self.batch_size.tell(frame.sparkSession)
        return SparkBatch(self, frame, number)


class SparkBatch:
    """The rows of one epoch."""

    def __init__(self, engine: Engine, frame: DataFrame, number: int) -> None:
        """``frame`` may be computed any number of times, but costs a pass over the source."""
        self._engine = engine
        self._frame = self._given = frame
        self._number = number
        self._checked = False
        self._shared: Shared | None = None
        self._attempts: dict[str, Iterator[int]] = defaultdict(itertools.count)
        # In parallel with preparing, so that it takes no extra time.
        self._synced = engine.syncing.submit(self._sync)
        if engine.progress.topics is not None:
            engine.progress.topics.begin(number)

    @property
    def number(self) -> int:
        """Spark's batch id."""
        return self._number

    def offsets(self) -> str:
        """Return the digest of Spark's offsets of this epoch, which are durable by now."""
        planned = self._synced.result() or planned_offsets(self._engine.query, self._number)
        return self._engine.progress.offsets_planned(self._number, planned)

    def _sync(self) -> str | None:
        self._engine.progress.sync(self._number)
        return planned_offsets(self._engine.query, self._number)

    def settings(self) -> dict[str, str]:
        """Return the settings that decide how the rows are divided into parts."""
        return self._engine.partitioning.of(self._given.sparkSession)

    def event_time(self) -> dict[str, Any]:
        """Return the epoch's watermark and late rows, and what each input contributed."""
        found = self._engine.watermarks
        return {} if found is None else found.decided(self._engine.query, self._number)

    @contextmanager
    def sharing(self, sinks: int) -> Iterator[None]:
        """Compute the rows once for several sinks; acks of ``prepare`` say which rows they got."""
        self._check_source()
        # A rows= that prunes (a limit, a filter that is never true) would not advance the state.
        eager = self._engine.stateful and bool(self._engine.rows)
        if sinks < 2 and not eager:
            yield
            return
        before = self._frame
        if sinks < 2:
            self._frame = before.localCheckpoint(eager=True)
        else:
            self._shared = Shared(before, self._engine.columns, eager)
            self._frame = self._shared.frame
        try:
            yield
        finally:
            release(self._frame)
            self._frame, self._shared = before, None

    def run_prepare(
        self, sink: BoundSink, ticket: Ticket, refused: Sequence[RefusedRow] | None = None
    ) -> Acks:
        """Run the sink's ``prepare`` on every part, or on the whole frame."""
        acks = self._acks_of(sink, ticket, refused)
        if self._shared is None or refused is not None or acks.tags is not None:
            return acks
        # It is not proven that the others get the same rows. What it made is a losing attempt.
        return replace(self._acks_of(sink, ticket, refused), extra_attempts=True)

    def _acks_of(
        self, sink: BoundSink, ticket: Ticket, refused: Sequence[RefusedRow] | None
    ) -> Acks:
        if isinstance(sink.sink, FrameSink):
            return self._write_frame(sink, ticket, refused)
        refusing = refusing_of(sink, refused)
        frame = self._rows_of(sink, ticket, refused)
        checksum = None
        if sink.capabilities.expires and refused is None:
            checksum = self._checksum_kind(sink.name, frame)
        if checksum == SUMMED:
            frame = frame.withColumn(CHECKSUM, self._checksum(sink.name, frame))
        tagged = self._tagged(sink, refused)
        make = partial(prepare_task, sink.sink, checksum, refusing, tagged)
        acks, execution = self._run(frame, sink.name, f"prepare {tagged}", make, ticket)
        tags = self._tags(acks, tagged, execution) if refused is None else None
        self._engine.owners[sink.name].learn((ack.worker, ack.slot) for ack in acks)
        prepared = [
            prepared_part(sink.sink, ticket, ack) for ack in acks if ack.committable is not None
        ]
        extra = any(ack.retries > 0 for ack in acks) or self._engine.speculation
        return Acks(tuple(prepared), len(acks), extra, refused_rows(sink, acks), tags=tags)

    def _tagged(self, sink: BoundSink, refused: Sequence[RefusedRow] | None) -> bool:
        """Whether the sink's tasks are given the tags of shared rows."""
        return self._shared is not None and refused is None and sink.name not in self._engine.rows

    def _tags(self, acks: Sequence[Ack], tagged: bool, execution: Any) -> Tags | None:
        """Return the tags of the shared rows that a job has read."""
        if self._shared is None:
            return None
        if not tagged:
            return self._shared.some_read(tags_in(execution))
        return self._shared.all_read({a.partition: a.tag for a in acks if a.tag is not None})

    def _checksum_kind(self, name: str, frame: DataFrame) -> str:
        """Return which checksum a sink's rows get, the same in every epoch of a query."""
        kind = self._engine.kinds.get(name)
        if kind is None:
            ordered = self._engine.narrow and is_narrow(frame) and supported(to_arrow(frame))
            kind = self._engine.kinds[name] = ORDERED if ordered else SUMMED
        return kind

    def _checksum(self, name: str, frame: DataFrame) -> Column:
        """Return Spark's hash of a whole row, made once per query: asking for columns is slow."""
        column = self._engine.checksums.get(name)
        if column is None:
            column = F.xxhash64(*(F.col(quoted) for quoted in _quoted(frame) if quoted != _TAG))
            self._engine.checksums[name] = column
        return column

    def run_publish(
        self, sink: BoundSink, ticket: Ticket, refused: Sequence[RefusedRow] | None = None
    ) -> Acks:
        """Run the sink's ``publish`` on every part."""
        assert isinstance(sink.sink, Sink)
        frame = self._rows_of(sink, ticket, refused)
        tagged = self._tagged(sink, refused)
        make = partial(publish_task, sink.sink, refusing_of(sink, refused), tagged)
        acks, _ = self._run(frame, sink.name, f"publish {tagged}", make, ticket)
        rows = sum(ack.rows for ack in acks)
        return Acks((), len(acks), refused=refused_rows(sink, acks), published=rows)

    def _run(
        self, frame: DataFrame, name: str, kind: str, make: Callable[[], BatchTask], ticket: Ticket
    ) -> tuple[Sequence[Ack], Any]:
        """Run a task on every part of the frame; return their acks in order, and Spark's record.

        Tasks are also kept by kind: a query that publishes may have to replay what was decided
        before, and rows replayed for one sink are not shared.
        """
        key = (name, kind)
        column = self._engine.functions.get(key)
        if column is None:
            evaluated = PythonEvalType.SQL_MAP_ARROW_ITER_UDF
            function = pandas_udf(make(), ACK_TYPE, evaluated)  # type: ignore[call-overload]
            column = function(*(F.col(quoted) for quoted in _quoted(frame)))
            self._engine.functions[key] = column
        session = frame.sparkSession
        session.sparkContext.setLocalProperty(TICKET, ticket.to_text())
        session.sparkContext.setLocalProperty(SLOTS, self._engine.owners[name].to_text())
        acks, execution = self._collect(frame, key, column, make)
        if len({ack.partition for ack in acks}) != len(acks):
            raise RuntimeError(f"two acks for one part of sink {name!r}")
        self._engine.batch_size.note(acks)
        return acks, execution

    def _collect(
        self, frame: DataFrame, key: tuple[str, str], column: Any, make: Callable[[], BatchTask]
    ) -> tuple[Sequence[Ack], Any]:
        """Hand the rows over in whichever way is faster."""
        engine = self._engine
        # Only the stream's own rows: those of rows= may have other columns in every epoch.
        if not engine.batch_size.small or frame is not self._frame:
            return collect(frame, column)
        if key not in engine.arrow_tasks:
            engine.arrow_tasks[key] = arrow_task(frame, to_arrow(frame), make())
        task = engine.arrow_tasks[key]
        if task is None:
            return collect(frame, column)
        plan = None
        if engine.narrow and engine.query is not None and frame is self._given:
            plan = plan_of_epoch(engine.query, frame, self._number)
        return task.collect(frame, executed_plan(frame) if plan is None else plan), None

    def reason(self, error: Exception) -> str:
        """Say in one line why a job failed."""
        return reason(error, self._given.sparkSession.sparkContext)

    def advance_state(self) -> None:
        """Advance a stateful plan's state to this epoch; its rows are discarded."""
        if self._engine.stateful:
            self._check_source()
            self._frame.write.format("noop").mode("overwrite").save()

    def _check_source(self) -> None:
        """Rows are about to be computed: they must be those that the epoch was planned with."""
        if not self._checked:
            self._engine.planned.check(self._number)
            self._checked = True

    def _rows_of(
        self,
        sink: BoundSink,
        ticket: Ticket,
        refused: Sequence[RefusedRow] | None,
        metrics: Observation | None = None,
    ) -> DataFrame:
        """Return what the sink is given: its share of the epoch's rows, or dead-letter records.

        Shared rows have a tag in their last column. Where it would be visible, to rows= or Spark's
        own writer, ``metrics`` holds the tags instead.
        """
        self._check_source()
        rows = self._engine.rows.get(sink.name)
        if refused is not None:
            wanted = sink.sink.dead_letter_columns
            records = dead_letter.table(refused, ticket.query, ticket.epoch, wanted)
            # One part, so that they keep their order.
            frame = self._frame.sparkSession.createDataFrame(records).coalesce(1)
        elif self._shared and (rows or metrics):
            frame = self._shared.without_tags(metrics)
        else:
            frame = self._frame
        if rows and refused is None:
            frame = rows(frame)
        columns = sink.capabilities.columns
        if columns is None or (sink.name in self._engine.columns_match and frame is self._frame):
            return frame
        wanted = (*columns, TAG) if frame is self._frame and self._shared else columns
        if frame is self._frame and tuple(frame.columns) == tuple(wanted):
            self._engine.columns_match.add(sink.name)
            return frame
        return frame.select(*wanted)

    def _write_frame(
        self, sink: BoundSink, ticket: Ticket, refused: Sequence[RefusedRow] | None
    ) -> Acks:
        metrics = Observation()
        frame = self._rows_of(sink, ticket, refused, metrics)
        part = ticket.part(0, next(self._attempts[ticket.sink]))
        acks = write_frame(sink.sink, frame, *keeping(part, refusing_of(sink, refused)))
        if self._shared is None or refused is not None:
            return acks
        tags = tags_of(metrics)
        if sink.name in self._engine.rows:
            return replace(acks, tags=self._shared.some_read(tags))
        return replace(acks, tags=self._shared.all_read(tags))


def _quoted(frame: DataFrame) -> list[str]:
    return ["`" + name.replace("`", "``") + "`" for name in frame.columns]
