"""What state costs on disk: ``make bench-state``.

A checkpoint with a million keys, of which one in a hundred changes in each epoch that follows: the
bytes that appear below ``state/`` while such an epoch runs, against those of a whole copy of the
same state (``incremental_bytes_ratio``). A whole copy is what the same million keys make where
Spark keeps no changelog.

And windows with lateness that come and go for 200 epochs: rows of state, and bytes below
``state/``, late against early. Both times as many versions are kept, or the early figure would be
that of a checkpoint which has not yet filled up.
"""

from __future__ import annotations

import os
import statistics
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import DataFrame, SparkSession

from beadline.event_time import count, windowed
from beadline.files import open_files, qualify
from beadline.observe import Event
from beadline.outputs import Outputs
from beadline.state.backend import CHANGELOG
from beadline.stream import exactly_once
from bench._common import quiet_session, report
from bench.epoch import NothingSink

KEYS = int(os.environ.get("BENCH_KEYS", "1_000_000"))
CHANGED = 0.01
CHANGES = 11
EPOCHS = int(os.environ.get("BENCH_EPOCHS", "200"))
EARLY = EPOCHS // 4
WINDOW_KEYS = 200
VERSIONS = "10"


def main() -> None:
    """Measure both, and print the line."""
    spark = quiet_session(
        (),
        **{
            "spark.sql.streaming.minBatchesToRetain": VERSIONS,
            "spark.sql.streaming.stateStore.maintenanceInterval": "5s",
            "spark.sql.session.timeZone": "UTC",
        },
    )
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as name:
        found = measure(spark, Path(name))
    spark.stop()
    report(benchmark="state", **found)


def measure(spark: SparkSession, folder: Path) -> dict[str, Any]:
    """Return the figures of both."""
    changes = changed_bytes(spark, folder / "changes")
    whole = whole_bytes(spark, folder / "whole", folder / "changes" / "in")
    return {
        "state_keys": KEYS,
        "changed_share": CHANGED,
        "whole_bytes": whole,
        "changed_bytes": round(statistics.median(changes)),
        "incremental_bytes_ratio": round(statistics.median(changes) / whole, 4),
        # With the whole copies that Spark makes now and then in the background.
        "incremental_bytes_ratio_mean": round(statistics.mean(changes) / whole, 4),
        **windows(spark, folder / "windows"),
    }


def write_keys(folder: Path) -> None:
    """A file with every key, then files with one in a hundred."""
    folder.mkdir(parents=True)
    random = np.random.default_rng(17)
    some = [random.choice(KEYS, int(KEYS * CHANGED), replace=False) for _ in range(CHANGES)]
    for number, ids in enumerate([np.arange(KEYS), *some]):
        path = folder / f"{number:04d}.parquet"
        pq.write_table(pa.table({"id": ids, "v": random.random(len(ids))}), path)
        os.utime(path, (1_700_000_000 + number, 1_700_000_000 + number))


def totals(spark: SparkSession, folder: Path) -> DataFrame:
    """A count and a sum of each key."""
    rows = spark.readStream.schema("id long, v double").option("maxFilesPerTrigger", 1)
    return rows.parquet(str(folder)).groupBy("id").agg({"v": "sum", "id": "count"})


def changed_bytes(spark: SparkSession, folder: Path) -> list[int]:
    """Return the bytes that each epoch with few changes has added."""
    write_keys(folder / "in")
    seen: dict[str, int] = {}
    added: list[int] = []

    def note(epoch: int) -> None:
        now = files_of(folder / "checkpoint")
        added.append(sum(length for path, length in now.items() if path not in seen))
        seen.update(now)

    run(totals(spark, folder / "in"), folder / "checkpoint", "update", note)
    return added[1:]


def whole_bytes(spark: SparkSession, folder: Path, keys: Path) -> int:
    """Return the bytes of a whole copy: of the epoch with all keys, without a changelog."""
    found: list[int] = []

    def note(epoch: int) -> None:
        found.append(sum(files_of(folder / "checkpoint").values()))

    own = spark.newSession()
    own.conf.set(CHANGELOG, "false")
    run(totals(own, keys), folder / "checkpoint", "update", note)
    return found[0]


def windows(spark: SparkSession, folder: Path) -> dict[str, Any]:
    """Run windows with lateness for many epochs; return rows and bytes, early and late."""
    rows = (
        spark.readStream.format("rate-micro-batch")
        .option("rowsPerBatch", str(WINDOW_KEYS * 5))
        .option("numPartitions", "2")
        .option("advanceMillisPerBatch", "10000")
        .option("startTimestamp", "1700000000000")
        .load()
        .selectExpr(f"value % {WINDOW_KEYS} AS k", "timestamp AS ts")
    )
    counts = windowed(
        rows, "ts", size="10 seconds", by="k", watermark="5 seconds", allowed_lateness="60 seconds"
    ).agg(n=count())
    sizes: dict[int, int] = {}
    rows_of: dict[int, int] = {}
    query: Any = None

    def listen(event: Event) -> None:
        if event.kind == "committed" and event.epoch is not None:
            sizes[event.epoch] = sum(files_of(folder / "checkpoint").values())
        if event.kind == "state" and event.epoch is not None:
            rows_of[event.epoch] = sum(one["rows"] for one in event.details["operators"])

    query = start(counts, folder / "checkpoint", "append", listen)
    while len(sizes) <= EPOCHS and query.isActive:
        query.awaitTermination(0.2)
    query.stop()

    def around(values: dict[int, int], epoch: int) -> int:
        return round(statistics.median(values[e] for e in values if abs(e - epoch) <= 10))

    early, late = EARLY, EPOCHS - 10
    return {
        "epochs": EPOCHS,
        "rows_early": around(rows_of, early),
        "rows_late": around(rows_of, late),
        "bytes_early": around(sizes, early),
        "bytes_late": around(sizes, late),
        "state_rows_growth": round(around(rows_of, late) / around(rows_of, early), 3),
        "state_bytes_growth": round(around(sizes, late) / around(sizes, early), 3),
    }


def start(
    stream: DataFrame | Outputs, checkpoint: Path, mode: str, listen: Callable[[Event], None]
) -> Any:
    """Start a query into nowhere."""
    made = exactly_once(stream, "bench", allow="at-least-once").to(NothingSink())
    return made.start(str(checkpoint), output_mode=mode, listener=listen)


def run(frame: DataFrame, checkpoint: Path, mode: str, note: Callable[[int], None]) -> None:
    """Run to the end of what is there; ``note`` is told each epoch that is committed."""

    def listen(event: Event) -> None:
        if event.kind == "committed" and event.epoch is not None:
            note(event.epoch)

    query = start(frame, checkpoint, mode, listen)
    try:
        query.processAllAvailable()
    finally:
        query.stop()


def files_of(checkpoint: Path) -> dict[str, int]:
    """Every file of the state, with its size."""
    uri = qualify(checkpoint / "state")
    return {one.path: one.size for one in open_files(uri).walk(uri)}


if __name__ == "__main__":
    main()
