"""Rows that two sinks share are proven to be the same ones, whatever way they are handed over."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from beadline.ids import QueryId
from beadline.protocol.batch import Acks, Ticket
from beadline.sink import BoundSink
from beadline.sinks import FileSink, SqliteSink
from beadline.spark.checkpoint import SparkProgress
from beadline.spark.checks import to_arrow
from beadline.spark.engine import Engine, SparkBatch
from beadline.spark.sharing import whole_rows_first
from beadline.spark.source_files import PlannedFiles
from tests.spark.expiring import ExpiringSink

QUERY = QueryId("job", "0" * 32, "file:///nowhere")
ROWS = {
    "some": lambda df: df.where("id % 7 = 0"),
    "limited": lambda df: df.limit(3),
    "none": lambda df: df.where("1 = 0"),
    "twice": lambda df: df.union(df),
    "joined": lambda df: df.join(df.groupBy("k").count(), "k"),
    "counted": lambda df: df.limit(df.count()),
}


@pytest.fixture
def engine(tmp_path: Path) -> Iterator[Engine]:
    """An engine whose sinks of these names have a ``rows=``."""
    checkpoint = f"file://{tmp_path}/checkpoint"
    planned = PlannedFiles(checkpoint, [])
    engine = Engine(SparkProgress(checkpoint), planned, dict(ROWS), False, False, False)
    yield engine
    engine.close()


@pytest.fixture
def frame(spark: SparkSession) -> DataFrame:
    """Four parts, one of them empty; as a query, with a session of its own."""
    rows = spark.newSession().range(0, 1000, 1, 4).where("id < 250 or id >= 500")
    return rows.select("id", F.concat(F.lit("k"), F.col("id") % 3).alias("k"))


def bound(sink: Any, name: str, frame: DataFrame, **more: Any) -> BoundSink:
    """Check a sink and give it its name."""
    return BoundSink(name, sink, replace(sink.check(to_arrow(frame), QUERY), **more))


def sinks(folder: Path, frame: DataFrame) -> list[BoundSink]:
    """One for every way in which a sink is given rows."""
    plain = [
        bound(SqliteSink(folder / "a.db", "t"), "arrow", frame),
        bound(FileSink(str(folder / "files")), "writer", frame),
        bound(ExpiringSink(str(folder / "broker")), "summed", frame),
        bound(SqliteSink(folder / "b.db", "t"), "column", frame, columns=("k",)),
    ]
    plain += [bound(SqliteSink(folder / f"{name}.db", "t"), name, frame) for name in ROWS]
    files = [n for n in ROWS if n != "joined"]  # another column
    return plain + [
        replace(bound(FileSink(str(folder / f"{name}-files")), name, frame)) for name in files
    ]


def prepare(batch: SparkBatch, sink: BoundSink) -> Acks:
    """Prepare one sink."""
    return batch.run_prepare(sink, Ticket(QUERY, 1, batch.number, sink.name))


@pytest.mark.parametrize("first", [0, 1, 4, 6])
def test_all_sinks_have_the_tags_of_the_rows_that_they_were_given(
    engine: Engine, frame: DataFrame, tmp_path: Path, first: int
) -> None:
    """Once by Spark's own functions, then, as the rows are small, as an RDD of Arrow batches."""
    every = sinks(tmp_path, frame)
    every.insert(0, every.pop(first))
    seen = []
    for number in range(2):
        batch = engine.batch(frame, number)
        with batch.sharing(len(every)):
            acks = {(sink.name, type(sink.sink)): prepare(batch, sink) for sink in every}
        found = [ack.tags for ack in acks.values()]
        assert found[0] is not None
        assert set(found[0]) == {0, 2, 3}, "of every part that has rows"
        assert all(tags == found[0] for tags in found), found
        seen.append(found[0])
        assert acks["arrow", SqliteSink].rows == acks["writer", FileSink].rows == 750
        # The first job of all did not ask for any part: nothing proves what it would have got.
        again = [name for (name, _), ack in acks.items() if ack.extra_attempts]
        assert again == (["none"] if first == 6 else [])
        assert acks["some", SqliteSink].rows == acks["some", FileSink].rows == 107
    assert engine.batch_size.small, "the other way was not taken"
    assert any(task is not None for task in engine.arrow_tasks.values())
    assert all(seen[0][part] != seen[1][part] for part in seen[0]), "computed again, drawn again"


@pytest.mark.parametrize("eager", [False, True])
def test_the_checksum_knows_nothing_of_tags(
    engine: Engine, frame: DataFrame, tmp_path: Path, eager: bool
) -> None:
    """A replay is prepared for the lost sink alone, which shares its rows with none."""
    engine.narrow = eager  # and with it, the kind of checksum
    sink = bound(ExpiringSink(str(tmp_path / "broker")), "summed", frame)
    found = []
    for number, readers in enumerate((2, 1)):
        batch = engine.batch(frame, number)
        with batch.sharing(readers):
            acks = prepare(batch, sink)
        assert (acks.tags is None) == (readers == 1)
        found.append([(part.rows, part.checksum) for part in acks.prepared])
    assert found[0] == found[1]
    assert None not in [checksum for _, checksum in found[0]]


def test_sinks_that_read_every_row_are_prepared_first_and_dead_letters_stay_behind(
    frame: DataFrame, tmp_path: Path
) -> None:
    names = {"some": "some-refused", "arrow": "arrow-refused", "none": "", "column": ""}
    order: list[BoundSink] = []
    for name, letters in names.items():
        one = bound(SqliteSink(tmp_path / f"{name}.db", "t"), name, frame)
        order.append(replace(one, dead_letter=letters))
        if letters:
            order.append(bound(SqliteSink(tmp_path / f"{letters}.db", "t"), letters, frame))
    found = [sink.name for sink in whole_rows_first(order, ROWS)]
    assert found == ["arrow", "arrow-refused", "column", "some", "some-refused", "none"]
