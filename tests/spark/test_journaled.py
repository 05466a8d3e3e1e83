"""Push sources on Spark: from the journal on, every line shows once."""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from beadline import exactly_once, sources
from beadline.errors import BadSetting
from beadline.sink import Guarantee
from beadline.sinks import SqliteSink
from beadline.sources import Receiver, SocketReceiver
from beadline.sources.journal.log import Journal, read, segments
from beadline.spark.query import Query
from tests.harness.matrix.lines import LineServer


@pytest.fixture(autouse=True)
def _nothing_stays(spark: SparkSession) -> Iterator[None]:
    yield
    for query in spark.streams.active:
        query.stop()


@pytest.fixture
def server() -> Iterator[LineServer]:
    made = LineServer()
    yield made
    made.close()


def started(spark: SparkSession, folder: Path, receiver: Receiver) -> Query:
    frame = sources.journaled(spark, receiver, str(folder / "journal"), keep_bytes=1 << 30)
    stream = exactly_once(frame, "lines").to(SqliteSink(folder / "o.db", "t"))
    return stream.start(str(folder / "checkpoint"), every="100 milliseconds")


def shown(folder: Path, columns: str = "position, value") -> list[tuple[Any, ...]]:
    with closing(sqlite3.connect(folder / "o.db")) as database:
        if not database.execute("SELECT 1 FROM sqlite_master WHERE name = 't'").fetchone():
            return []
        return list(database.execute(f"SELECT {columns} FROM t ORDER BY {columns}"))


def wait_for(condition: Callable[[], bool], query: Query, timeout_s: float = 60) -> None:
    deadline_s = time.monotonic() + timeout_s
    while not condition():
        failure = query.exception()
        if failure is not None:
            raise failure
        assert time.monotonic() < deadline_s, "it did not happen"
        time.sleep(0.05)


def journal_of(folder: Path) -> list[tuple[int, str]]:
    found = segments(folder / "journal")
    records = read(folder / "journal", found[0].first, found[-1].end)
    return [(record.position, record.value.decode()) for record in records]


def test_lines_of_a_socket_over_two_starts(
    spark: SparkSession, tmp_path: Path, server: LineServer
) -> None:
    receiver = SocketReceiver("127.0.0.1", server.port)
    query = started(spark, tmp_path, receiver)
    wait_for(lambda: len(shown(tmp_path)) > 500, query)
    query.stop()
    seen = len(shown(tmp_path))
    query = started(spark, tmp_path, receiver)
    wait_for(lambda: len(shown(tmp_path)) > seen + 500, query)
    server.limit = server.sent
    wait_for(lambda: shown(tmp_path) == journal_of(tmp_path), query)
    query.stop()
    numbers = [int(value) for _, value in shown(tmp_path)]
    # What the stop cut off between the network and the disk is the one window; nothing shows twice.
    assert numbers == sorted(set(numbers))


class Asked(Receiver):
    """A sender of values that it forgets only when they are acknowledged."""

    def __init__(self, folder: str) -> None:
        self.folder = folder

    def receive(self, journal: Journal) -> None:
        done = Path(self.folder) / "acknowledged"
        number = int(done.read_text()) if done.exists() else 0
        while number < 300 and not journal.stopping.is_set():
            for value in range(number, number + 10):
                journal.append(b"%d" % value)
            journal.sync()
            number += 10
            done.write_text(str(number))
            if number == 150:
                raise ConnectionError("the line is dead")


def test_a_receiver_of_ones_own_that_acknowledges_and_fails(
    spark: SparkSession, tmp_path: Path
) -> None:
    query = started(spark, tmp_path, Asked(str(tmp_path)))
    wait_for(lambda: len(shown(tmp_path)) >= 300, query)
    query.stop()
    assert [value for _, value in shown(tmp_path)] == [str(n) for n in range(300)]


def test_its_guarantee_is_exactly_once_and_names_the_window(
    spark: SparkSession, tmp_path: Path
) -> None:
    frame = sources.journaled(spark, SocketReceiver("127.0.0.1", 9), str(tmp_path / "journal"))
    report = exactly_once(frame, "lines").to(SqliteSink(tmp_path / "o.db", "t")).guarantee()
    assert report.level is Guarantee.EXACTLY_ONCE
    assert "The window that remains" in str(report)
    assert not list(tmp_path.iterdir())


def test_a_socket_as_it_is_runs_when_it_is_allowed(
    spark: SparkSession, tmp_path: Path, server: LineServer
) -> None:
    frame = sources.socket(spark, "127.0.0.1", server.port)
    stream = exactly_once(frame, "lines", allow="at-most-once")
    stream = stream.to(SqliteSink(tmp_path / "o.db", "t"))
    assert stream.guarantee().level is Guarantee.AT_MOST_ONCE
    query = stream.start(str(tmp_path / "checkpoint"), every="100 milliseconds")
    wait_for(lambda: len(shown(tmp_path, "value")) > 100, query)
    query.stop()


def test_bad_settings(spark: SparkSession, tmp_path: Path) -> None:
    receiver = SocketReceiver("127.0.0.1", 9)
    with pytest.raises(BadSetting, match="takes a Receiver"):
        sources.journaled(spark, "localhost:9", str(tmp_path))  # type: ignore[arg-type]
    with pytest.raises(BadSetting, match="keep_bytes"):
        sources.journaled(spark, receiver, str(tmp_path), keep_bytes=-1)
    with pytest.raises(BadSetting, match="local disk"):
        sources.journaled(spark, receiver, "hdfs://far/journal")


class OnAFullDisk(Receiver):
    """The first value is journaled, and no other."""

    def receive(self, journal: Journal) -> None:
        def full() -> None:
            raise OSError(28, "No space left on device")

        if not journal.durable:
            journal.append(b"first")
            journal.sync()
        journal._write_out = full  # type: ignore[method-assign]
        journal.append(b"second")
        journal.sync()


def test_a_journal_that_cannot_be_written_ends_the_query(
    spark: SparkSession, tmp_path: Path
) -> None:
    query = started(spark, tmp_path, OnAFullDisk())
    with pytest.raises(Exception, match=r"disk is full.*could not be written: OSError: .*No space"):
        query.awaitTermination(60)
    assert [value for _, value in shown(tmp_path)] == ["first"]
