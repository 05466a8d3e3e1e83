"""The workload's rows through a ``KeyedProcess``: state that must be neither lost nor added twice.

``python -m tests.harness.keyed FOLDER`` is the demo's job with the totals kept in the process's own
state: what a key has come to is in SQLite, written over in each epoch. If an epoch's rows went into
the state twice, or not at all, every total after it would tell. A timer for each epoch of a key
tells once how many rows it had.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any

from beadline.demo.check import SinkTally, Tally, check, read_table
from beadline.demo.job import clean_rows, main
from beadline.demo.workload import CLEAN, NAME, TOTALS, Workload
from beadline.event_time import KeyedContext, KeyedProcess, keyed_process

if TYPE_CHECKING:
    from pyspark.sql import Row, SparkSession

    from beadline.stream import Stream

JOB = "tests.harness.keyed"
FIRED = "fired"
DUE_AFTER = timedelta(seconds=1)
OUTPUTS = {
    "main": "id bigint, key string, amount bigint",
    TOTALS: "key string, rows bigint, amount bigint",
    FIRED: "key string, due_ms bigint, rows bigint",
}
_STATE = "spark.sql.streaming.stateStore"
SETTINGS = {
    f"{_STATE}.providerClass": "org.apache.spark.sql.execution.streaming.state."
    "RocksDBStateStoreProvider",
    f"{_STATE}.rocksdb.changelogCheckpointing.enabled": "true",
    f"{_STATE}.checkpointFormatVersion": "2",
}


class KeptTotals(KeyedProcess):
    """The total of a key in a value; its epochs in a map, until a timer moves each to a list."""

    def open(self, state: Any) -> None:
        """One of each kind."""
        self.total = state.value("total", "rows bigint, amount bigint")
        self.open_epochs = state.map("open_epochs", "timestamp", "bigint")
        self.closed = state.list("closed", "bigint")

    def process_rows(self, rows: list[Row], ctx: KeyedContext) -> Iterator[Any]:
        """Let the rows through, add them up, and tell the total."""
        count, amount = self.total.get() or (0, 0)
        count, amount = count + len(rows), amount + sum(row.amount for row in rows)
        self.total.update((count, amount))
        due = rows[-1].ts + DUE_AFTER
        self.open_epochs.put(due, len(rows))
        ctx.timer(due)
        for row in rows:
            yield row.id, row.key, row.amount
        kept = sum(self.open_epochs.values()) + sum(self.closed.get())
        assert kept == count, f"{kept} rows in the list and the map, {count} in the value"
        ctx.emit_to(TOTALS, (ctx.key.key, count, amount))

    def on_timer(self, time: datetime, ctx: KeyedContext) -> None:
        """Close an epoch."""
        rows = self.open_epochs.get(time)
        self.open_epochs.remove(time)
        self.closed.add(rows)
        ctx.emit_to(FIRED, (ctx.key.key, int(time.timestamp() * 1000), rows))


def judge(workload: Workload) -> Tally:
    """Compare rows and totals as ever; and what timers told, which is late by an epoch or two."""
    found = Counter(read_table(workload.database, FIRED, "key, due_ms, rows"))
    epochs: list[Counter[Any]] = []
    for rows in workload.expected().files.values():
        newest: dict[str, int] = {}
        counts: Counter[str] = Counter()
        for row, times in rows.items():
            newest[row.key] = max(newest.get(row.key, 0), row.id)
            counts[row.key] += times
        due_ms = DUE_AFTER // timedelta(milliseconds=1)
        epochs.append(Counter((key, newest[key] + due_ms, counts[key]) for key in newest))
    certain = sum(epochs[:-2], Counter())
    tally = check(workload)
    fired = SinkTally(
        found.total(), (certain - found).total(), (found - sum(epochs, Counter())).total()
    )
    return replace(tally, sinks={**tally.sinks, FIRED: fired})


def stream(spark: SparkSession, workload: Workload) -> Stream:
    """The job: good rows to files, the state's totals to SQLite, decided together."""
    from pyspark.sql import functions as F

    from beadline import exactly_once
    from beadline.sinks import FileSink, SqliteSink

    for name, value in SETTINGS.items():
        spark.conf.set(name, value)
    rows = clean_rows(spark, workload).withColumn("ts", F.timestamp_millis("id"))
    outputs = keyed_process(
        rows, KeptTotals(), by="key", outputs=OUTPUTS, time="ts", watermark="0 seconds"
    )
    files = FileSink(str(workload.clean))
    kept = SqliteSink(workload.database, TOTALS, mode="upsert", key=("key",))
    fired = SqliteSink(workload.database, FIRED)
    return (
        exactly_once(outputs, name=NAME)
        .to(files, name=CLEAN)
        .to(kept, output=TOTALS, name=TOTALS)
        .to(fired, output=FIRED, name=FIRED)
    )


if __name__ == "__main__":
    main(build=stream)
