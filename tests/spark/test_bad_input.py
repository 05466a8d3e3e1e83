"""Bad input: a clear error before anything is written, each case of the promise."""

from __future__ import annotations

import errno
import os
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from beadline import at_least_once, exactly_once
from beadline.errors import (
    BadQuery,
    BadSetting,
    BadSink,
    BeadlineError,
    CheckpointProblem,
    GuaranteeRefused,
    WrongCheckpoint,
)
from beadline.sinks import ConsoleSink, FileSink, MemorySink, SqliteSink
from beadline.spark.checks import ADAPTIVE_STREAMING, COLUMNAR_INPUT, LOSSY_SETTINGS, switched_off
from tests.spark.jobs import read, rows_sink, run, session_conf, sqlite_job, table, write_input


def written(folder: Path) -> set[str]:
    """Everything below the folder but the input."""
    return {str(p.relative_to(folder)) for p in folder.rglob("*") if "in" not in p.parts}


def test_a_batch_frame_is_refused(spark: SparkSession, tmp_path: Path) -> None:
    stream = exactly_once(spark.range(3), "job").to(rows_sink(tmp_path))
    with pytest.raises(BadQuery, match="streaming DataFrame"):
        run(stream, tmp_path)
    assert written(tmp_path) == set()


def test_no_frame_at_all_is_refused(tmp_path: Path) -> None:
    stream = exactly_once("orders", "job").to(rows_sink(tmp_path))  # type: ignore[arg-type]
    with pytest.raises(BadQuery, match="not a DataFrame"):
        run(stream, tmp_path)


def test_no_sink_is_refused(spark: SparkSession, tmp_path: Path) -> None:
    write_input(tmp_path / "in", 1)
    with pytest.raises(BadQuery, match="no sink"):
        run(exactly_once(read(spark, tmp_path / "in"), "job"), tmp_path)
    assert written(tmp_path) == set()


def test_two_sinks_with_one_name_are_refused(spark: SparkSession, tmp_path: Path) -> None:
    write_input(tmp_path / "in", 1)
    stream = sqlite_job(spark, tmp_path)
    with pytest.raises(BadQuery, match="two sinks named 'out-t'"):
        stream.to(rows_sink(tmp_path))
    stream.to(rows_sink(tmp_path, "u"))  # another target has another name


def test_something_that_is_no_sink_is_refused(spark: SparkSession, tmp_path: Path) -> None:
    write_input(tmp_path / "in", 1)
    with pytest.raises(BadQuery, match="not str"):
        sqlite_job(spark, tmp_path).to("kafka")  # type: ignore[arg-type]


@pytest.mark.parametrize("name", ["", "a b", "ü", "../x", "a~b", "-x", "a/b", "x" * 61, "a\n"])
def test_query_names_with_odd_characters_are_refused(
    spark: SparkSession, tmp_path: Path, name: str
) -> None:
    write_input(tmp_path / "in", 1)
    with pytest.raises(BadQuery, match="cannot be used"):
        sqlite_job(spark, tmp_path, name)
    with pytest.raises(BadQuery, match="cannot be used"):
        sqlite_job(spark, tmp_path).to(MemorySink("m"), name=name)


def test_a_checkpoint_of_another_query_is_refused(spark: SparkSession, tmp_path: Path) -> None:
    ids = write_input(tmp_path / "in", 2)
    run(sqlite_job(spark, tmp_path), tmp_path)
    before = written(tmp_path)
    with pytest.raises(WrongCheckpoint, match="belongs to query 'job', not to 'other'"):
        run(sqlite_job(spark, tmp_path, "other"), tmp_path)
    assert written(tmp_path) == before
    assert table(tmp_path) == ids


def test_a_checkpoint_of_plain_spark_is_refused(spark: SparkSession, tmp_path: Path) -> None:
    write_input(tmp_path / "in", 1)
    plain = read(spark, tmp_path / "in").writeStream.format("noop")
    place = plain.option("checkpointLocation", str(tmp_path / "checkpoint"))
    place.trigger(availableNow=True).start().awaitTermination()
    with pytest.raises(WrongCheckpoint, match="no decision log"):
        run(sqlite_job(spark, tmp_path), tmp_path)
    assert table(tmp_path) == []


def test_an_unwritable_checkpoint_is_refused(spark: SparkSession, tmp_path: Path) -> None:
    write_input(tmp_path / "in", 1)
    (tmp_path / "checkpoint").write_text("a file, not a folder")
    with pytest.raises(CheckpointProblem, match="cannot be written"):
        run(sqlite_job(spark, tmp_path), tmp_path)
    assert table(tmp_path) == []


@pytest.mark.parametrize("scheme", ["s3a", "abfs", "gs", "viewfs"])
def test_a_file_system_without_the_rule_is_refused(
    spark: SparkSession, tmp_path: Path, scheme: str
) -> None:
    write_input(tmp_path / "in", 1)
    with pytest.raises(BadSetting, match="not proven to have one winner"):
        sqlite_job(spark, tmp_path).start(f"{scheme}://bucket/checkpoint")
    assert written(tmp_path) == set()


def test_rows_that_do_not_fit_a_sink_are_refused(spark: SparkSession, tmp_path: Path) -> None:
    write_input(tmp_path / "in", 1)
    nested = read(spark, tmp_path / "in").withColumn("s", F.struct("k", "v"))
    with pytest.raises(BadSink, match="'s'"):
        run(exactly_once(nested, "job").to(rows_sink(tmp_path)), tmp_path)
    with pytest.raises(BadSink):
        run(exactly_once(nested, "job").to(FileSink(str(tmp_path / "o"), "csv")), tmp_path)
    assert written(tmp_path) == set()


def test_a_rows_function_that_fails_is_refused(spark: SparkSession, tmp_path: Path) -> None:
    write_input(tmp_path / "in", 1)
    frame = read(spark, tmp_path / "in")
    bad = exactly_once(frame, "job").to(rows_sink(tmp_path), rows=lambda df: df.select("nope"))
    with pytest.raises(BadSink, match="rows= of sink 'out-t' failed"):
        run(bad, tmp_path)
    nothing: Any = lambda df: None  # noqa: E731
    none = exactly_once(frame, "job").to(rows_sink(tmp_path), rows=nothing)
    with pytest.raises(BadSink, match="must return a batch DataFrame"):
        run(none, tmp_path)
    assert written(tmp_path) == set()


def test_settings_that_break_a_rule_are_refused(spark: SparkSession, tmp_path: Path) -> None:
    write_input(tmp_path / "in", 1)
    stream = sqlite_job(spark, tmp_path)
    with pytest.raises(BadSetting, match="independently of the epoch"):
        run(stream, tmp_path, options={"asyncProgressTrackingEnabled": "true"})
    with pytest.raises(BadSetting, match="start\\(\\)'s first argument"):
        run(stream, tmp_path, options={"checkpointLocation": "elsewhere"})
    with pytest.raises(BadSetting, match="not both"):
        stream.start(str(tmp_path / "checkpoint"), every="1 second", available_now=True)
    with pytest.raises(BadSetting, match="at least 1"):
        run(stream, tmp_path, keep=0)
    assert written(tmp_path) == set()


def test_adaptive_streaming_is_refused(spark: SparkSession, tmp_path: Path) -> None:
    write_input(tmp_path / "in", 1)
    adaptive = {"spark.sql.adaptive.enabled": "true", ADAPTIVE_STREAMING: "true"}
    with session_conf(spark, adaptive), pytest.raises(BadSetting, match="other parts"):
        run(sqlite_job(spark, tmp_path), tmp_path)
    assert written(tmp_path) == set()


def test_adaptive_execution_is_off_for_the_query_and_back_on_after(
    spark: SparkSession, tmp_path: Path
) -> None:
    write_input(tmp_path / "in", 1)
    seen: list[str | None] = []

    def rows(frame: DataFrame) -> DataFrame:
        seen.append(frame.sparkSession.conf.get("spark.sql.adaptive.enabled"))
        return frame

    before = spark.conf.get("spark.sql.adaptive.enabled")
    stream = exactly_once(read(spark, tmp_path / "in"), "job")
    run(stream.to(rows_sink(tmp_path), rows=rows), tmp_path)
    assert seen[-1] == "false"
    assert spark.conf.get("spark.sql.adaptive.enabled") == before


def test_a_weaker_sink_is_refused_unless_allowed(spark: SparkSession, tmp_path: Path) -> None:
    write_input(tmp_path / "in", 1)
    stream = sqlite_job(spark, tmp_path)
    with pytest.raises(GuaranteeRefused, match=r'allow="at-least-once"') as refused:
        run(stream.to(ConsoleSink()), tmp_path)
    assert refused.value.exit_code == 3
    assert written(tmp_path) == set()
    run(stream.to(ConsoleSink(), allow="at-least-once"), tmp_path)
    with pytest.raises(BadQuery, match="allow= takes"):
        stream.to(ConsoleSink(), allow="sometimes")


def test_a_weaker_sink_is_fine_for_at_least_once(spark: SparkSession, tmp_path: Path) -> None:
    write_input(tmp_path / "in", 1)
    run(at_least_once(read(spark, tmp_path / "in"), "job").to(ConsoleSink()), tmp_path)


def test_a_missing_folder_for_a_database_is_refused(spark: SparkSession, tmp_path: Path) -> None:
    write_input(tmp_path / "in", 1)
    stream = exactly_once(read(spark, tmp_path / "in"), "job")
    with pytest.raises(BeadlineError):
        run(stream.to(SqliteSink(tmp_path / "no" / "such" / "out.db", "t")), tmp_path)
    assert written(tmp_path) == set()


@pytest.mark.parametrize(
    "settings",
    [
        {"output_mode": "lunch"},
        {"output_mode": "append"},  # on an aggregation without a watermark
        {"output_mode": "update", "every": "nonsense"},
        {"output_mode": "update", "every": ""},
    ],
)
def test_what_spark_refuses_is_refused_before_the_claim(
    spark: SparkSession, tmp_path: Path, settings: dict[str, Any]
) -> None:
    write_input(tmp_path / "in", 1)
    counts = read(spark, tmp_path / "in").groupBy("k").count()
    stream = exactly_once(counts, "job").to(SqliteSink(tmp_path / "out.db", "t", "upsert", "k"))
    with pytest.raises(BadSetting, match="Spark refuses it"):
        stream.start(str(tmp_path / "checkpoint"), **settings)
    assert written(tmp_path) == set()


@pytest.mark.parametrize("key", LOSSY_SETTINGS)
def test_a_setting_that_loses_rows_in_silence_is_refused(
    spark: SparkSession, tmp_path: Path, key: str
) -> None:
    write_input(tmp_path / "in", 1)
    with session_conf(spark, {key: "true"}), pytest.raises(BadSetting, match="lost silently"):
        run(sqlite_job(spark, tmp_path), tmp_path)
    assert written(tmp_path) == set()


def test_a_disk_without_hard_links_is_refused(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_input(tmp_path / "in", 1)

    def unsupported(*_: object) -> None:
        raise OSError(errno.ENOTSUP, "Operation not supported")

    monkeypatch.setattr(os, "link", unsupported)
    with pytest.raises(BadSetting, match="no hard links"):
        run(sqlite_job(spark, tmp_path), tmp_path)
    assert written(tmp_path) == set()


def test_a_local_path_on_a_cluster_is_refused(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_input(tmp_path / "in", 1)
    monkeypatch.setattr(spark.sparkContext, "master", "spark://far:7077")
    frame = read(spark, tmp_path / "in")
    for sink in (rows_sink(tmp_path), FileSink(str(tmp_path / "out"))):
        with pytest.raises(BadSink, match="its own disk"):
            run(exactly_once(frame, "job").to(sink), tmp_path)
    assert written(tmp_path) == set()
    run(exactly_once(frame, "job").to(rows_sink(tmp_path), shared_disk=True), tmp_path)


def test_no_secret_is_shown(spark: SparkSession, tmp_path: Path) -> None:
    sink = FileSink(str(tmp_path / "out"), options={"parquet.encryption.footer.key": "SECRET"})
    stream = exactly_once(spark.readStream.format("rate").load(), "job").to(sink)
    assert "SECRET" not in repr(sink) + repr(stream)
    assert repr(sink) == "FileSink(files-out)"


@pytest.mark.parametrize("value", ["true", "TRUE", " True"])
def test_a_setting_is_true_in_any_case(
    spark: SparkSession, caplog: pytest.LogCaptureFixture, value: str
) -> None:
    """As Spark reads it: with this one, a Python UDF on columnar files hangs forever."""
    with session_conf(spark, {COLUMNAR_INPUT: value}):
        switched_off(spark)
    assert f"{COLUMNAR_INPUT} is set to true" in caplog.text
