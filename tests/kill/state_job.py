"""A driver with state, which kills itself with -9 at a crash point: of every stateful operator.

``python -m tests.kill.state_job FOLDER [POINT TIMES]`` runs both to the end of what is there.
"""

from __future__ import annotations

import functools
import json
import os
import signal
import sys
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, SparkSession

from beadline import exactly_once, session
from beadline.event_time import (
    count,
    deduplicated,
    interval_join,
    sum_of,
    temporal_join,
    windowed,
)
from beadline.event_time.columns import row_hash
from beadline.points import hooked
from beadline.sinks import SqliteSink
from tests.spark.jobs import Died, die_at

KEYS, FILES, ROWS = 5, 4, 40
SCHEMA = "id long, k string, ts timestamp, v long"
DELAY, GAP, NEAR_S, SIZE, SLIDE = "5 seconds", "2 seconds", 3, "10 seconds", "5 seconds"
EVERY, BEST = 4, 2


def everything(rows: DataFrame) -> DataFrame:
    """Return what every stateful operator makes of the rows, in columns that all of them have.

    Joins and duplicates, which have no lateness, take the rows that are in time: v = 0. The rows of
    the temporal join may be late, and are then in its other output; its versions are not.
    """
    lateness: dict[str, Any] = {"by": "k", "watermark": DELAY, "allowed_lateness": "1 minute"}
    in_time = rows.where("v = 0")
    left = in_time.where("id % 2 = 0").selectExpr("k", "ts AS lts", "id AS lid")
    right = in_time.where("id % 2 = 1").selectExpr("k", "ts AS rts", "id AS rid")
    asked = rows.where("id % 2 = 0").selectExpr("k", "ts AS lts", "id AS lid")
    as_of = temporal_join(
        asked, right, "k", left_time="lts", right_time="rts", how="left", late="side",
        watermark=DELAY,
    )  # fmt: skip
    both = ("coalesce(main.k, late.k) AS k", "coalesce(main.lid, late.lid) AS lid")
    near = (f"-{NEAR_S} seconds", f"{NEAR_S} seconds")
    found = {
        "windows": windowed(rows, "ts", size=SIZE, **lateness).agg(value=count()).frame,
        "sliding": windowed(rows, "ts", size=SIZE, slide=SLIDE, **lateness)
        .agg(value=count())
        .frame,
        "sessions": windowed(rows, "ts", session_gap=GAP, **lateness).agg(value=count()).frame,
        "counted": windowed(rows, "ts", every_rows=EVERY, by="k").agg(value=sum_of("id")).frame,
        "top": windowed(rows, "ts", size=SIZE, **lateness).top(BEST, "id", ["id"]).frame,
        "once": deduplicated(in_time, ["k", "id"], "ts", within=DELAY),
        "joined": interval_join(
            left, right, "k", left_time="lts", right_time="rts", between=near, how="full",
            watermark=DELAY,
        ),
        "as_of": as_of.frame.selectExpr(*both, "late IS NOT NULL AS is_late", "main.rid"),
    }  # fmt: skip
    places = {
        "windows": ("unix_seconds(window_start)", "0", "value"),
        "sliding": ("unix_seconds(window_start)", "0", "value"),
        "sessions": ("unix_seconds(window_start)", "0", "value"),
        "counted": ("window_number", "0", "value"),
        "top": ("unix_seconds(window_start)", "rank", "id"),
        "once": ("id", "0", "id"),
        "joined": ("lid", "rid", "0"),
        "as_of": ("lid", "is_late", "rid"),
    }
    frames = []
    for what, (at, other, value) in places.items():
        frame = found[what]
        revision = "revision" if "revision" in frame.columns else "0"
        deleted = "deleted" if "deleted" in frame.columns else "false"
        columns = {"at": at, "other": other, "value": value, "revision": revision}
        numbers = [f"CAST({one} AS bigint) AS {name}" for name, one in columns.items()]
        frames.append(frame.selectExpr(f"'{what}' AS what", "k", *numbers, f"{deleted} AS deleted"))
    return functools.reduce(DataFrame.union, frames)


def run(spark: SparkSession, folder: Path) -> None:
    """Every operator in one query, then counts by key in update mode."""
    rows = spark.readStream.schema(SCHEMA).option("maxFilesPerTrigger", 1).json(str(folder / "in"))
    database = folder / "out.db"
    results = exactly_once(everything(rows), "results").to(SqliteSink(database, "results"))
    counts = rows.groupBy("k").count()
    upserted = exactly_once(counts, "counts").to(SqliteSink(database, "counts", "upsert", "k"))
    for stream, mode in ((results, "append"), (upserted, "update")):
        query = stream.start(str(folder / mode), available_now=True, output_mode=mode)
        query.awaitTermination()


def write_ties(spark: SparkSession, folder: Path) -> None:
    """Write in which order rows of the same time are counted: by their hash, which only Spark has.

    That they have one order is what the oracle needs; which one is of no interest.
    """
    rows = spark.read.schema(SCHEMA).json(str(folder / "in"))
    ties = rows.withColumn("tie", row_hash(rows)).selectExpr("id", "unix_seconds(ts)", "tie")
    (folder / "ties.json").write_text(json.dumps([list(row) for row in ties.collect()]))


def main() -> None:
    """Run, and die where it is asked for."""
    folder = Path(sys.argv[1])
    spark = session("state", **{"spark.master": "local[2]", "spark.sql.shuffle.partitions": "1"})
    if len(sys.argv) == 2:
        run(spark, folder)
        write_ties(spark, folder)
        return
    reached = die_at(sys.argv[2], int(sys.argv[3]))

    def hook(point: str) -> None:
        try:
            reached(point)
        except Died:
            os.kill(os.getpid(), signal.SIGKILL)

    with hooked(hook):
        run(spark, folder)


if __name__ == "__main__":
    main()
