"""Windows beside plain Spark and beside PyFlink, and what their state costs: ``make bench-time``.

A million rows of a thousand keys in ten files, one an epoch; ten windows of ten minutes; rows out
of order by up to a minute, two in a hundred late by five to fifteen minutes. Three comparisons, in
interleaved turns after a warm-up, of whole queries, from ``start`` to the end, results in files:

- ``window_vs_spark``: a windowed count without lateness, which is Spark's own aggregation, beside
  Spark's own query and file sink, as Spark comes. ``window_vs_spark_rocksdb`` is the same beside
  Spark on the state store that `session()` chooses.
- ``late_window_vs_spark``: with an hour of allowed lateness beside that same query of Spark's,
  which drops late rows.
- ``late_window_vs_pyflink``: the same beside PyFlink's DataStream, ``ProcessWindowFunction`` and
  allowed lateness, exactly-once, checkpoint every second (``bench/_pyflink.py``), from CSV files.
  PyFlink's start is taken off its time, ours is not.

Each result is checked: with lateness, all rows are counted. State is that of ``bench/state.py``.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.csv as pc
import pyarrow.parquet as pq
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from beadline import exactly_once
from beadline.event_time import count, windowed
from beadline.sinks import FileSink
from beadline.state.backend import CHECKPOINT_FORMAT, HDFS_BACKED, PROVIDER
from bench import state
from bench._common import as_spark_comes, quiet_session, report, spread

ROWS = int(os.environ.get("BENCH_ROWS", "1_000_000"))
PAIRS = int(os.environ.get("BENCH_PAIRS", "5"))
KEYS = 1_000
EPOCHS = 10
SPAN_MS = 6_000_000
BEGIN_MS = 1_767_225_600_000
DELAY, LATENESS, SIZE = "1 minute", "1 hour", "10 minutes"
FAR_MS = BEGIN_MS + 100 * SPAN_MS
SPARKS_STORE = "org.apache.spark.sql.execution.streaming.state.HDFSBackedStateStoreProvider"
PYFLINK = "2.2.1"
VENV = Path(__file__).parents[1] / "build" / "pyflink"
Side = Callable[[SparkSession, Path, Path], float]


def rows_of(epoch: int) -> pa.Table:
    """The rows of one file; the last file ends in a row that closes all windows."""
    random = np.random.default_rng(epoch)
    number = ROWS // EPOCHS
    at = BEGIN_MS + (np.arange(number) + epoch * number) * SPAN_MS // ROWS
    at -= random.integers(0, 60_000, number)
    late = random.random(number) < 0.02
    at[late] -= random.integers(300_000, 900_000, late.sum())
    keys = random.integers(0, KEYS, number)
    if epoch == EPOCHS - 1:
        at, keys = np.append(at, FAR_MS), np.append(keys, -1)
    return pa.table({"k": keys, "ts": pa.array(at, pa.timestamp("ms", tz="UTC"))})


def write_input(folder: Path) -> None:
    """The same rows as parquet and as CSV with a time in milliseconds."""
    for kind in ("parquet", "csv"):
        (folder / kind).mkdir(parents=True)
    for epoch in range(EPOCHS):
        rows = rows_of(epoch)
        parquet, csv = (folder / kind / f"{epoch:02d}.{kind}" for kind in ("parquet", "csv"))
        # A few row groups, or one core would read all of a file.
        pq.write_table(rows, parquet, row_group_size=len(rows) // 4)
        numbers = rows.set_column(1, "ms", rows["ts"].cast(pa.int64()))
        pc.write_csv(numbers, csv, pc.WriteOptions(include_header=False))
        for path in (parquet, csv):
            os.utime(path, (1_700_000_000 + epoch,) * 2)


def read(spark: SparkSession, folder: Path, kind: str) -> DataFrame:
    """The files as a stream, one an epoch."""
    columns = "k long, ts timestamp" if kind == "parquet" else "k long, ms long"
    files = spark.readStream.schema(columns).option("maxFilesPerTrigger", 1)
    rows = files.format(kind).load(str(folder / kind))
    if kind == "csv":
        rows = rows.select("k", F.timestamp_millis("ms").alias("ts"))
    return rows


def plain(spark: SparkSession, source: Path, out: Path) -> float:
    """Seconds of Spark's own windows and file sink."""
    rows = read(spark, source, "parquet").withWatermark("ts", DELAY)
    counts = rows.groupBy("k", F.window("ts", SIZE)).agg(F.count("*").alias("n"))
    flat = counts.select("k", F.col("window.start").alias("window_start"), "n")
    began = time.perf_counter()
    writer = flat.writeStream.format("parquet").option("path", str(out / "rows"))
    writer = writer.option("checkpointLocation", str(out / "checkpoint"))
    writer.trigger(availableNow=True).start().awaitTermination()
    return time.perf_counter() - began


def spark_as_it_comes(spark: SparkSession, source: Path, out: Path) -> float:
    """The same on the state store that Spark has by default."""
    own = spark.newSession()
    own.conf.set(PROVIDER, HDFS_BACKED)
    own.conf.set(CHECKPOINT_FORMAT, "1")
    with as_spark_comes(own):
        return plain(own, source, out)


def window(spark: SparkSession, source: Path, out: Path) -> float:
    """Seconds of windows without lateness."""
    rows = read(spark, source, "parquet")
    counts = windowed(rows, "ts", size=SIZE, by="k", watermark=DELAY).agg(n=count())
    return run(counts.frame.select("k", "window_start", "n"), out)


def late(spark: SparkSession, source: Path, out: Path, kind: str = "parquet") -> float:
    """Seconds of windows that fire again."""
    rows = read(spark, source, kind)
    counts = windowed(
        rows, "ts", size=SIZE, by="k", watermark=DELAY, allowed_lateness=LATENESS
    ).agg(n=count())
    return run(counts.frame.select("k", "window_start", "n"), out)


def late_csv(spark: SparkSession, source: Path, out: Path) -> float:
    """The same from CSV files, as PyFlink reads them."""
    return late(spark, source, out, "csv")


def run(results: DataFrame, out: Path) -> float:
    """Seconds of a query of ours."""
    stream = exactly_once(results, "bench").to(FileSink(str(out / "rows")))
    began = time.perf_counter()
    stream.start(str(out / "checkpoint"), available_now=True).awaitTermination()
    return time.perf_counter() - began


def counted(spark: SparkSession, out: Path) -> tuple[int, int]:
    """How many rows the last results of all windows count, and how many windows there are."""
    found = spark.read.parquet(str(out / "rows")).where("k >= 0")
    last = found.groupBy("k", "window_start").agg(F.max("n").alias("n"))
    total, windows = last.agg(F.sum("n"), F.count("*")).collect()[0]
    return int(total), int(windows)


def compare(
    spark: SparkSession, source: Path, folder: Path, sides: dict[str, Side]
) -> dict[str, list[float]]:
    """Let the sides take turns; return the seconds of each, without the warm-up."""
    seconds: dict[str, list[float]] = {name: [] for name in sides}
    for turn in range(-1, PAIRS):
        # The later one finds a warmer cache.
        order = list(sides) if turn % 2 else list(sides)[::-1]
        for name in order:
            out = folder / f"{name}-{turn}"
            took = sides[name](spark, source, out)
            total, windows = counted(spark, out)
            whole = ROWS if name.startswith("late") else 0
            assert not whole or total == whole, f"{name} counted {total} of {whole} rows"
            assert windows >= KEYS * 10, f"{name} has {windows} windows"
            clear(out)
            if turn >= 0:
                seconds[name].append(took)
        if turn >= 0:
            shown = ", ".join(f"{name} {took[-1]:.2f} s" for name, took in seconds.items())
            print(f"turn {turn}: {shown}", flush=True)
    return seconds


def clear(folder: Path) -> None:
    """Remove what a turn has written; Spark's maintenance of state may still be adding to it."""
    shutil.rmtree(folder, ignore_errors=True)


def pyflink(source: Path, folder: Path, mode: str) -> float:
    """Rows a second of PyFlink, less its start: the time of the same job over a hundred rows."""
    python = VENV / "bin" / "python"
    if not python.exists():
        print(f"installing PyFlink {PYFLINK} into {VENV.relative_to(Path.cwd())}", flush=True)
        subprocess.run([sys.executable, "-m", "venv", str(VENV)], check=True)
        pip = [str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
        subprocess.run([*pip, "setuptools<80", "wheel"], check=True)
        subprocess.run([*pip, f"apache-flink=={PYFLINK}"], check=True)
    few = folder / "few"
    few.mkdir(exist_ok=True)
    first = (source / "csv" / "00.csv").read_text().splitlines(keepends=True)[:100]
    (few / "00.csv").write_text("".join(first))
    seconds: list[float] = []
    for given, rows in ((few, 100), (source / "csv", ROWS)):
        out = folder / f"pyflink-{mode}-{given.name}"
        done = subprocess.run(
            [str(python), "-m", "bench._pyflink", str(given), str(out), mode],
            check=True,
            capture_output=True,
            text=True,
        )
        found = json.loads(done.stdout.splitlines()[-1])
        assert found["rows"] == rows, f"PyFlink counted {found['rows']} of {rows} rows"
        seconds.append(float(found["seconds"]))
        clear(out)
    return ROWS / (seconds[1] - seconds[0])


def main() -> None:
    """Measure all of it, and print the line."""
    only = os.environ.get("BENCH_ONLY", "windows pyflink state").split()
    figures: dict[str, object] = {}
    conf = {
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.streaming.minBatchesToRetain": state.VERSIONS,
        "spark.sql.streaming.stateStore.maintenanceInterval": "5s",
    }
    spark = quiet_session((), **conf)
    with tempfile.TemporaryDirectory(prefix="beadline-bench-", ignore_cleanup_errors=True) as name:
        folder = Path(name)
        source = folder / "in"
        write_input(source)
        if "windows" in only:
            figures |= windows(spark, source, folder)
        if "pyflink" in only:
            figures |= beside_pyflink(spark, source, folder)
        if "state" in only:
            figures |= state.measure(spark, folder)
    spark.stop()
    report(benchmark="time", rows=ROWS, keys=KEYS, turns=PAIRS, **figures)


def windows(spark: SparkSession, source: Path, folder: Path) -> dict[str, object]:
    """Beside Spark."""
    sides: dict[str, Side] = {
        "spark": spark_as_it_comes,
        "spark_rocksdb": plain,
        "window": window,
        "late_window": late,
    }
    seconds = compare(spark, source, folder, sides)

    def ratio(ours: str, theirs: str) -> dict[str, float]:
        return spread([b / a for a, b in zip(seconds[ours], seconds[theirs], strict=True)])

    return {
        "window_vs_spark": ratio("window", "spark")["p50"],
        "window_vs_spark_spread": ratio("window", "spark"),
        "window_vs_spark_rocksdb": ratio("window", "spark_rocksdb")["p50"],
        "late_window_vs_spark": ratio("late_window", "spark")["p50"],
        "late_window_vs_spark_spread": ratio("late_window", "spark"),
        "seconds": {name: spread(took)["p50"] for name, took in seconds.items()},
    }


def beside_pyflink(spark: SparkSession, source: Path, folder: Path) -> dict[str, object]:
    """Beside both modes of PyFlink, of which the faster counts."""
    ratios, rates = [], {"process": [], "thread": []}  # type: ignore[var-annotated]
    ours = []
    for turn in range(-1, min(PAIRS, 3)):
        out = folder / f"ours-{turn}"
        rate = ROWS / late_csv(spark, source, out)
        assert counted(spark, out)[0] == ROWS
        clear(out)
        theirs = {mode: pyflink(source, folder, mode) for mode in rates} if turn >= 0 else {}
        if turn < 0:
            continue
        ours.append(rate)
        for mode, one in theirs.items():
            rates[mode].append(one)
        ratios.append(rate / max(theirs.values()))
        print(f"turn {turn}: ours {rate:,.0f} rows/s, PyFlink {theirs}", flush=True)
    return {
        "late_window_vs_pyflink": spread(ratios)["p50"],
        "late_window_vs_pyflink_spread": spread(ratios),
        "rows_per_s": {
            "ours": round(spread(ours)["p50"]),
            **{f"pyflink_{mode}": round(spread(took)["p50"]) for mode, took in rates.items()},
        },
    }


if __name__ == "__main__":
    main()
