"""A running query, with Spark's method names and Beadline's errors."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from pyspark import SparkContext
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame
from pyspark.sql.streaming.query import StreamingQuery
from pyspark.sql.streaming.readwriter import DataStreamWriter

from beadline.decisions import DecisionLog, FileStore
from beadline.decisions.store import LOG_FOLDER
from beadline.errors import (
    BadSetting,
    BeadlineError,
    CheckpointProblem,
    EpochFailed,
    Fenced,
    LogProblem,
    PlannedByAnother,
    PrepareFailed,
)
from beadline.files import join, open_files
from beadline.observe import Listener, ignore
from beadline.protocol import identity
from beadline.protocol.coordinator import Coordinator
from beadline.protocol.run import Run
from beadline.protocol.threads import Threads
from beadline.sources.kafka.positions import Positions
from beadline.sources.kafka.source import with_advice
from beadline.sources.kafka.topics import SourceTopics
from beadline.spark import failures
from beadline.spark.analyze import check_start
from beadline.spark.batch_size import BatchSize
from beadline.spark.checkpoint import SparkProgress
from beadline.spark.engine import Engine
from beadline.spark.plan import (
    has_watermark,
    is_narrow,
    is_stateful,
    runs_python,
    source_folders,
    source_options,
)
from beadline.spark.progress_facts import (
    ProgressFacts,
    ProgressReader,
    StateReader,
    WatermarkReader,
)
from beadline.spark.sharing import whole_rows_first
from beadline.spark.source_files import PlannedFiles
from beadline.spark.spark_query import SparkQuery, start_settings
from beadline.spark.state import check_state
from beadline.spark.wait_reporter import WaitReporter
from beadline.stream import StartSettings, Stream

SWEEP_AGAIN_S = 15.0
LATE_TASK_PAUSES_S = (0.5, 2.0)  # a cancelled task continues until it next talks to Spark


class Query:
    """One start of one stream."""

    def __init__(
        self,
        coordinator: Coordinator,
        engine: Engine,
        threads: Threads,
        positions: Positions,
        waits: WaitReporter,
        facts: ProgressFacts,
    ) -> None:
        """Nothing runs yet."""
        self._coordinator = coordinator
        self._protocol = coordinator.run
        self._engine = engine
        self._threads = threads
        self._positions = positions
        self._waits = waits
        self._facts = facts
        self._error: BaseException | None = None
        self._interrupted = False
        self._stopping = False
        self._cleaned_up = False
        self._started: SparkQuery | None = None
        self._context: SparkContext | None = None
        self._later = threading.Timer(SWEEP_AGAIN_S, self._sweep_again)
        self._later.daemon = True

    def __repr__(self) -> str:
        """The query's name, which start of it this is, and its state."""
        if self._started is None:
            state = "not started"
        elif self.isActive:
            state = "running"
        else:
            failure = self.exception()
            state = "ended" if failure is None else f"failed: {type(failure).__name__}"
        return f"<Query {self.name!r}, generation {self.generation}, {state}>"

    # -- what a user calls, under Spark's own names

    @property
    def name(self) -> str:
        """The query's name."""
        return self._protocol.name

    @property
    def generation(self) -> int:
        """Which start of the query this is."""
        return self._protocol.generation

    @property
    def isActive(self) -> bool:  # noqa: N802
        """Whether Spark is still running it, or is about to again."""
        return not self._spark_query.ended.is_set()

    @property
    def lastProgress(self) -> Any:  # noqa: N802
        """Spark's progress of the last epoch."""
        return self._spark.lastProgress

    @property
    def recentProgress(self) -> Any:  # noqa: N802
        """Spark's progress of the last epochs."""
        return self._spark.recentProgress

    @property
    def status(self) -> dict[str, Any]:
        """Spark's status."""
        return dict(self._spark.status)

    def exception(self) -> BaseException | None:
        """Return what ended the query: Beadline's error where there is one."""
        if self._error is None:
            return None if self._stopping or self.isActive else self._spark_failure()
        # A job that stop() cancelled is not a failure; an error of the protocol is.
        cancelled = isinstance(self._error, PrepareFailed) or not isinstance(
            self._error, BeadlineError
        )
        return None if self._interrupted and cancelled else self._error

    def awaitTermination(self, timeout: float | None = None) -> bool:  # noqa: N802
        """Wait for the end; raise what ended it. With a timeout, return whether it ended."""
        with self._explaining():
            if not self._spark_query.ended.wait(timeout):
                return False
            if self._spark_query.failed is not None:
                raise self._spark_query.failed
            if isinstance(self._error, Fenced):
                raise self._error
        self._clean_up()
        self._close()
        return True

    def processAllAvailable(self) -> None:  # noqa: N802
        """Wait until all data available now shows in every sink; for tests."""
        while True:
            spark = self._spark
            with self._explaining():
                try:
                    spark.processAllAvailable()
                    if isinstance(self._error, Fenced):
                        raise self._error
                except StreamingQueryException:
                    if not self._started_again(spark):
                        raise
                    continue
            return

    def stop(self) -> None:
        """End the query: an undecided epoch is aborted, a decided one is finished."""
        try:
            if self._error is None and not self.isActive:
                self._error = self._spark_failure()  # not to be hidden by this stop
            self._stopping = True
            self._spark_query.stop()
            self._clean_up()
        except Exception as error:  # noqa: BLE001 (raised again if there is something to stop)
            self._note_gone(error)
        finally:
            self._close()

    # -- how it runs

    @property
    def _spark_query(self) -> SparkQuery:
        assert self._started is not None, "the query has not started"
        return self._started

    @property
    def _spark(self) -> StreamingQuery:
        return self._spark_query.query

    def _started_again(self, spark: StreamingQuery) -> bool:
        """Wait for the outcome of a Spark query that has failed."""
        while self.isActive and self._spark is spark:
            self._spark_query.ended.wait(0.01)
        return self.isActive

    def _spark_failure(self) -> BaseException | None:
        """The error with which Spark itself failed."""
        try:
            found = self._spark.exception()
        except Exception as error:  # noqa: BLE001 (it is reported, whatever it is)
            self._note_gone(error)
            return self._error
        return failures.explain(with_advice(found, self.name), self.name)

    @contextmanager
    def _explaining(self) -> Iterator[None]:
        """Raise what ended the query, as the most specific error."""
        try:
            yield
        except Exception as error:  # noqa: BLE001 (raised again in any case)
            if not isinstance(error, StreamingQueryException | BeadlineError):
                self._note_gone(error)
            failure = self.exception()
            if failure is not None:
                self._close()
                raise failure from None
        ended = self._cleaned_up or self._stopping or self._error is not None
        if not ended and failures.is_stopped(self._context):
            self._error = failures.stopped(self.name)
            self._close()
            raise self._error

    def _note_gone(self, error: Exception) -> None:
        """Note that Spark itself is gone; if it is not, raise the error again."""
        stopped = failures.is_stopped(self._context)
        if not stopped and not failures.is_gone(error):
            raise error
        # The error of a Spark job says nothing new then.
        if self._error is None or isinstance(self._error, PrepareFailed):
            self._error = (
                failures.stopped(self.name) if stopped else failures.explain(error, self.name)
            )

    def _run(self, stream: Stream, writer: DataStreamWriter) -> None:
        """Hand the stream to Spark, which from now on calls back, epoch by epoch."""
        session = stream.frame.sparkSession
        self._context = session.sparkContext
        recovered = self._coordinator.recovered
        recorded = recovered.decision.settings if recovered and recovered.lost else {}
        self._engine.partitioning.pin(session, recorded)
        self._started = SparkQuery(
            writer.foreachBatch(self._epoch),
            session,
            start_settings(stream.frame, self._protocol.checkpoint),
            self._judge,
            self._is_fenced,
            self._engine.use,
        )
        self._started.start()
        self._facts.start(self._protocol.tell, lambda: self._spark)
        self._later.start()

    def _judge(self, error: BaseException, again: bool) -> None:
        """Raise what the end of Spark's query means; return if Spark should be started again."""
        ours = self._error
        if self._stopping or (ours is not None and not isinstance(ours, PlannedByAnother)):
            raise error
        fenced = self._fenced_instead(ours or error)
        if isinstance(fenced, Fenced):
            self._error = fenced
            raise fenced
        if not (again and (ours is not None or failures.may_pass(error))):
            if ours is None and not isinstance(error, StreamingQueryException):
                self._error = error  # about a restart: Spark's last query does not know it
            raise error
        try:
            # Spark will read its checkpoint again, where another driver may have written.
            state = self._protocol.log.state
            meaning = self._protocol.meaning_between()
            identity.check_progress(state, self._engine.progress, meaning)
        except BeadlineError as refused:
            self._error = refused
            raise
        self._engine.planned.look()
        self._coordinator.sweeper.expect()  # parts of an epoch that was prepared but not decided
        self._error = None
        self._protocol.tell("spark restarted", reason=str(ours or error)[:300])

    def _is_fenced(self) -> bool:
        """Whether a newer start has taken over while Spark had nothing to do.

        During an epoch the protocol checks this itself, and its error says what it was doing.
        """
        if self._stopping or not self._protocol.in_epoch.acquire(blocking=False):
            return False
        try:
            found = self._fenced_instead(RuntimeError("idle"))
        finally:
            self._protocol.in_epoch.release()
        if isinstance(found, Fenced) and self._error is None:
            self._error = found
            return True
        return False

    def _fenced_instead(self, error: BaseException) -> BaseException:
        """If a newer start has taken over, that is the reason, whatever ended the query."""
        if isinstance(error, Fenced | LogProblem) or not isinstance(error, Exception):
            return error
        try:
            self._protocol.log.check_newest()
        except Fenced as fenced:
            fenced.__cause__ = error
            return fenced
        except Exception:  # noqa: BLE001 (the log cannot be read: the first error says more)
            return error
        return error

    def _epoch(self, frame: DataFrame, number: int) -> None:
        """Spark's callback. Any doubt raises an exception (rule 3)."""
        self._waits.began(number)
        try:
            self._coordinator.run_epoch(self._engine.batch(frame, number))
            self._engine.partitioning.unpin(frame.sparkSession)
        except BaseException as error:  # noqa: BLE001 (kept for exception(), then raised again)
            self._interrupted = self._stopping
            self._error = error = error if self._stopping else self._fenced_instead(error)
            # stop() has to clean up first, and so does a restart of Spark.
            if not (self._stopping or isinstance(error, PlannedByAnother)):
                # If something is left, a sweep has failed: it would only fail again.
                swept = isinstance(error, PrepareFailed) and not self._coordinator.sweeper.due
                if swept and self._holds_up:
                    self._end_late_tasks()
                self._close()
            # Spark matches this text against a regular expression that overflows its stack on a
            # long one, so it gets only the sentence; exception() has the full text.
            raise EpochFailed(str(error)[:300]) from None
        else:
            self._spark_query.carried_through()
        finally:
            self._waits.ended()

    def _sweep_again(self) -> None:
        """A task of an older driver may have finished after its orphans were swept (rule 7)."""
        if self._started is None or not self.isActive:
            return
        try:
            self._coordinator.sweeper.later()
        except (BeadlineError, RuntimeError) as error:  # RuntimeError: stopped at this moment
            self._protocol.tell("sweep failed", error=str(error))

    def _clean_up(self) -> None:
        """Leave nothing open outside. What cannot be ended now is swept by the next start."""
        if self._cleaned_up or (self._error is not None and not self._interrupted):
            return
        if isinstance(self._error, LogProblem):
            return  # an append in doubt may still succeed: the next start knows more
        self._cleaned_up = True
        self._end_late_tasks(LATE_TASK_PAUSES_S if self._interrupted else ())

    def _end_late_tasks(self, pauses_s: Sequence[float] = LATE_TASK_PAUSES_S) -> None:
        """A cancelled task may still be about to begin something: check again."""
        try:
            self._coordinator.close()
            for pause_s in pauses_s if self._holds_up else ():
                time.sleep(pause_s)
                self._coordinator.close()
        except Exception as error:  # noqa: BLE001 (a stop must not fail because of it)
            self._protocol.tell("sweep failed", error=str(error))

    @property
    def _holds_up(self) -> bool:
        """Whether a sink's prepared parts hold others up."""
        sinks = self._protocol.sinks
        return any(sink.capabilities.holds_up and self._protocol.prepares(sink) for sink in sinks)

    def _close(self) -> None:
        self._later.cancel()
        self._facts.close()
        self._waits.close()
        self._threads.close()
        self._protocol.log.close()
        self._engine.close()
        self._positions.close()  # last: it may wait for a Kafka that does not answer


def start(stream: Stream, settings: StartSettings, listener: Listener | None) -> Query:
    """Check, claim, sweep, finish; then start Spark (rule 15)."""
    checked = check_start(stream, settings)
    checkpoint = checked.checkpoint
    log = _open_log(checkpoint, settings.keep)
    threads = Threads()
    engine = _engine(stream, checkpoint)
    positions = Positions(source_options(stream.frame), checkpoint)
    waits = WaitReporter()
    listener = waits.listening(positions.listening(listener or ignore))
    sinks = whole_rows_first(checked.sinks, engine.rows)
    run = Run(
        *(stream.name, checkpoint, sinks, log, engine.progress, stream.mode, threads, listener)
    )
    coordinator = Coordinator(run)
    facts = ProgressFacts(_readers(engine))
    query = Query(coordinator, engine, threads, positions, waits, facts)
    threads.stopping = lambda: query._stopping
    try:
        waits.start(run.tell)
        _check_state(stream, settings.output_mode, run)
        coordinator.start(settings.drop)
        log.check_newest()
        engine.progress.forget_unfinished()
        waits.ended()
        positions.start(run.tell, engine.progress.last_committed())
        query._run(stream, checked.writer)
    except BaseException:
        query._stopping = True  # or a thread that waits for an outcome would wait forever
        query._close()
        raise
    return query


def _check_state(stream: Stream, output_mode: str, run: Run) -> None:
    """Compare the state before the claim, if the checkpoint is this query's."""
    if is_stateful(stream.frame):
        identity.identify(run.log.open(), run.progress, run.name, run.checkpoint)
        check_state(stream.frame, output_mode, run.checkpoint, run.name)


def _engine(stream: Stream, checkpoint: str) -> Engine:
    rows = {output.name: output.rows for output in stream.outputs if output.rows is not None}
    conf = stream.frame.sparkSession.sparkContext.getConf()
    speculation = conf.get("spark.speculation", "false") == "true"
    frame = stream.frame
    planned = PlannedFiles(checkpoint, source_folders(frame))
    topics = SourceTopics(source_options(frame), checkpoint, frame.sparkSession._jvm)
    progress = SparkProgress(checkpoint, topics=topics)
    frames = [frame]
    if rows:
        shape = frame.sparkSession.createDataFrame([], frame.schema)
        frames += [made(shape) for made in rows.values()]
    batch_size = BatchSize(shared=any(runs_python(one) for one in frames))
    stateful, narrow = is_stateful(frame), is_narrow(frame)
    watermarks = WatermarkReader() if has_watermark(frame) else None
    return Engine(
        *(progress, planned, rows, stateful, narrow, speculation),
        batch_size=batch_size,
        watermarks=watermarks,
    )


def _readers(engine: Engine) -> list[ProgressReader]:
    """Return the readers of Spark's progress that this query needs; maybe none."""
    found: list[ProgressReader] = [] if engine.watermarks is None else [engine.watermarks]
    return [*found, StateReader()] if engine.stateful else found


def _open_log(checkpoint: str, keep: int) -> DecisionLog:
    """Create the log's folder: the first thing that is written."""
    if keep < 1:
        raise BadSetting(f"keep= is the number of records to retain, at least 1, not {keep}")
    try:
        store = FileStore(open_files(checkpoint), join(checkpoint, LOG_FOLDER))
        store.make_folder()
    except Exception as error:
        raise CheckpointProblem(
            f"checkpoint {checkpoint} cannot be written: {type(error).__name__}: {error}. Give a "
            "folder that this user may write to. Nothing was written."
        ) from error
    return DecisionLog(store, keep)
