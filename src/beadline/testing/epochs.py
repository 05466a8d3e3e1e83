"""For users' own tests: their job on in-memory epochs, with faults written as data.

    result = run_epochs(spark, build, [rows, CRASH, rows, CRASH("commit.between"), rows], tmp_path)

Each list of rows is one epoch. ``CRASH`` means that the driver dies in the middle of the *next*
epoch, at a crash point of ``beadline.points``, and is started again on the same checkpoint;
several before one epoch are deaths one after the other. Nothing of the job is replaced: it is real
Spark, the real log and the real sinks, so what a sink shows afterwards is what it would show.

The death is an exception that no code of Beadline catches, raised on every thread of the driver
that reaches a crash point from then on. So it is a driver's death only: the points inside Python
workers need a real kill, which Beadline's own tests do.
"""

from __future__ import annotations

import itertools
import os
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from beadline.errors import BeadlineError, UsageError
from beadline.observe import Event
from beadline.points import POINTS, hooked
from beadline.stream import Stream

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, Row, SparkSession
    from pyspark.sql.types import StructType

    from beadline.spark.query import Query

IN_WORKERS = frozenset({"prepare.part", "prepare.acked", "staging.written"})
AT_START = frozenset(
    {"claim.before", "claim.after", "recover.before", "recover.after", "start.after"}
)
_THREADS_END_S = 30.0


class DriverDied(BaseException):
    """The simulated death; no ``except Exception`` may clean up after it."""


@dataclass(frozen=True)
class CrashStep:
    """The driver dies in the next epoch, at this crash point."""

    point: str = "decide.after"

    def __post_init__(self) -> None:
        """Refuse a point at which a driver cannot be made to die here."""
        usable = ", ".join(sorted(set(POINTS) - IN_WORKERS))
        if self.point not in POINTS:
            raise UsageError(f"CRASH({self.point!r}): no such crash point. There are: {usable}")
        if self.point in IN_WORKERS:
            raise UsageError(
                f"CRASH({self.point!r}) is reached in Spark's Python workers, where a test in the "
                f"driver's process cannot kill anything. Points of the driver are: {usable}"
            )

    def __call__(self, point: str) -> CrashStep:
        """Name another crash point: ``CRASH("decide.before")``."""
        return CrashStep(point)


CRASH = CrashStep()

GivenRows = Sequence["Mapping[str, Any] | Row"]
Script = Sequence["GivenRows | CrashStep"]
BuildStream = Callable[["DataFrame"], Stream]


@dataclass(frozen=True)
class EpochsRun:
    """What happened: distinct epochs committed, restarts, where the driver died, every event."""

    epochs: int
    restarts: int
    crashes: tuple[str, ...]
    events: tuple[Event, ...]


def run_epochs(
    spark: SparkSession,
    build: BuildStream,
    script: Script,
    folder: str | os.PathLike[str],
    *,
    schema: StructType | str | None = None,
    output_mode: str = "append",
    parts: int = 1,
) -> EpochsRun:
    """Run a job over in-memory epochs, with deaths of its driver in between.

    ``build(frame)`` is the job: it is given a streaming DataFrame of the rows and returns an
    unstarted ``Stream``; each start of the driver calls it again. ``script`` is a list of epochs
    and ``CRASH``. ``schema`` is guessed from all rows unless given. ``parts`` is how many files,
    and so parts, an epoch's rows come in; with one, their order is kept. ``folder`` takes the
    source and the checkpoint; a second call on it continues where the first ended.
    """
    epochs = _read_script(script)
    source = _Source(spark, Path(folder, "source"), _schema(spark, epochs, schema), parts)
    drivers = _Drivers(build, source, str(Path(folder, "checkpoint")), output_mode)
    try:
        for number, (crashes, rows) in enumerate(epochs):
            drivers.epoch(number, rows, crashes)
    finally:
        drivers.stop()
    return drivers.result()


class _Source:
    """A folder of parquet files; an epoch appears in it by the rename of one folder."""

    def __init__(self, spark: SparkSession, folder: Path, schema: StructType, parts: int) -> None:
        self.spark = spark
        self.folder = folder
        self.schema = schema
        self.parts = parts
        folder.mkdir(parents=True, exist_ok=True)

    def frame(self) -> DataFrame:
        reader = self.spark.readStream.schema(self.schema).option("recursiveFileLookup", "true")
        return reader.parquet(str(self.folder))

    def stage(self, rows: GivenRows) -> Path:
        """Write an epoch's rows where the stream does not look yet."""
        staged = self.folder.with_name(f"staged-{len(list(self.folder.iterdir())):05d}")
        frame = self.spark.createDataFrame(list(rows), self.schema)
        frame = frame.coalesce(1) if self.parts == 1 else frame.repartition(self.parts)
        frame.write.mode("overwrite").parquet(str(staged))
        return staged

    def publish(self, staged: Path) -> None:
        staged.rename(self.folder / staged.name)


class _Drivers:
    """One driver after the other, on one checkpoint."""

    def __init__(
        self, build: BuildStream, source: _Source, checkpoint: str, output_mode: str
    ) -> None:
        self.build = build
        self.source = source
        self.checkpoint = checkpoint
        self.output_mode = output_mode
        self.query: Query | None = None
        self.events: list[Event] = []
        self.crashes: list[str] = []
        self.threads = frozenset(threading.enumerate())  # those of other queries

    def epoch(self, number: int, rows: GivenRows, crashes: Sequence[CrashStep]) -> None:
        """Process one epoch to its end, however often the driver dies on the way."""
        staged: Path | None = self.source.stage(rows)
        if crashes and crashes[0].point in AT_START:
            self.stop()
        else:
            self.start()
        for crash in (*crashes, None):
            with _armed(crash) as passed:
                if staged is not None:
                    self.source.publish(staged)
                    staged = None
                if not self.survives():
                    assert crash is not None
                    self.crashes.append(crash.point)
                    continue
            if crash is not None:
                seen = ", ".join(dict.fromkeys(passed)) or "none"
                raise UsageError(
                    f"epoch {number} of the script: CRASH({crash.point!r}) was never reached, so "
                    f"nothing was tested by it. Points that were passed, in this order: {seen}"
                )

    def survives(self) -> bool:
        """Start if need be and process what is there; False if the driver died of it."""
        try:
            self.start()
            assert self.query is not None
            self.query.processAllAvailable()
        except DriverDied:
            self.stop()
            return False
        return True

    def start(self) -> None:
        if self.query is not None:
            return
        self.threads = frozenset(threading.enumerate())
        stream = self.build(self.source.frame())
        if not isinstance(stream, Stream):
            raise UsageError(f"build(frame) returned {type(stream).__name__}, not a Stream")
        self.query = stream.start(
            self.checkpoint, output_mode=self.output_mode, listener=self.events.append
        )

    def stop(self) -> None:
        """End the driver, dead or alive; nothing of it may act when the next one starts."""
        query, self.query = self.query, None
        if query is not None:
            query.stop()
        for thread in set(threading.enumerate()) - self.threads:
            # Threads of the log live on, but do nothing unless they are asked to.
            if thread.name.startswith("beadline_"):
                thread.join(_THREADS_END_S)
                if thread.is_alive():
                    raise BeadlineError(
                        f"{thread.name} of a dead driver still runs after {_THREADS_END_S} s: a "
                        "sink's commit hangs, and a new start next to it would prove nothing"
                    )

    def result(self) -> EpochsRun:
        done = {event.epoch for event in self.events if event.kind == "committed"}
        crashes = tuple(self.crashes)
        return EpochsRun(len(done), len(crashes), crashes, tuple(self.events))


@contextmanager
def _armed(crash: CrashStep | None) -> Iterator[list[str]]:
    """Kill the driver at a crash point, on every thread; yield the points that it passes."""
    passed: list[str] = []
    dead = threading.Event()

    def hook(point: str) -> None:
        passed.append(point)
        if dead.is_set() or (crash is not None and crash.point == point):
            dead.set()
            raise DriverDied(f"the driver dies at {point}, as the test's script says")

    with hooked(hook):
        yield passed


def _read_script(script: Script) -> list[tuple[tuple[CrashStep, ...], GivenRows]]:
    """Pair every epoch with the deaths that come in it."""
    epochs: list[tuple[tuple[CrashStep, ...], GivenRows]] = []
    crashes: list[CrashStep] = []
    for step in script:
        if isinstance(step, CrashStep):
            crashes.append(step)
        elif isinstance(step, str | Mapping) or not isinstance(step, Sequence):
            what = type(step).__name__
            raise UsageError(f"a script is a list of CRASH and of lists of rows, not of {what}")
        else:
            epochs.append((tuple(crashes), step))
            crashes = []
    if crashes:
        raise UsageError("CRASH is for the epoch after it, and the script ends with one")
    return epochs


def _schema(
    spark: SparkSession,
    epochs: Sequence[tuple[tuple[CrashStep, ...], GivenRows]],
    schema: StructType | str | None,
) -> StructType:
    """Return the schema of every epoch, which must be the same."""
    rows = list(itertools.chain.from_iterable(rows for _, rows in epochs))
    if schema is not None:
        return spark.createDataFrame([], schema).schema
    try:
        return spark.createDataFrame(rows).schema
    except (TypeError, ValueError) as error:
        raise UsageError(
            f'the rows do not show their schema ({error}): give schema="id long, name string"'
        ) from error
