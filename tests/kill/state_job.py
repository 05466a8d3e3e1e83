"""A driver with state, which kills itself with -9 at a crash point: of a count, and of windows.

``python -m tests.kill.state_job FOLDER [POINT TIMES]`` runs both to the end of what is there.
"""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

from pyspark.sql import SparkSession

from beadline import exactly_once, session
from beadline.event_time import count, windowed
from beadline.points import hooked
from beadline.sinks import SqliteSink
from tests.spark.jobs import Died, die_at

KEYS, FILES, ROWS = 7, 4, 40
SCHEMA = "k string, ts timestamp, v long"


def run(spark: SparkSession, folder: Path) -> None:
    """Counts by key in update mode, then windows with lateness."""
    rows = spark.readStream.schema(SCHEMA).option("maxFilesPerTrigger", 1).json(str(folder / "in"))
    database = folder / "out.db"
    counts = rows.groupBy("k").count()
    windows = windowed(
        rows, "ts", size="10 seconds", by="k", watermark="5 seconds", allowed_lateness="1 minute"
    ).agg(n=count())
    for stream, name, mode, keys in (
        (counts, "counts", "update", "k"),
        (windows, "windows", "append", ["k", "window_start"]),
    ):
        made = exactly_once(stream, name).to(SqliteSink(database, name, "upsert", keys))
        query = made.start(
            str(folder / name),
            available_now=True,
            output_mode=mode,
        )
        query.awaitTermination()


def main() -> None:
    """Run, and die where it is asked for."""
    folder = Path(sys.argv[1])
    spark = session("state", **{"spark.master": "local[2]", "spark.sql.shuffle.partitions": "2"})
    if len(sys.argv) == 2:
        run(spark, folder)
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
