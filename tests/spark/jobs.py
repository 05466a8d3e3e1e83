"""Small jobs for the tests on Spark: known rows in files, one file an epoch."""

from __future__ import annotations

import json
import os
import sqlite3
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, SparkSession

from beadline import Stream, exactly_once
from beadline.points import hooked
from beadline.sinks import SqliteSink
from tests.slowness import patient

SCHEMA = "id long, k string, v long"


@contextmanager
def session_conf(spark: SparkSession, conf: Mapping[str, str]) -> Iterator[None]:
    """Have these settings on the session that the tests share, and restore them."""
    before = {key: spark.conf.get(key, None) for key in conf}
    try:
        for key, value in conf.items():
            spark.conf.set(key, value)
        yield
    finally:
        for key, old in before.items():
            if old is None:
                spark.conf.unset(key)
            else:
                spark.conf.set(key, old)


class Died(BaseException):
    """A driver's death at a crash point, as far as one process can play it."""


def write_input(folder: Path, files: int = 3, rows: int = 10, first: int = 0) -> list[int]:
    """Write this number of files, each an epoch; return the ids in them."""
    folder.mkdir(parents=True, exist_ok=True)
    ids = list(range(first * rows, (first + files) * rows))
    for number in range(first, first + files):
        block = ids[(number - first) * rows : (number - first + 1) * rows]
        lines = (json.dumps({"id": i, "k": f"k{i % 3}", "v": i}) for i in block)
        path = folder / f"{number:05d}.json"
        path.write_text("\n".join(lines) + "\n")
        # Spark takes files by their time, to the millisecond: one second apart is an order.
        os.utime(path, (1_700_000_000 + number, 1_700_000_000 + number))
    return ids


def read(spark: SparkSession, folder: Path) -> DataFrame:
    """Read the files as a stream, one file an epoch."""
    return spark.readStream.schema(SCHEMA).option("maxFilesPerTrigger", 1).json(str(folder))


def sqlite_job(spark: SparkSession, folder: Path, name: str = "job") -> Stream:
    """The input's rows into one SQLite table."""
    return exactly_once(read(spark, folder / "in"), name).to(rows_sink(folder))


def rows_sink(folder: Path, table: str = "t") -> SqliteSink:
    """Rows as they are."""
    return SqliteSink(folder / "out.db", table)


def run(stream: Stream, folder: Path, **settings: Any) -> None:
    """Run to the end of what is there."""
    query = stream.start(str(folder / "checkpoint"), available_now=True, **settings)
    assert query.awaitTermination(patient(120))


def die_at(point: str, times: int = 1) -> Callable[[str], None]:
    """Return a hook that raises at the n-th time that a point is reached."""
    seen: Counter[str] = Counter()

    def hook(name: str) -> None:
        seen[name] += 1
        if name == point and seen[name] == times:
            raise Died(point)

    return hook


def run_and_die(stream: Stream, folder: Path, point: str, times: int = 1, **settings: Any) -> None:
    """Run until the driver dies at a crash point; whether it was reached is asserted."""
    died = False
    with hooked(die_at(point, times)):
        try:
            run(stream, folder, **settings)
        except Died:
            died = True
    assert died, f"{point} was not reached {times} times"


def run_and_stop(stream: Stream, folder: Path, point: str, times: int = 1) -> None:
    """Stop the query while its driver is at a crash point; it ends cleanly."""
    reached, resumed = threading.Event(), threading.Event()
    seen: Counter[str] = Counter()

    def hook(name: str) -> None:
        seen[name] += 1
        if name == point and seen[name] == times:
            reached.set()
            assert resumed.wait(30)

    with hooked(hook):
        query = stream.start(str(folder / "checkpoint"))
        assert reached.wait(60)
        stopper = threading.Thread(target=query.stop)
        stopper.start()
        stopper.join(0.5)  # Spark has interrupted its thread by now, and waits for the callback
        resumed.set()
        stopper.join(60)
    assert not query.isActive
    assert query.exception() is None


def table(folder: Path, columns: str = "id", name: str = "t") -> list[Any]:
    """What a reader of the SQLite table sees."""
    path = folder / "out.db"
    if not path.exists():
        return []
    with closing(sqlite3.connect(path)) as database:
        known = database.execute("SELECT 1 FROM sqlite_master WHERE name = ?", (name,)).fetchone()
        if not known:
            return []
        rows = database.execute(f'SELECT {columns} FROM "{name}" ORDER BY 1').fetchall()
    return [row[0] if len(row) == 1 else row for row in rows]
