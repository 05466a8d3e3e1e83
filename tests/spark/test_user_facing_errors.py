"""What a user reads and types: errors that name the thing, at once, and say only what is true."""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from pyspark.sql import SparkSession

from beadline import at_least_once, exactly_once
from beadline.errors import (
    NOTHING_WRITTEN,
    BadSetting,
    BadSink,
    BeadlineError,
    PrepareFailed,
    WrongCheckpoint,
)
from beadline.guarantee.options import KNOWN
from beadline.ids import EpochId
from beadline.points import hooked
from beadline.sink import CommitResult, Part, Prepared
from beadline.sinks import MemorySink
from beadline.sinks.memory import MemoryPart
from tests.spark.jobs import read, run, sqlite_job, table, write_input

if TYPE_CHECKING:
    import pyarrow as pa

# -- a checkpoint with two names


def test_a_checkpoint_behind_a_link_is_the_same(spark: SparkSession, tmp_path: Path) -> None:
    ids = write_input(tmp_path / "in", 1)
    disk = tmp_path / "disk"
    disk.mkdir()
    (tmp_path / "link").symlink_to(disk)
    stream = sqlite_job(spark, tmp_path)
    for number, folder in enumerate((tmp_path / "link", disk, tmp_path / "link")):
        ids += write_input(tmp_path / "in", 1, first=number + 1)
        run(stream, folder)
    assert table(tmp_path) == sorted(ids)


def test_a_copied_checkpoint_is_still_refused(spark: SparkSession, tmp_path: Path) -> None:
    write_input(tmp_path / "in", 1)
    stream = sqlite_job(spark, tmp_path)
    run(stream, tmp_path)
    shutil.copytree(tmp_path / "checkpoint", tmp_path / "copy" / "checkpoint")
    (tmp_path / "link").symlink_to(tmp_path / "copy")
    with pytest.raises(WrongCheckpoint, match="copied or moved"):
        run(stream, tmp_path / "link")


# -- an error in the midst of a run


class RefusingSink(MemorySink):
    """Raises what a check at the start would, on an executor or at commit, in epoch 1."""

    where = "prepare"

    def prepare(self, rows: Iterator[pa.RecordBatch], part: Part) -> MemoryPart | None:
        if part.id.epoch == 1 and self.where == "prepare":
            raise BadSink(f"the table has changed. {NOTHING_WRITTEN}")
        return super().prepare(rows, part)

    def commit(self, epoch: EpochId, parts: Sequence[Prepared[MemoryPart]]) -> CommitResult:
        if epoch.number == 1 and self.where == "commit":
            raise BadSink(f"the table has changed. {NOTHING_WRITTEN}")
        return super().commit(epoch, parts)


def test_a_long_error_is_told_whole(spark: SparkSession, tmp_path: Path) -> None:
    """Spark matches it against an expression that overflows the stack of its thread."""
    write_input(tmp_path / "in", 1)
    stream = sqlite_job(spark, tmp_path)
    text = "the table lacks column " + "a_long_name, " * 8_000 + "and that is all"

    def fail(point: str) -> None:
        if point == "prepare.before":
            raise PrepareFailed(text)

    with hooked(fail):
        query = stream.start(str(tmp_path / "checkpoint"), available_now=True)
        with pytest.raises(PrepareFailed) as raised:
            query.awaitTermination(60)
    assert len(text) > 100_000
    assert str(raised.value) == str(query.exception()) == text
    of_spark = query._spark._jsq.exception().get().toString()
    assert text[:100] in of_spark
    assert "StackOverflowError" not in of_spark
    assert "java.util.regex" not in of_spark


class RefusingCommit(RefusingSink):
    where = "commit"


@pytest.mark.parametrize(
    ("kind", "means"),
    [
        (RefusingSink, "Nothing of the epoch is decided; it is redelivered by the next start"),
        (RefusingCommit, "decided"),
    ],
)
def test_an_error_in_mid_run_does_not_say_that_nothing_was_written(
    spark: SparkSession, tmp_path: Path, kind: type[RefusingSink], means: str
) -> None:
    write_input(tmp_path / "in", 2)
    MemorySink.clear("mid-run")
    stream = exactly_once(read(spark, tmp_path / "in"), "job").to(kind("mid-run"))
    with pytest.raises(BeadlineError, match="the table has changed") as raised:
        run(stream, tmp_path)
    assert len(MemorySink.rows("mid-run")) == 10  # epoch 0 was
    assert "Nothing was written" not in str(raised.value)
    assert means in str(raised.value)


# -- a query by its name


def test_the_repr_names_query_generation_and_state(spark: SparkSession, tmp_path: Path) -> None:
    write_input(tmp_path / "in", 1)
    MemorySink.clear("repr")
    stream = exactly_once(read(spark, tmp_path / "in"), "orders").to(MemorySink("repr"))
    query = stream.start(str(tmp_path / "checkpoint"))
    assert repr(query) == "<Query 'orders', generation 1, running>"
    query.stop()
    assert repr(query) == "<Query 'orders', generation 1, ended>"
    MemorySink.clear("mid-run")
    failing = exactly_once(read(spark, tmp_path / "in"), "job").to(RefusingSink("mid-run"))
    write_input(tmp_path / "in", 1, first=1)
    query = failing.start(str(tmp_path / "other"))
    with pytest.raises(BeadlineError):
        query.awaitTermination(60)
    assert repr(query) == "<Query 'job', generation 1, failed: PrepareFailed>"


# -- checkpoints on other file systems


def test_a_file_system_that_spark_has_no_classes_for(spark: SparkSession, tmp_path: Path) -> None:
    write_input(tmp_path / "in", 1)
    frame = read(spark, tmp_path / "in")
    stream = at_least_once(frame, "job").to(MemorySink("elsewhere"))
    with pytest.raises(BadSetting, match="Spark has no file system for it") as raised:
        stream.start("s3a://bucket/orders", available_now=True)
    assert "hadoop-aws" in str(raised.value)
    assert "\n" not in str(raised.value)
    with pytest.raises(BadSetting, match="at_least_once"):
        exactly_once(frame, "job").to(MemorySink("elsewhere")).start("s3a://bucket/orders")


def test_only_at_least_once_starts_on_a_file_system_without_an_atomic_create(
    spark: SparkSession, tmp_path: Path
) -> None:
    ids = write_input(tmp_path / "in", 2)
    MemorySink.clear("view")
    jsc: Any = spark.sparkContext._jsc
    jsc.hadoopConfiguration().set(
        "fs.viewfs.mounttable.shop.link./data", f"file://{tmp_path / 'data'}"
    )
    (tmp_path / "data").mkdir()
    frame = read(spark, tmp_path / "in")
    checkpoint = "viewfs://shop/data/checkpoint"
    with pytest.raises(BadSetting, match="at_least_once"):
        exactly_once(frame, "job").to(MemorySink("view")).start(checkpoint)
    for first in (2, 3):
        query = at_least_once(frame, "job").to(MemorySink("view")).start(
            checkpoint, available_now=True
        )  # fmt: skip
        assert query.awaitTermination(60)
        assert sorted(row["id"] for row in MemorySink.rows("view")) == ids
        ids += write_input(tmp_path / "in", 1, first=first)


# -- a Spark that does not start


def test_a_spark_that_does_not_start_is_a_usage_error(tmp_path: Path) -> None:
    job = tmp_path / "job.py"
    job.write_text('CHECKPOINT = "c"\ndef job(spark): ...\n')
    command = [sys.executable, "-m", "beadline", "run", str(job), "--conf", "spark.master=nope"]
    done = subprocess.run(
        command, check=False, capture_output=True, text=True, timeout=60, cwd=tmp_path
    )
    assert done.returncode == 2
    last = done.stderr.splitlines()[-1]
    assert last.startswith(f"UsageError: {job}: Spark did not start: ")
    assert "epoch" not in last
    assert "Master must either be yarn" in done.stderr  # Spark's own words


# -- options of sources, also of frames that the user makes


MISSPELT = [
    ("json", "maxFilesPerTriger", "maxFilesPerTrigger"),
    ("rate", "rowsPerSecnd", "rowsPerSecond"),
]


@pytest.mark.parametrize(("source", "name", "meant"), MISSPELT)
def test_a_misspelt_reader_option_is_refused_with_the_right_name(
    spark: SparkSession, tmp_path: Path, source: str, name: str, meant: str
) -> None:
    (tmp_path / "in").mkdir()
    reader = spark.readStream.format(source).option(name, 1)
    frame = (
        reader.load() if source == "rate" else reader.schema("a long").load(str(tmp_path / "in"))
    )
    stream = exactly_once(frame, "job").to(MemorySink("options"))
    with pytest.raises(BadSetting, match=f"(?i){name}.*Did you mean '{meant}'"):
        run(stream, tmp_path)
    assert not (tmp_path / "checkpoint").exists()
    assert any(meant in problem for problem in stream.guarantee().problems)


OPTIONS_OF = {
    "csv": "org.apache.spark.sql.catalyst.csv.CSVOptions",
    "json": "org.apache.spark.sql.catalyst.json.JSONOptions",
    "xml": "org.apache.spark.sql.catalyst.xml.XmlOptions",
    "text": "org.apache.spark.sql.execution.datasources.text.TextOptions",
    "parquet": "org.apache.spark.sql.execution.datasources.parquet.ParquetOptions",
    "orc": "org.apache.spark.sql.execution.datasources.orc.OrcOptions",
    "avro": "org.apache.spark.sql.avro.AvroOptions",
}


@pytest.mark.parametrize("source", OPTIONS_OF)
def test_every_option_of_this_spark_is_known(spark: SparkSession, source: str) -> None:
    jvm: Any = spark.sparkContext._jvm
    names = getattr(jvm, OPTIONS_OF[source]).getAllOptions().toSeq()
    found = {str(names.apply(index)) for index in range(names.size())}
    assert found - KNOWN[source] == set()
