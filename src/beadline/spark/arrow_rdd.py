"""Small rows of plain columns are sent to the workers as an RDD of Arrow batches.

``mapInArrow`` wraps every row into the only column of another one, and is planned again for every
epoch. Spark has another way to make Arrow batches, which ``DataFrame.toArrow()`` uses: whole
batches, as an RDD of bytes. It limits only the number of rows, so it is used where rows have been
small (``batch_size``), as in most topics; for the stream's own rows, whose columns are the same in
every epoch; and where all columns are texts and numbers, which do not depend on the time zone.
Everything else uses ``mapInArrow``, and so does a query's first epoch.

It also accepts a plan to run, which need not be that of the frame: see ``plan_of_epoch``.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from py4j.protocol import Py4JError
from pyspark.serializers import CPickleSerializer, NoOpSerializer

from beadline.spark.acks import Ack, by_partition
from beadline.spark.conf import value_of

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from pyspark.sql.streaming.query import StreamingQuery

    from beadline.spark.tasks import BatchTask

_EXECUTION = "spark.sql.execution.id"
_LARGE = "spark.sql.execution.arrow.useLargeVarTypes"


def usable(frame: DataFrame, schema: pa.Schema) -> bool:
    """Whether rows of these columns can be handed over this way."""
    return value_of(frame.sparkSession, _LARGE) != "true" and all(
        _is_plain(kind) for kind in schema.types
    )


def _is_plain(kind: pa.DataType) -> bool:
    texts = pa.types.is_string(kind) or pa.types.is_binary(kind)
    return bool(texts or pa.types.is_integer(kind) or pa.types.is_floating(kind))


def arrow_task(frame: DataFrame, schema: pa.Schema, task: BatchTask) -> ArrowTask | None:
    """Register a task with Spark; None if it cannot be run this way, or not by this Spark."""
    if not usable(frame, schema):
        return None
    try:
        return ArrowTask(frame, schema, task)
    except (Py4JError, AttributeError, ImportError, TypeError):  # of Spark's internals
        return None


class ArrowTask:
    """A task registered with Spark, to be run on the parts of every epoch's frame."""

    def __init__(self, frame: DataFrame, schema: pa.Schema, task: BatchTask) -> None:
        """``schema`` is that of the rows, which do not carry it."""
        from pyspark.core.rdd import _prepare_for_python_RDD

        self._context = context = frame.sparkSession.sparkContext
        command = (_on_bytes(task, schema), None, NoOpSerializer(), CPickleSerializer())
        pickled, broadcasts, environment, files = _prepare_for_python_RDD(context, command)
        jvm: Any = context._jvm
        self._function = jvm.SimplePythonFunction(
            bytearray(pickled),
            {**environment, **_like_sql(frame)},
            files,
            context.pythonExec,
            context.pythonVer,
            broadcasts,
            context._javaAccumulator,
        )
        self._job(frame, executed_plan(frame))  # whether this Spark has it all; nothing is run

    def collect(self, frame: DataFrame, plan: Any) -> Sequence[Ack]:
        """Run it on every part of a frame's plan; return the acks by partition."""
        texts = self._job(frame, plan).collect()
        return by_partition(json.loads(texts.toString()))

    def _job(self, frame: DataFrame, plan: Any) -> Any:
        jvm: Any = self._context._jvm
        batches = frame._jdf.toArrowBatchRdd(plan)
        done = jvm.PythonRDD(batches, self._function, False, False).asJavaRDD()
        return jvm.SerDeUtil.pythonToJava(done, False)


def executed_plan(frame: DataFrame) -> Any:
    """Return a frame's own plan."""
    return frame._jdf.queryExecution().executedPlan()


def plan_of_epoch(query: StreamingQuery, frame: DataFrame, number: int) -> Any:
    """Return the plan by which Spark computes an epoch's rows, or None if it does not show it.

    ``foreachBatch`` is given a frame of these rows as an RDD, of which Spark makes a copy, row by
    row, before it does anything with them. Only for a plan without state, which may be run twice,
    and on the query's own thread, from which the tasks take the settings of Spark SQL.
    """
    if frame.sparkSession.sparkContext.getLocalProperty(_EXECUTION) is None:
        return None
    try:
        execution = query._jsq.streamingQuery().lastExecution()
        if execution is None or execution.currentBatchId() != number:
            return None
        return execution.executedPlan()
    except Py4JError:  # this Spark has it under another name
        return None


def _like_sql(frame: DataFrame) -> dict[str, str]:
    """Return the environment that only SQL workers get: with it, Spark reuses the same workers."""
    names = {"SIMPLIFIED_TRACEBACK": "simplifiedTraceback", "HIDE_TRACEBACK": "hideTraceback"}
    on = (
        name
        for name, setting in names.items()
        if value_of(frame.sparkSession, f"spark.sql.execution.pyspark.udf.{setting}.enabled")
        == "true"
    )
    return {f"SPARK_{name}": "1" for name in on}


def _on_bytes(task: BatchTask, schema: pa.Schema) -> Any:
    """Return the task as a function of Spark's: from batches as bytes to acks as texts."""

    def run(_: int, messages: Iterator[bytes]) -> Iterator[str]:
        batches = (pa.ipc.read_record_batch(message, schema) for message in messages)
        for answer in task(batches):
            yield from answer.column(0).to_pylist()

    return run
