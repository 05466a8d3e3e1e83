"""What Beadline adds to an epoch: ``make bench-epoch``.

Three queries on the same kind of source, 8 parts each: a plain ``foreachBatch`` into Spark's
``noop``, as Spark comes; the same, with Spark's own logs written in the quick way that Beadline
chooses on a local disk; and Beadline with a sink that does nothing, log on disk, fsync on. They
take strict turns, epoch by epoch: a baton is kept from one callback to the same query's next, so a
turn is a whole epoch with Spark's own logs and planning in it, and no other side runs beside it.

Memory is that of the driver's process, and of what is alive in the JVM after a collection, early
and late; all three queries share both.
"""

from __future__ import annotations

import os
import statistics
import tempfile
import threading
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import pyarrow as pa
from pyspark import SparkContext
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from beadline import Capabilities, CommitResult, Guarantee, Outcome, Part, Prepared, Seen, Sink
from beadline.committable import Committable
from beadline.ids import EpochId, QueryId
from beadline.spark.query import Query
from beadline.spark.spark_query import start_settings
from beadline.state.backend import session_settings
from beadline.stream import exactly_once
from bench._common import as_spark_comes, quiet_session, report, spread

EPOCHS = int(os.environ.get("BENCH_EPOCHS", "2050"))
PARTS = 8
PLAYERS = 3
WINDOW = 50
WARM_UP = 20


@dataclass(frozen=True)
class Counted(Committable):
    """How many rows there were."""

    rows: int


@dataclass(frozen=True)
class NothingSink(Sink[Counted]):
    """Reads its rows and writes nowhere, so that only the protocol costs."""

    committable: ClassVar[type[Committable]] = Counted

    @property
    def default_name(self) -> str:
        """There is one of them."""
        return "nothing"

    def check(self, schema: pa.Schema, query: QueryId) -> Capabilities:
        """Anything fits."""
        return Capabilities(Guarantee.EXACTLY_ONCE, "Nothing is written.", "nothing")

    def prepare(self, rows: Iterator[pa.RecordBatch], part: Part) -> Counted | None:
        """Count."""
        return Counted(sum(batch.num_rows for batch in rows))

    def commit(self, epoch: EpochId, parts: Sequence[Prepared[Counted]]) -> CommitResult:
        """Say that it is done."""
        return CommitResult.all(parts, Outcome.COMMITTED)

    def abort(self, parts: Sequence[Prepared[Counted]]) -> None:
        """Nothing to undo."""

    def in_doubt(self, query: QueryId, name: str) -> Iterable[Prepared[Counted]]:
        """Nothing is held."""
        return ()

    def last_seen(self, query: QueryId, name: str) -> Seen | None:
        """Nothing is remembered."""
        return None


class Over(Exception):
    """Nothing more is to be run. A short text: Spark's parser of traces fails on a long one."""


class Turns:
    """Strict turns between the players, each as long as one whole epoch."""

    def __init__(self) -> None:
        """The first player begins."""
        self._turn = 0
        self._change = threading.Condition()
        self._began: list[float | None] = [None] * PLAYERS
        self.times_ms: list[list[float]] = [[] for _ in range(PLAYERS)]
        self.over = threading.Event()

    def next_epoch(self, player: int) -> None:
        """Called first in a player's callback: ends its last turn, and waits for the next."""
        with self._change:
            began = self._began[player]
            if began is not None:
                self.times_ms[player].append((time.perf_counter() - began) * 1000)
                self._turn = (player + 1) % PLAYERS
                self._change.notify_all()
                if min(len(times) for times in self.times_ms) >= EPOCHS:
                    self.over.set()
                    self._change.notify_all()
            self._change.wait_for(lambda: self._turn == player or self.over.is_set())
            if self.over.is_set():
                raise Over
            self._began[player] = time.perf_counter()


def source(spark: SparkSession) -> DataFrame:
    """A thousand rows an epoch, in this number of parts."""
    rate = spark.readStream.format("rate-micro-batch")
    return rate.option("rowsPerBatch", 1000).option("numPartitions", PARTS).load()


def start_plain(spark: SparkSession, folder: str, turns: Turns, player: int) -> StreamingQuery:
    """Spark's own: foreachBatch into noop."""

    def epoch(frame: DataFrame, number: int) -> None:
        turns.next_epoch(player)
        frame.write.format("noop").mode("overwrite").save()

    writer = source(spark).writeStream.foreachBatch(epoch)
    return writer.option("checkpointLocation", f"{folder}/plain{player}").start()


def start_quick(spark: SparkSession, folder: str, turns: Turns, player: int) -> StreamingQuery:
    """The same, told what Beadline tells Spark for a local checkpoint."""
    with session_settings(spark, start_settings(source(spark), "file:/")):
        return start_plain(spark, folder, turns, player)


def start_beadline(spark: SparkSession, folder: str, turns: Turns) -> Query:
    """The same, exactly once."""
    stream = exactly_once(source(spark), "bench").to(NothingSink())
    run_epoch = Query._epoch

    def epoch(query: Query, frame: DataFrame, number: int) -> None:
        turns.next_epoch(PLAYERS - 1)
        run_epoch(query, frame, number)

    Query._epoch = epoch  # type: ignore[method-assign,assignment]
    return stream.start(f"{folder}/beadline")


class Memory:
    """Of the driver's process and its JVM, at some epochs."""

    def __init__(self, spark: SparkSession) -> None:
        """Nothing is looked at yet."""
        self._jvm: Any = spark.sparkContext._jvm
        self._pid = SparkContext._gateway.proc.pid  # type: ignore[union-attr]
        self.seen: dict[int, dict[str, float]] = {}

    def look(self, epoch: int) -> None:
        """Take note of it; the JVM collects its garbage first."""
        self._jvm.java.lang.System.gc()
        runtime = self._jvm.java.lang.Runtime.getRuntime()
        live_mb = (runtime.totalMemory() - runtime.freeMemory()) / 2**20
        self.seen[epoch] = {
            "driver_mb": round(_rss_mb(os.getpid()), 1),
            "jvm_mb": round(_rss_mb(self._pid), 1),
            "jvm_live_mb": round(live_mb, 1),
        }

    def per_1000_epochs(self) -> dict[str, float]:
        """How much more there is after each thousand epochs, from the second look on."""
        (early, before), *_, (late, after) = list(self.seen.items())[1:]
        thousands = (late - early) / 1000
        return {name: round((after[name] - before[name]) / thousands, 2) for name in before}


def _rss_mb(pid: int) -> float:
    status = Path(f"/proc/{pid}/status").read_text()
    return int(status.split("VmRSS:")[1].split()[0]) / 1024


def play(spark: SparkSession, turns: Turns, memory: Memory) -> None:
    """Let the players take their turns."""
    looks = [0, EPOCHS // 4, EPOCHS // 2, EPOCHS]
    with tempfile.TemporaryDirectory(prefix="beadline-bench-") as folder:
        with as_spark_comes(spark):
            plain = start_plain(spark, folder, turns, 0)
        quick = start_quick(spark, folder, turns, 1)
        query = start_beadline(spark, folder, turns)
        while not turns.over.wait(2):
            for failure in (query.exception(), plain.exception(), quick.exception()):
                if failure is not None:
                    raise failure
            done = len(turns.times_ms[-1])
            if done >= looks[0]:
                memory.look(done)
                looks.pop(0)
                print(f"epoch {done} of {EPOCHS}: {memory.seen[done]}", flush=True)
        memory.look(EPOCHS)
        for one in (query, plain, quick):
            one.stop()


def main() -> None:
    """Play the turns, then compare."""
    spark = quiet_session()
    turns, memory = Turns(), Memory(spark)
    play(spark, turns, memory)
    spark.stop()  # or its workers complain, after the last line, that it is gone
    plain_ms, quick_ms, beadline_ms = (times[WARM_UP:EPOCHS] for times in turns.times_ms)
    added = [ours - theirs for theirs, ours in zip(plain_ms, beadline_ms, strict=True)]
    alike = [ours - theirs for theirs, ours in zip(quick_ms, beadline_ms, strict=True)]
    early = statistics.median(beadline_ms[:WINDOW])
    plain_early = statistics.median(plain_ms[:WINDOW])
    report(
        benchmark="epoch",
        added_ms_p50=round(statistics.median(added), 2),
        added_ms=spread(added),
        added_alike_ms_p50=round(statistics.median(alike), 2),
        added_alike_ms=spread(alike),
        added_late_ms_p50=round(statistics.median(added[-WINDOW:]), 2),
        late_vs_early=round(statistics.median(beadline_ms[-WINDOW:]) / early, 3),
        plain_late_vs_early=round(statistics.median(plain_ms[-WINDOW:]) / plain_early, 3),
        plain_ms=spread(plain_ms),
        plain_quick_logs_ms=spread(quick_ms),
        beadline_ms=spread(beadline_ms),
        memory=memory.seen,
        memory_per_1000_epochs=memory.per_1000_epochs(),
        epochs=EPOCHS,
        parts=PARTS,
    )


if __name__ == "__main__":
    main()
