"""Two ways to hand rows to the workers, and nobody can tell which it was."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from py4j.protocol import Py4JError
from pyspark import TaskContext
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.datasource import DataSource
from pyspark.sql.pandas.functions import pandas_udf
from pyspark.util import PythonEvalType

from beadline import exactly_once
from beadline.errors import BeadlineError
from beadline.spark import arrow_rdd
from beadline.spark.acks import ACK_TYPE, Ack, collect
from beadline.spark.arrow_rdd import ArrowTask, executed_plan, plan_of_epoch, usable
from beadline.spark.batch_size import ROWS
from beadline.spark.checks import to_arrow
from beadline.spark.checksum import ORDERED
from beadline.spark.plan import runs_python
from beadline.spark.tasks import Counted
from tests.spark.expiring import ExpiringSink
from tests.spark.jobs import read, rows_sink, run, run_and_die, sqlite_job, table, write_input

PLAIN = (
    "cast(id as tinyint) AS a",
    "cast(id as smallint) AS b",
    "cast(id as int) AS c",
    "id AS d",
    "cast(id / 7 as float) AS e",
    "if(id = 3, double('NaN'), id / 7) AS f",
    "if(id % 3 = 0, null, repeat('é', cast(id as int))) AS g",
    "if(id % 5 = 0, null, encode(cast(id as string), 'utf-8')) AS h",
    "if(id % 2 = 0, null, id) AS i",
    "'' AS j",
)


def told(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Answer with a part's rows, as a text, and their checksum."""
    context = TaskContext.get()
    assert context is not None
    counted = Counted(batches, ORDERED)
    rows = [row for batch in counted for row in batch.to_pylist()]
    yield Ack(
        partition=context.partitionId(),
        attempt=0,
        retries=0,
        rows=counted.rows,
        row_bytes=counted.row_bytes,
        checksum=counted.checksum,
        slot=0,
        committable=None,
        worker=f'{rows} and a "quote", a [bracket] and a é',
        refused=None,
    ).to_batch()


def rows_of(acks: Any) -> list[tuple[int, int, int | None, str]]:
    """What must be the same; the bytes of a row may be counted with other offsets."""
    return [(ack.partition, ack.rows, ack.checksum, ack.worker) for ack in acks]


@pytest.mark.parametrize("size", [3, 10_000])
def test_both_ways_give_the_same_rows_and_the_same_checksum(spark: SparkSession, size: int) -> None:
    """A part that is prepared in one way may be replayed in the other."""
    session = spark.newSession()
    session.conf.set(ROWS, str(size))
    frame = session.range(0, 40, 1, 3).selectExpr(*PLAIN)
    frame = frame.where("c < 13 or c > 25")  # the second part is empty
    schema = to_arrow(frame)
    found = ArrowTask(frame, schema, told).collect(frame, executed_plan(frame))
    function = pandas_udf(  # type: ignore[call-overload]
        told, ACK_TYPE, PythonEvalType.SQL_MAP_ARROW_ITER_UDF
    )
    wanted, _ = collect(frame, function(*(F.col(name) for name in frame.columns)))
    assert rows_of(found) == rows_of(wanted)
    assert [ack.rows for ack in found] == [13, 0, 14]


@pytest.mark.parametrize(
    "column",
    ["current_timestamp()", "current_date()", "cast(1 as decimal(10, 2))", "array(1)", "true"],
)
def test_other_columns_go_the_other_way(spark: SparkSession, column: str) -> None:
    frame = spark.range(1).selectExpr("id", f"{column} AS other")
    assert not usable(frame, to_arrow(frame))


def test_large_offsets_go_the_other_way(spark: SparkSession) -> None:
    session = spark.newSession()
    frame = session.range(1).selectExpr("cast(id as string) AS text")
    assert usable(frame, to_arrow(frame))
    session.conf.set("spark.sql.execution.arrow.useLargeVarTypes", "true")
    assert not usable(frame, to_arrow(frame))


@pytest.fixture
def epochs(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The plans of the epochs that were handed over as an RDD, and rows of a batch."""
    seen: list[str] = []
    original = ArrowTask.collect

    def noted(self: ArrowTask, frame: DataFrame, plan: Any) -> Any:
        seen.append(f"{frame.sparkSession.conf.get(ROWS)} {plan.toString()}")
        return original(self, frame, plan)

    monkeypatch.setattr(arrow_rdd.ArrowTask, "collect", noted)
    return seen


def test_small_rows_are_handed_over_as_an_rdd_from_the_second_epoch_on(
    spark: SparkSession, tmp_path: Path, epochs: list[str]
) -> None:
    ids = write_input(tmp_path / "in", 4, rows=100)
    run(sqlite_job(spark, tmp_path), tmp_path)
    assert table(tmp_path) == ids
    assert len(epochs) == 3
    # Spark's plan of the epoch itself, not that of an RDD that it has made of it.
    assert all(epoch.startswith("20000 ") and "FileScan json" in epoch for epoch in epochs)


def test_the_frames_of_several_sinks_are_their_own(
    spark: SparkSession, tmp_path: Path, epochs: list[str]
) -> None:
    """What was computed once for two sinks is not computed by the epoch's plan again."""
    ids = write_input(tmp_path / "in", 3, rows=100)
    stream = exactly_once(read(spark, tmp_path / "in"), "job").to(rows_sink(tmp_path))
    run(stream.to(rows_sink(tmp_path, "other")), tmp_path)
    assert table(tmp_path) == table(tmp_path, name="other") == ids
    assert len(epochs) == 4
    assert all("ExistingRDD" in epoch for epoch in epochs)


def test_rows_may_have_other_columns_in_every_epoch(
    spark: SparkSession, tmp_path: Path, epochs: list[str]
) -> None:
    """Only the stream's own columns are known to stay what they are."""
    ids = write_input(tmp_path / "in", 3, rows=100)

    def changing(frame: DataFrame) -> DataFrame:
        first = frame.agg(F.min("id")).first()
        kind = "int" if first is not None and first[0] == 200 else "long"
        return frame.withColumn("v", F.col("v").cast(kind))

    stream = exactly_once(read(spark, tmp_path / "in"), "job")
    run(stream.to(rows_sink(tmp_path), rows=changing), tmp_path)
    assert table(tmp_path, "id, v") == [(one, one) for one in ids]
    assert epochs == []


def test_a_plan_of_another_epoch_is_not_taken(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_input(tmp_path / "in", 1)
    writer = read(spark, tmp_path / "in").writeStream.format("noop")
    query = writer.option("checkpointLocation", str(tmp_path / "checkpoint")).start()
    try:
        query.processAllAvailable()
        frame = spark.range(1)
        assert plan_of_epoch(query, frame, 0) is None, "not the thread of the query"
        monkeypatch.setattr(arrow_rdd, "_EXECUTION", "spark.app.name")
        spark.sparkContext.setLocalProperty("spark.app.name", "a thread that has one")
        assert plan_of_epoch(query, frame, 0) is not None
        assert plan_of_epoch(query, frame, 1) is None
    finally:
        spark.sparkContext.setLocalProperty("spark.app.name", None)  # type: ignore[arg-type]
        query.stop()


def test_without_a_readable_plan_the_frame_is_used(
    spark: SparkSession, tmp_path: Path, epochs: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("beadline.spark.engine.plan_of_epoch", lambda *_: None)
    ids = write_input(tmp_path / "in", 3, rows=100)
    run(sqlite_job(spark, tmp_path), tmp_path)
    assert table(tmp_path) == ids
    assert len(epochs) == 2
    assert all("ExistingRDD" in epoch for epoch in epochs)


def test_a_spark_without_it_goes_the_other_way(
    spark: SparkSession, tmp_path: Path, epochs: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def missing(*_: object) -> None:
        raise Py4JError("Method toArrowBatchRdd([]) does not exist")

    monkeypatch.setattr(ArrowTask, "_job", missing)
    ids = write_input(tmp_path / "in", 3, rows=100)
    run(sqlite_job(spark, tmp_path), tmp_path)
    assert table(tmp_path) == ids
    assert epochs == []


def test_rows_that_become_large_are_counted_from_then_on(
    spark: SparkSession, tmp_path: Path, epochs: list[str]
) -> None:
    ids = write_input(tmp_path / "in", 4, rows=100)
    frame = read(spark, tmp_path / "in").withColumn(
        "k", F.expr("repeat('x', if(id between 100 and 199, 10000, 1))")
    )
    run(exactly_once(frame, "job").to(rows_sink(tmp_path)), tmp_path)
    assert table(tmp_path) == ids
    assert len(epochs) == 1, "the second epoch, whose rows were not known to be large"


@pytest.mark.parametrize("where", ["in the query", "in rows="])
def test_python_functions_of_the_query_keep_their_batches(
    spark: SparkSession, tmp_path: Path, epochs: list[str], where: str
) -> None:
    """Small rows that come out of a function say nothing of those that go in."""
    ids = write_input(tmp_path / "in", 3, rows=100)

    def same(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        yield from batches

    def through(frame: DataFrame) -> DataFrame:
        return frame.mapInArrow(same, frame.schema)

    frame = read(spark, tmp_path / "in")
    if where == "in the query":
        stream = exactly_once(through(frame), "job").to(rows_sink(tmp_path))
    else:
        stream = exactly_once(frame, "job").to(rows_sink(tmp_path), rows=through)
    run(stream, tmp_path)
    assert table(tmp_path) == ids
    assert epochs == []


def test_a_udf_is_a_python_function(spark: SparkSession) -> None:
    frame = spark.range(3)
    assert not runs_python(frame.withColumn("more", F.col("id") + 1))
    more = F.udf(lambda number: number + 1, "long")
    assert runs_python(frame.where(more("id") > 1).select("id"))


class Doubled:
    """A table function."""

    def eval(self, number: int) -> Iterator[tuple[int, int]]:
        """Yield a number twice."""
        yield number, number


class Numbers(DataSource):
    """A source in Python, which is never read."""

    def schema(self) -> str:
        """One number."""
        return "number long"


def test_table_functions_and_sources_in_python_are_python_too(spark: SparkSession) -> None:
    function: Any = F.udtf(Doubled, returnType="a long, b long")
    assert runs_python(function(F.lit(3)))
    spark.dataSource.register(Numbers)
    assert runs_python(spark.readStream.format("Numbers").load())
    assert not runs_python(spark.readStream.format("rate").load())


def test_a_part_that_was_lost_is_replayed_in_the_other_way(
    spark: SparkSession, tmp_path: Path, epochs: list[str]
) -> None:
    sink = ExpiringSink(str(tmp_path / "broker"))
    ids = write_input(tmp_path / "in", 3, rows=100)
    stream = exactly_once(read(spark, tmp_path / "in"), "job").to(sink)
    run_and_die(stream, tmp_path, "decide.after", times=2)
    assert len(epochs) == 1, "the second epoch was to be prepared from an RDD"
    sink.expire(1)
    run(stream, tmp_path)
    assert sorted(row["id"] for row in sink.visible()) == ids


def test_an_error_in_a_worker_is_raised_as_before(
    spark: SparkSession, tmp_path: Path, epochs: list[str]
) -> None:
    """SQLite refuses a null in the second epoch."""
    write_input(tmp_path / "in", 3, rows=100)
    with closing(sqlite3.connect(tmp_path / "out.db")) as database, database:
        database.execute("CREATE TABLE t (id INTEGER NOT NULL, k TEXT NOT NULL, v INTEGER)")
    frame = read(spark, tmp_path / "in").withColumn("k", F.expr("if(id = 150, null, k)"))
    stream = exactly_once(frame, "job").to(rows_sink(tmp_path))
    with pytest.raises(BeadlineError, match=r"epoch 1, sink 'out-t'.*NOT NULL"):
        run(stream, tmp_path)
    assert len(epochs) >= 1
    assert table(tmp_path) == list(range(100))
