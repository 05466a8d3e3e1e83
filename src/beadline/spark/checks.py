"""Everything that must be refused is refused here, before anything is written."""

from __future__ import annotations

import inspect
import logging
from typing import TYPE_CHECKING, Any

from pyspark.errors import PySparkException
from pyspark.sql import DataFrame

from beadline import dead_letter
from beadline.errors import (
    NOTHING_WRITTEN,
    BadQuery,
    BadSetting,
    BadSink,
    BeadlineError,
    GuaranteeRefused,
)
from beadline.files import has_atomic_create, open_files
from beadline.files.local import can_link
from beadline.ids import QueryId
from beadline.sink import BoundSink, Capabilities, Guarantee
from beadline.spark.conf import is_set, is_true, value_of
from beadline.spark.plan import never_idle, nodes, plan_of
from beadline.stream import Output, StartSettings, Stream

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.readwriter import DataStreamWriter

    from beadline.guarantee import Report

logger = logging.getLogger("beadline")

LOSSY_SETTINGS = ("spark.sql.files.ignoreCorruptFiles", "spark.sql.files.ignoreMissingFiles")
_MANY_STATEFUL = "spark.sql.streaming.statefulOperator.allowMultiple"
ADAPTIVE_STREAMING = "spark.sql.adaptive.streaming.stateless.enabled"

# With it, a scalar Python UDF directly on columnar files hangs forever in PySpark 4.2.0.
COLUMNAR_INPUT = "spark.sql.execution.arrow.pythonUDF.columnarInput.enabled"

# Options of Spark's writer that Beadline sets itself or cannot allow, each with the reason.
REFUSED_OPTIONS = {
    "asyncprogresstrackingenabled": "Spark would commit offsets independently of the epoch, and an "
    "epoch that is not in the offset log cannot be redelivered",
    "checkpointlocation": "the checkpoint is start()'s first argument",
    "queryname": "the query's name is exactly_once()'s second argument",
}


def check_stream(stream: Stream) -> None:
    """The frame must be a stream, and the query must have a sink."""
    if not isinstance(stream.frame, DataFrame) or not stream.frame.isStreaming:
        what = "a batch DataFrame" if isinstance(stream.frame, DataFrame) else "not a DataFrame"
        raise BadQuery(
            f"query {stream.name!r} needs a streaming DataFrame (spark.readStream), and this is "
            f"{what}. {NOTHING_WRITTEN}"
        )
    if not stream.outputs:
        raise BadQuery(
            f"query {stream.name!r} has no sink: add one with .to(sink). {NOTHING_WRITTEN}"
        )


def check_settings(stream: Stream, options: dict[str, str]) -> None:
    """No setting may break a rule of the protocol."""
    for key, value in options.items():
        why = REFUSED_OPTIONS.get(key.lower())
        if why and not (key.lower().startswith("async") and str(value).lower() == "false"):
            raise BadSetting(f"option {key!r} cannot be used: {why}. {NOTHING_WRITTEN}")
    session = stream.frame.sparkSession
    for key in LOSSY_SETTINGS:
        if is_true(session.conf.get(key, "false")):
            raise BadSetting(
                f"{key} is true: a source file that cannot be read would be skipped, and its rows "
                f"lost silently. Set it to false. {NOTHING_WRITTEN}"
            )
    adaptive = is_true(session.conf.get("spark.sql.adaptive.enabled", "true"))
    # Only if it was set explicitly: Spark's own default is silently switched off for the query.
    chosen = is_set(session, ADAPTIVE_STREAMING) and is_true(session.conf.get(ADAPTIVE_STREAMING))
    if adaptive and chosen:
        raise BadSetting(
            f"{ADAPTIVE_STREAMING} is set to true: adaptive execution may divide an epoch into "
            "other parts when it is redelivered, so a lost part could not be identified. Set it to "
            f"false or remove it. {NOTHING_WRITTEN}"
        )


def switched_off(session: SparkSession) -> list[str]:
    """Return the settings that a query is started without, whatever the session has."""
    keys = ["spark.sql.adaptive.enabled"]
    if is_true(value_of(session, COLUMNAR_INPUT)):
        if is_set(session, COLUMNAR_INPUT):
            logger.warning(
                "%s is set to true: with PySpark 4.2.0 a Python UDF directly on columnar files "
                "(parquet, ORC) then hangs forever, and the query with it. Set it to false.",
                COLUMNAR_INPUT,
            )
        else:
            keys.append(COLUMNAR_INPUT)
    return keys


def check_files(checkpoint: str, mode: Guarantee) -> None:
    """The checkpoint's file system must support the log's rule; creating a link is tried."""
    check_rule(checkpoint, mode)
    open_files(checkpoint)  # or Spark has no classes for it
    if checkpoint.startswith("file:") and not can_link(checkpoint):
        raise BadSetting(
            f"checkpoint {checkpoint}: this file system has no hard links, without which "
            "create-if-absent on a local disk may have two winners. Use another disk, or hdfs:. "
            f"{NOTHING_WRITTEN}"
        )


def check_rule(checkpoint: str, mode: Guarantee) -> None:
    """The same, by the name of the file system alone."""
    if mode is Guarantee.EXACTLY_ONCE and not has_atomic_create(checkpoint):
        raise BadSetting(
            f"checkpoint {checkpoint}: create-if-absent of this file system is not proven to have "
            "one winner, so two drivers could both decide an epoch. Put the checkpoint on a local "
            "disk or on hdfs: (sources and sinks may be anywhere); or use at_least_once(), if rows "
            f"may show again after a crash. {NOTHING_WRITTEN}"
        )


def arrow_schema(output: Output, frame: DataFrame) -> pa.Schema:
    """Return the Arrow schema of the rows that one sink will be given."""
    if output.refused_by:
        return dead_letter.schema(output.sink.dead_letter_columns)
    shape = frame.sparkSession.createDataFrame([], frame.schema)
    try:
        rows = output.rows(shape) if output.rows else shape
    except Exception as error:
        raise BadSink(
            f"rows= of sink {output.name!r} failed on an empty frame of the query's schema "
            f"{frame.schema.simpleString()}: {type(error).__name__}: {error}. {NOTHING_WRITTEN}"
        ) from error
    if not isinstance(rows, DataFrame) or rows.isStreaming:
        raise BadSink(
            f"rows= of sink {output.name!r} must return a batch DataFrame. {NOTHING_WRITTEN}"
        )
    return to_arrow(rows)


def to_arrow(rows: DataFrame) -> pa.Schema:
    """Spark's own mapping, whose parameters differ between versions of Spark 4."""
    from pyspark.sql.pandas.types import to_arrow_schema

    known = inspect.signature(to_arrow_schema).parameters
    wanted: dict[str, Any] = {"timezone": "UTC"}
    schema = to_arrow_schema(rows.schema, **{k: v for k, v in wanted.items() if k in known})
    assert schema is not None
    return schema


def bind(stream: Stream, query: QueryId, *, refuse: bool = True) -> list[BoundSink]:
    """Ask every sink whether it can take its rows, and what it can promise.

    One that promises too little is refused, unless this is only for a report.
    """
    bound = []
    dead_letter_sinks = {output.refused_by: output.name for output in stream.outputs}
    for output in stream.outputs:
        try:
            found = output.sink.check(arrow_schema(output, stream.frame), query)
        except BeadlineError:
            raise
        except Exception as error:
            raise BadSink(
                f"sink {output.name!r} cannot be used: {type(error).__name__}: {error}. "
                f"{NOTHING_WRITTEN}"
            ) from error
        if output.name in dead_letter_sinks and not found.refuses_rows:
            raise BadQuery(
                f"sink {output.name!r} cannot hand rows over to dead_letter=: one that it cannot "
                "keep stops the query, with an error that says why. Leave dead_letter= out, and "
                f"select such rows into a sink of their own with rows=. {NOTHING_WRITTEN}"
            )
        needed = output.allow if output.allow is not None else stream.mode
        if refuse and found.guarantee < min(needed, stream.mode):
            hint = f" {found.raised_by}" if found.raised_by else ""
            raise GuaranteeRefused(
                f"query {query.name!r} must be {stream.mode}, but sink {output.name!r} is "
                f"{found.guarantee}: {found.sentence}{hint} Allow it explicitly with .to(sink, "
                f'allow="{found.guarantee}"), or take it out. {NOTHING_WRITTEN}'
            )
        _check_disk(stream, output, found)
        bound.append(
            BoundSink(output.name, output.sink, found, dead_letter_sinks.get(output.name, ""))
        )
    return bound


def refuse_weak(report: Report) -> None:
    """Raise if a part makes the query weaker than its function's name and that is not allowed."""
    if not report.refusals:
        return
    reasons = " ".join(
        f"{found.part} is {found.level}: {found.why}."
        + (f" What would help: {found.cure}." if found.cure else "")
        for found in report.refusals
    )
    raise GuaranteeRefused(
        f"query {report.query!r} must be {report.asked}, but {reasons} A source is accepted as it "
        f'is with exactly_once(…, allow="{report.level}"), or at_least_once(…). {NOTHING_WRITTEN}'
    )


def writer(stream: Stream, settings: StartSettings, checkpoint: str) -> DataStreamWriter:
    """Return Spark's writer, configured; what Spark would refuse is refused now."""
    frame = stream.frame
    if settings.available_now and never_idle(frame):
        raise BadQuery(
            f"query {stream.name!r}: available_now=True would never finish, because timers by "
            "processing time may be due at any time. Use every='10 seconds' and stop() it, or "
            f"timers by event time. {NOTHING_WRITTEN}"
        )
    try:
        made = (
            frame.writeStream.outputMode(settings.output_mode)
            .queryName(stream.name)
            .options(**settings.options)
            .option("checkpointLocation", checkpoint)
        )
        if settings.available_now:
            made = made.trigger(availableNow=True)
        elif settings.every is not None:
            made = made.trigger(processingTime=settings.every)
        _check_plan(frame, settings.output_mode)
        _check_watermarks(stream)
    except (PySparkException, ValueError, TypeError) as error:
        reason = str(error).strip().splitlines()[0]
        raise BadSetting(
            f"query {stream.name!r}: Spark refuses it: {reason}. {NOTHING_WRITTEN}"
        ) from error
    return made


def _check_plan(frame: DataFrame, output_mode: str) -> None:
    """Ask Spark whether the plan can run in this mode; it would check only after our claim."""
    jvm = frame.sparkSession.sparkContext._jvm
    assert jvm is not None
    modes = jvm.org.apache.spark.sql.catalyst.streaming.InternalOutputModes
    checker = jvm.org.apache.spark.sql.catalyst.analysis.UnsupportedOperationChecker
    plan = frame._jdf.queryExecution().analyzed()
    checker.checkForStreaming(plan, modes.apply(output_mode))


def _check_watermarks(stream: Stream) -> None:
    """Refuse a watermark above another one: Spark does so in the first epoch, or never moves it.

    Not where that setting allows it, as Spark's own error recommends.
    """
    if not is_true(value_of(stream.frame.sparkSession, _MANY_STATEFUL)):
        return
    marks = [n for n in nodes(plan_of(stream.frame)) if _is_watermark(n)]
    if any(_is_watermark(below) for mark in marks for below in nodes(mark.child())):
        raise BadQuery(
            f"query {stream.name!r}: rows pass two watermarks, one after the other, such as that "
            "of windows and that of windows over their results. Spark allows only one on the way "
            "of a row. Write the first results to a sink, such as a Kafka topic, and compute the "
            f"others in a query of their own that reads them. {NOTHING_WRITTEN}"
        )


def _is_watermark(node: Any) -> bool:
    return bool(node.getClass().getSimpleName() == "EventTimeWatermark")


def _check_disk(stream: Stream, output: Output, found: Capabilities) -> None:
    """On a cluster, each executor would write to its own disk, and the driver find nothing."""
    master = stream.frame.sparkSession.sparkContext.master or ""
    if found.shared_disk and not output.shared_disk and not master.startswith("local"):
        raise BadSink(
            f"sink {output.name!r} writes to the local path {found.target}, but Spark runs on "
            f"{master}, where each executor has its own disk: rows would be lost. Use a target on "
            "HDFS; or, if that path is one shared mount on every machine, declare it with "
            f".to(sink, shared_disk=True). {NOTHING_WRITTEN}"
        )
