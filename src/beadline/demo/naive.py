"""The same job as most people write it first: Spark's plain ``foreachBatch``, no protocol.

Files are appended, totals are added, and Spark is told. Killed between any two of these, Spark
redelivers the epoch, and what was written before the kill is written a second time. It is here so
that ``beadline demo --naive`` can show it, and so that the checker is known to see it.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from contextlib import closing
from typing import TYPE_CHECKING, Any

from beadline.demo.workload import CLEAN, TOTALS, Workload
from beadline.points import die

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

Emit = Callable[[dict[str, Any]], None]

# The moments that compare to decide.before and decide.after: one sink is written, both are.
AFTER_FILES = "files"
AFTER_TOTALS = "totals"

_MAKE = f"CREATE TABLE IF NOT EXISTS {TOTALS} (key TEXT PRIMARY KEY, rows INTEGER, amount INTEGER)"
_ADD = f"""INSERT INTO {TOTALS} VALUES (?, ?, ?) ON CONFLICT (key)
    DO UPDATE SET rows = rows + excluded.rows, amount = amount + excluded.amount"""


def run_naive(
    rows: DataFrame,
    totals: Callable[[DataFrame], DataFrame],
    workload: Workload,
    crash: str,
    emit: Emit,
) -> None:
    """Run the job; ``crash`` is ``files#3`` to die in the third epoch when the files are there."""
    step, _, count = crash.partition("#")
    epochs = 0

    def epoch(frame: DataFrame, number: int) -> None:
        nonlocal epochs
        epochs += 1
        armed = step if epochs == int(count or 1) else ""
        frame.write.mode("append").parquet(str(workload.clean))
        emit({"kind": "written", "epoch": number, "details": {"sink": CLEAN}})
        if armed == AFTER_FILES:
            die()
        added = [tuple(row) for row in totals(frame).collect()]
        with closing(sqlite3.connect(workload.database)) as database, database:
            database.execute(_MAKE)
            database.executemany(_ADD, added)
        emit({"kind": "written", "epoch": number, "details": {"sink": TOTALS}})
        if armed == AFTER_TOTALS:
            die()
        done = {CLEAN: sum(row[1] for row in added), TOTALS: len(added)}
        emit({"kind": "done", "epoch": number, "details": {"rows": done}})

    writer = rows.writeStream.foreachBatch(epoch).option(
        "checkpointLocation", str(workload.checkpoint)
    )
    writer.trigger(availableNow=True).start().awaitTermination()
