"""Files that vanish between the plan of an epoch and its replay: the query stops and names them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from pyspark.sql import DataFrame, SparkSession

from beadline import Stream, at_least_once, exactly_once
from beadline.errors import SourceGone
from beadline.sinks import SqliteSink
from tests.spark.jobs import SCHEMA, rows_sink, run, run_and_die, session_conf, table, write_input


def files(spark: SparkSession, folder: Path) -> DataFrame:
    reader = spark.readStream.schema(SCHEMA).option("maxFilesPerTrigger", 2)
    return reader.json(str(folder))


def gone(path: Path) -> Path:
    """A file that is put away, not lost."""
    return path.rename(path.parents[1] / path.name)


@pytest.mark.parametrize("function", [exactly_once, at_least_once])
def test_a_file_of_a_planned_epoch_is_missed(
    spark: SparkSession, tmp_path: Path, function: Callable[..., Stream]
) -> None:
    ids = write_input(tmp_path / "in a%20b", 6)
    sent = tmp_path / "in a%20b" / "00003.json"

    def job() -> Stream:
        return function(files(spark, tmp_path / "in a%20b"), "job").to(rows_sink(tmp_path))

    run_and_die(job(), tmp_path, "epoch.begin", times=2)
    away = gone(sent)
    gone(tmp_path / "in a%20b" / "00000.json")  # of a committed epoch: nobody needs it
    for _ in range(2):
        with pytest.raises(SourceGone, match=r"epoch 1 .*in a%20b/00003\.json\. .*Restore"):
            run(job(), tmp_path)
        assert table(tmp_path) == ids[:20]
    away.rename(sent)
    run(job(), tmp_path)
    assert table(tmp_path) == ids


def test_a_log_that_spark_has_compacted(spark: SparkSession, tmp_path: Path) -> None:
    key = "spark.sql.streaming.fileSource.log.compactInterval"
    with session_conf(spark, {key: "2"}):
        ids = write_input(tmp_path / "in", 6)
        stream = exactly_once(files(spark, tmp_path / "in"), "job").to(rows_sink(tmp_path))
        run_and_die(stream, tmp_path, "epoch.begin", times=2)
        assert (tmp_path / "checkpoint" / "sources" / "0" / "1.compact").exists()
        gone(tmp_path / "in" / "00001.json")
        away = gone(tmp_path / "in" / "00002.json")
        with pytest.raises(SourceGone, match=r"gone: file:[^ ]*00002\.json\. "):
            run(stream, tmp_path)
        away.rename(tmp_path / "in" / "00002.json")
        run(stream, tmp_path)
    assert table(tmp_path) == ids


def test_two_sources_one_of_them_twice(spark: SparkSession, tmp_path: Path) -> None:
    """Folders of sources and lines of the offset log are not the same numbers."""
    write_input(tmp_path / "a", 2)
    ids = write_input(tmp_path / "b", 2, first=2)
    one, other = files(spark, tmp_path / "a"), files(spark, tmp_path / "b")
    frame = one.union(one).union(other)
    stream = exactly_once(frame, "job").to(rows_sink(tmp_path))
    run_and_die(stream, tmp_path, "epoch.begin")
    away = gone(tmp_path / "b" / "00002.json")
    with pytest.raises(SourceGone, match=r"b/00002\.json"):
        run(stream, tmp_path)
    away.rename(tmp_path / "b" / "00002.json")
    run(stream, tmp_path)
    assert table(tmp_path) == [*sorted([*range(20)] * 2), *ids]


def test_a_decided_epoch_needs_its_files_for_its_state_only(
    spark: SparkSession, tmp_path: Path
) -> None:
    write_input(tmp_path / "in", 4)
    frame = files(spark, tmp_path / "in")
    plain = exactly_once(frame, "plain").to(rows_sink(tmp_path))
    counts = exactly_once(frame.groupBy("k").count(), "counts").to(
        SqliteSink(tmp_path / "counts.db", "t", "upsert", "k")
    )
    run_and_die(plain, tmp_path / "1", "decide.after", times=2)
    run_and_die(counts, tmp_path / "2", "decide.after", times=2, output_mode="update")
    away = gone(tmp_path / "in" / "00003.json")
    run(plain, tmp_path / "1")
    assert table(tmp_path) == list(range(40))
    with pytest.raises(SourceGone, match=r"00003\.json"):
        run(counts, tmp_path / "2", output_mode="update")
    away.rename(tmp_path / "in" / "00003.json")
    run(counts, tmp_path / "2", output_mode="update")
