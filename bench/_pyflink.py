"""The same windows with PyFlink; run by ``bench/time.py`` in a virtual environment of its own.

``python -m bench._pyflink FOLDER OUT process|thread``: windows of ten minutes with an hour of
allowed lateness, counted by an ``AggregateFunction`` and shown by a ``ProcessWindowFunction``:
Flink's quick way, which keeps a number per window and not its rows. Exactly-once, a checkpoint
every second, two tasks, results in files. The last line is one JSON object: the job's seconds, by
Flink's own clock, and how many rows the last results of all windows count.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from pyflink.common import Configuration, Time, Types
from pyflink.common.serialization import Encoder
from pyflink.datastream import StreamExecutionEnvironment
from pyflink.datastream.connectors.file_system import FileSink
from pyflink.datastream.functions import AggregateFunction, ProcessWindowFunction
from pyflink.datastream.window import TumblingEventTimeWindows
from pyflink.table import StreamTableEnvironment

HOUR_MS = 3_600_000


class Counting(AggregateFunction):  # type: ignore[misc]
    """How many rows."""

    def create_accumulator(self) -> int:
        """None yet."""
        return 0

    def add(self, value: Any, accumulator: int) -> int:
        """One more."""
        return accumulator + 1

    def get_result(self, accumulator: int) -> int:
        """As it is."""
        return accumulator

    def merge(self, one: int, other: int) -> int:
        """Both."""
        return one + other


class Shown(ProcessWindowFunction):  # type: ignore[misc]
    """One line for each time that a window fires."""

    def process(self, key: int, context: Any, elements: Any) -> Iterator[str]:
        """The key, the window's start and the count."""
        yield f"{key},{context.window().start},{next(iter(elements))}"


def main(folder: str, out: str, mode: str) -> None:
    """Run the job, and count what it wrote."""
    conf = Configuration()
    conf.set_string("python.execution-mode", mode)
    conf.set_string("python.executable", sys.executable)
    conf.set_string("python.client.executable", sys.executable)
    conf.set_string("parallelism.default", "2")
    conf.set_string("taskmanager.memory.task.heap.size", "1g")
    conf.set_string("execution.checkpointing.interval", "1 s")
    conf.set_string("execution.checkpointing.mode", "EXACTLY_ONCE")
    conf.set_string("table.local-time-zone", "UTC")
    env = StreamExecutionEnvironment.get_execution_environment(conf)
    tables = StreamTableEnvironment.create(env)
    tables.execute_sql(
        "CREATE TABLE rows_in (k BIGINT, ms BIGINT, ts AS TO_TIMESTAMP_LTZ(ms, 3),"
        " WATERMARK FOR ts AS ts - INTERVAL '60' SECOND)"
        f" WITH ('connector' = 'filesystem', 'path' = '{Path(folder).as_uri()}',"
        " 'format' = 'csv')"
    )
    rows = tables.to_data_stream(tables.sql_query("SELECT k, ts FROM rows_in"))
    counts = (
        rows.key_by(lambda row: row[0], key_type=Types.LONG())
        .window(TumblingEventTimeWindows.of(Time.minutes(10)))
        .allowed_lateness(HOUR_MS)
        .aggregate(
            Counting(),
            window_function=Shown(),
            accumulator_type=Types.LONG(),
            output_type=Types.STRING(),
        )
    )
    sink = FileSink.for_row_format(out, Encoder.simple_string_encoder()).build()
    counts.sink_to(sink)
    done = env.execute("windows")
    last: dict[tuple[str, str], int] = {}
    for path in Path(out).rglob("*"):
        if path.is_file() and not path.name.startswith("."):
            for line in path.read_text().splitlines():
                key, start, number = line.split(",")
                last[key, start] = max(last.get((key, start), 0), int(number))
    counted = sum(number for (key, _), number in last.items() if key != "-1")
    print(json.dumps({"seconds": done.get_net_runtime() / 1000, "rows": counted}))


if __name__ == "__main__":
    main(*sys.argv[1:])
