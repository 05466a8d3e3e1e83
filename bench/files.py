"""``FileSink`` beside Spark's own streaming parquet sink: ``make bench-files``.

The same five million rows from the same parquet files, five epochs, in interleaved pairs after a
warm-up; throughput of whole queries, from ``start`` to the end, fsync of every finished file
included on our side (Spark's sink does none).
"""

from __future__ import annotations

import os
import shutil
import tempfile
import time
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from beadline import exactly_once
from beadline.sinks import FileSink
from bench._common import quiet_session, report, spread

ROWS = int(os.environ.get("BENCH_ROWS", "5000000"))
EPOCHS = 5
PAIRS = int(os.environ.get("BENCH_PAIRS", "7"))


def write_input(spark: SparkSession, folder: Path) -> None:
    """One file an epoch, with a number, two texts, a measure and a time in each row."""
    per_epoch = ROWS // EPOCHS
    for number in range(EPOCHS):
        rows = spark.range(number * per_epoch, (number + 1) * per_epoch, 1, 1).select(
            "id",
            F.concat(F.lit("key-"), F.col("id") % 10_000).alias("key"),
            F.sha2(F.col("id").cast("string"), 224).alias("text"),
            (F.col("id") * 0.25).alias("measure"),
            F.timestamp_millis(F.col("id")).alias("at"),
        )
        rows.write.mode("append").parquet(str(folder))
    for number, path in enumerate(sorted(folder.glob("*.parquet"))):
        os.utime(path, (1_700_000_000 + number, 1_700_000_000 + number))


def read(spark: SparkSession, folder: Path) -> DataFrame:
    """The files as a stream, one an epoch, in two parts."""
    schema = spark.read.parquet(str(folder)).schema
    return spark.readStream.schema(schema).option("maxFilesPerTrigger", 1).parquet(str(folder))


def spark_sink(spark: SparkSession, source: Path, out: Path) -> float:
    """Seconds of Spark's own sink."""
    began = time.perf_counter()
    writer = read(spark, source).writeStream.format("parquet").option("path", str(out / "rows"))
    writer = writer.option("checkpointLocation", str(out / "checkpoint"))
    writer.trigger(availableNow=True).start().awaitTermination()
    return time.perf_counter() - began


def file_sink(spark: SparkSession, source: Path, out: Path) -> float:
    """Seconds of ours."""
    began = time.perf_counter()
    stream = exactly_once(read(spark, source), "bench").to(FileSink(str(out / "rows")))
    stream.start(str(out / "checkpoint"), available_now=True).awaitTermination()
    return time.perf_counter() - began


def main() -> None:
    """Run the pairs, check the rows, compare."""
    spark = quiet_session()
    # Two parts an epoch, one for each core.
    spark.conf.set("spark.sql.files.maxPartitionBytes", str(32 * 1024 * 1024))
    ratios, ours_s, theirs_s = [], [], []
    with tempfile.TemporaryDirectory(prefix="beadline-bench-") as name:
        folder = Path(name)
        write_input(spark, folder / "in")
        for pair in range(-1, PAIRS):
            seconds = {}
            # The second one finds a warmer cache, so they take turns.
            sides = (spark_sink, file_sink) if pair % 2 else (file_sink, spark_sink)
            for side in sides:
                out = folder / f"{side.__name__}-{pair}"
                seconds[side.__name__] = side(spark, folder / "in", out)
                found = spark.read.parquet(str(out / "rows")).count()
                assert found == ROWS, f"{side.__name__} wrote {found} rows"
                shutil.rmtree(out)
            if pair < 0:
                continue  # warm-up
            theirs, ours = seconds["spark_sink"], seconds["file_sink"]
            ratios.append(theirs / ours)
            ours_s.append(ours)
            theirs_s.append(theirs)
            print(f"pair {pair}: Spark {theirs:.2f} s, FileSink {ours:.2f} s", flush=True)
    report(
        benchmark="files",
        vs_spark_file_sink=spread(ratios)["p50"],
        ratio=spread(ratios),
        spark_s=spread(theirs_s),
        beadline_s=spread(ours_s),
        rows=ROWS,
        pairs=PAIRS,
    )


if __name__ == "__main__":
    main()
