"""An alert when nothing came from a sensor for five minutes: event-time timers and two outputs.

Each reading sets a timer for five minutes later. When it fires, the watermark has passed that time:
if there is no other reading in these minutes, there will be none. Readings with their sensor's
running number go to files, alerts to SQLite, both in the same epochs. Five minutes are five minutes
of the readings' own time: a job that was down for an hour finds the alerts that it would have found
then, and no others.

Run it: ``python examples/silence_alerts.py``. Its process is tried without Spark in
``tests/unit/test_silence_alerts.py``, as you may try yours.
"""

from __future__ import annotations

import json
import os
import sqlite3
import sys
import tempfile
from collections.abc import Iterator
from contextlib import closing
from datetime import datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

from beadline import Stream, exactly_once
from beadline.event_time import KeyedContext, KeyedProcess, keyed_process
from beadline.sinks import FileSink, SqliteSink

if TYPE_CHECKING:
    from pyspark.sql import Row, SparkSession

SILENCE = timedelta(minutes=5)
OUTPUTS = {
    "main": "sensor string, ts timestamp, number bigint",
    "alerts": "sensor string, silent_since timestamp, readings bigint",
}


class Silence(KeyedProcess):
    """One sensor: how many readings there were, and those of the last minutes."""

    def open(self, state: Any) -> None:
        """Two states, each with a name and a type."""
        self.readings = state.value("readings", "bigint")
        self.recent = state.map("recent", "timestamp", "bigint")  # the number of each

    def process(self, row: Row, ctx: KeyedContext) -> Iterator[Any]:
        """Count a reading, and set a timer for five minutes after it.

        A newer reading cancels no timer: a row between them may still come, or an epoch may hold a
        whole silence and the reading after it.
        """
        number = (self.readings.get() or 0) + 1
        self.readings.update(number)
        self.recent.put(row.ts, number)
        ctx.timer(row.ts + SILENCE)
        yield {"sensor": row.sensor, "ts": row.ts, "number": number}

    def on_timer(self, time: datetime, ctx: KeyedContext) -> None:
        """Tell of a silence if no other reading came in the five minutes before this time."""
        recent = self.recent.items()
        gone = [(ts, number) for ts, number in recent if ts + SILENCE <= time]
        for ts, _ in gone:
            self.recent.remove(ts)
        if gone and not any(ts <= time for ts, _ in recent[len(gone) :]):
            ctx.emit_to("alerts", (ctx.key.sensor, *gone[-1]))


def job(spark: SparkSession, source: str, files: str, database: str) -> Stream:
    """New files of readings, numbered; and alerts of sensors that are silent."""
    readings = spark.readStream.schema("sensor string, ts timestamp").json(source)
    outputs = keyed_process(
        readings, Silence(), by="sensor", outputs=OUTPUTS, time="ts", watermark="1 minute"
    )
    return (
        exactly_once(outputs, name="silence")
        .to(FileSink(files))
        .to(SqliteSink(database, "alerts"), output="alerts")
    )


def main() -> None:
    """Two files of readings: the second shows that sensor b was silent."""
    from beadline import session

    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)  # workers need the same packages
    spark = session("silence")
    with tempfile.TemporaryDirectory() as folder:
        top = Path(folder)
        (top / "in").mkdir()
        for number, minutes in enumerate([{"a": [0, 2], "b": [1]}, {"a": [6, 10]}]):
            lines = [
                json.dumps({"sensor": sensor, "ts": f"2026-01-01T12:{minute:02}:00Z"})
                for sensor, found in minutes.items()
                for minute in found
            ]
            (top / "in" / f"{number}.json").write_text("\n".join(lines))
            stream = job(spark, str(top / "in"), str(top / "out"), str(top / "alerts.db"))
            stream.start(str(top / "checkpoint"), available_now=True).awaitTermination()
        with closing(sqlite3.connect(top / "alerts.db")) as db:
            for sensor, since, readings in db.execute("SELECT * FROM alerts"):
                print(f"{sensor} is silent since {since}, after {readings} readings")
    spark.stop()


if __name__ == "__main__":
    main()
