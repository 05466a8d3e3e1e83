"""What Beadline adds to an epoch: ``make bench-epoch``.

Two queries on the same kind of source, 8 parts each: one is a plain ``foreachBatch`` into Spark's
``noop``, the other Beadline with a sink that does nothing, log on disk, fsync on. They take strict
turns, epoch by epoch: a baton is kept from one callback to the same query's next, so a turn is a
whole epoch with Spark's own logs and planning in it, and the other side never runs beside it.
"""

from __future__ import annotations

import os
import statistics
import tempfile
import threading
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import ClassVar

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession

from beadline import Capabilities, CommitResult, Guarantee, Outcome, Part, Prepared, Seen, Sink
from beadline.committable import Committable
from beadline.ids import EpochId, QueryId
from beadline.run.query import Query
from beadline.stream import exactly_once
from bench._common import quiet_session, report, spread

EPOCHS = int(os.environ.get("BENCH_EPOCHS", "2050"))
PARTS = 8
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

    def in_doubt(self, query: QueryId) -> Iterable[Prepared[Counted]]:
        """Nothing is held."""
        return ()

    def last_seen(self, query: QueryId) -> Seen | None:
        """Nothing is remembered."""
        return None


class Turns:
    """Strict turns between two players, each as long as one whole epoch."""

    def __init__(self) -> None:
        """The first player begins."""
        self._turn = 0
        self._change = threading.Condition()
        self._began: list[float | None] = [None, None]
        self.times_ms: list[list[float]] = [[], []]
        self.over = threading.Event()

    def next_epoch(self, player: int) -> None:
        """Called first in a player's callback: ends its last turn, and waits for the next."""
        with self._change:
            began = self._began[player]
            if began is not None:
                self.times_ms[player].append((time.perf_counter() - began) * 1000)
                self._turn = 1 - player
                self._change.notify_all()
                if min(len(times) for times in self.times_ms) >= EPOCHS:
                    self.over.set()
            self._change.wait_for(lambda: self._turn == player or self.over.is_set())
            self._began[player] = time.perf_counter()


def source(spark: SparkSession) -> DataFrame:
    """A thousand rows an epoch, in so many parts."""
    rate = spark.readStream.format("rate-micro-batch")
    return rate.option("rowsPerBatch", 1000).option("numPartitions", PARTS).load()


def start_plain(spark: SparkSession, folder: str, turns: Turns) -> object:
    """Spark's own: foreachBatch into noop."""

    def epoch(frame: DataFrame, number: int) -> None:
        turns.next_epoch(0)
        frame.write.format("noop").mode("overwrite").save()

    writer = source(spark).writeStream.foreachBatch(epoch)
    return writer.option("checkpointLocation", f"{folder}/plain").start()


def start_beadline(spark: SparkSession, folder: str, turns: Turns) -> Query:
    """The same, exactly once."""
    stream = exactly_once(source(spark), "bench").to(NothingSink())
    run_epoch = Query._epoch

    def epoch(query: Query, frame: DataFrame, number: int) -> None:
        turns.next_epoch(1)
        run_epoch(query, frame, number)

    Query._epoch = epoch  # type: ignore[method-assign,assignment]
    return stream.start(f"{folder}/beadline")


def main() -> None:
    """Play the turns, then compare."""
    spark = quiet_session()
    turns = Turns()
    with tempfile.TemporaryDirectory(prefix="beadline-bench-") as folder:
        plain = start_plain(spark, folder, turns)
        query = start_beadline(spark, folder, turns)
        while not turns.over.wait(10):
            failure = query.exception()
            if failure is not None:
                raise failure
            print(f"epoch {len(turns.times_ms[1])} of {EPOCHS}", flush=True)
        query.stop()
        plain.stop()  # type: ignore[attr-defined]
    plain_ms, beadline_ms = (times[:EPOCHS] for times in turns.times_ms)
    added = [ours - theirs for theirs, ours in zip(plain_ms, beadline_ms, strict=True)]
    early = statistics.median(beadline_ms[WARM_UP : WARM_UP + WINDOW])
    late = statistics.median(beadline_ms[-WINDOW:])
    plain_early = statistics.median(plain_ms[WARM_UP : WARM_UP + WINDOW])
    plain_late = statistics.median(plain_ms[-WINDOW:])
    report(
        benchmark="epoch",
        added_ms_p50=round(statistics.median(added[WARM_UP:]), 2),
        added_ms=spread(added[WARM_UP:]),
        added_late_ms_p50=round(statistics.median(added[-WINDOW:]), 2),
        late_vs_early=round(late / early, 3),
        plain_late_vs_early=round(plain_late / plain_early, 3),
        plain_ms=spread(plain_ms[WARM_UP:]),
        beadline_ms=spread(beadline_ms[WARM_UP:]),
        epochs=EPOCHS,
        parts=PARTS,
    )


if __name__ == "__main__":
    main()
