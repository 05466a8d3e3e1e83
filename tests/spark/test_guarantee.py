"""What a stream promises, read from real plans and real sinks, and refused at start."""

from __future__ import annotations

import functools
import json
import random
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.functions import udf

from beadline import Stream, at_least_once, exactly_once, sources
from beadline.errors import GuaranteeRefused
from beadline.guarantee import FindingKind
from beadline.sink import Guarantee
from beadline.sinks import ConsoleSink, SqliteSink
from beadline.spark.facts import expressions
from beadline.spark.facts import sources as seen_in
from beadline.spark.plan import is_narrow, is_stateful, source_options
from tests.spark.jobs import read, rows_sink, session_conf, sqlite_job, write_input
from tests.spark.test_cli_run import GOOD, HEAD, Run, job_file, run

__all__ = ["run"]  # the fixture


def socket(spark: SparkSession) -> DataFrame:
    reader = spark.readStream.format("socket").option("host", "127.0.0.1").option("port", 9)
    return reader.load()


def chance(frame: DataFrame) -> list[str]:
    found = [each for each in expressions(frame) if not each.deterministic or each.chance]
    return [each.name for each in found]


def test_sources_are_read_from_the_plan(spark: SparkSession, tmp_path: Path) -> None:
    files = read(spark, tmp_path)
    rate = sources.rate(spark, rows_per_second=5)
    frame = files.select("id").union(rate.select(F.col("value").alias("id")))
    assert [(seen.name, seen.where) for seen in seen_in(frame)] == [
        ("json", str(tmp_path)),
        ("rate", ""),
    ]
    (only,) = seen_in(socket(spark))
    assert (only.name, only.where) == ("socket", "127.0.0.1")


@pytest.mark.parametrize(
    ("query", "leaves", "stateful"),
    [
        ("WITH x AS (SELECT value FROM r) SELECT value FROM x", 1, False),
        ("WITH x AS (SELECT value FROM r) SELECT * FROM x UNION ALL SELECT * FROM x", 2, False),
        ("WITH x AS (SELECT value FROM r), unused AS (SELECT 1 FROM r) SELECT * FROM x", 1, False),
        ("WITH x AS (WITH y AS (SELECT value FROM r) SELECT * FROM y) SELECT * FROM x", 1, False),
        ("WITH x AS (SELECT value, rand() FROM r) SELECT value FROM x", 1, False),
        ("WITH x AS (SELECT value FROM r) SELECT value, count(*) FROM x GROUP BY value", 1, True),
    ],
)
def test_with_in_sql_is_seen_through(
    spark: SparkSession, tmp_path: Path, query: str, leaves: int, stateful: bool
) -> None:
    sources.rate(spark).createOrReplaceTempView("r")
    frame = spark.sql(query)
    assert [seen.name for seen in seen_in(frame)] == ["rate"] * leaves
    assert len(source_options(frame)) == leaves
    assert is_stateful(frame) is stateful
    assert is_narrow(frame) is not stateful
    assert chance(frame) == (["Rand"] if "rand" in query else [])
    report = exactly_once(frame, "job").to(rows_sink(tmp_path)).guarantee()
    assert report.level is Guarantee.EXACTLY_ONCE
    assert FindingKind.SOURCE not in {found.kind for found in report.warnings}


def diced(value: int) -> float:
    return value + random.random()


def same(value: int) -> int:
    return value + 1


def test_chance_is_read_from_the_plan(spark: SparkSession) -> None:
    rate = sources.rate(spark)
    assert chance(rate.select(F.rand(), F.expr("uuid()"))) == ["Rand", "Uuid"]
    assert chance(rate.filter(F.rand() > 0.5).select(F.col("value") + 1)) == ["Rand"]
    assert chance(rate.select(udf(diced, "double")("value"))) == ["PythonUDF"]
    assert chance(rate.select(udf(same, "long")("value"), F.current_timestamp())) == []
    assert chance(rate.select(udf(lambda v: v, "long").asNondeterministic()("value"))) != []

    def shuffled(batches):  # type: ignore[no-untyped-def]
        yield from sorted(batches, key=lambda _: random.random())

    assert chance(rate.select("value").mapInArrow(shuffled, "value long")) == ["PythonUDF"]


def test_a_good_query(spark: SparkSession, tmp_path: Path) -> None:
    write_input(tmp_path / "in", 1)
    report = sqlite_job(spark, tmp_path).guarantee()
    assert report.level is Guarantee.EXACTLY_ONCE
    assert [found.kind for found in report.findings] == [
        FindingKind.FUNCTION,
        FindingKind.SOURCE,
        FindingKind.SINK,
    ]
    assert [path.name for path in tmp_path.iterdir()] == ["in"]


def test_a_stateful_query_with_rows_and_a_weaker_sink(spark: SparkSession, tmp_path: Path) -> None:
    write_input(tmp_path / "in", 1)
    counts = read(spark, tmp_path / "in").groupBy("k").count()
    stream = exactly_once(counts, "job").to(
        SqliteSink(tmp_path / "o.db", "t", mode="upsert", key="k"),
        rows=lambda frame: frame.withColumn("at", F.current_timestamp()),
    )
    report = stream.to(ConsoleSink()).guarantee()
    assert report.level is Guarantee.AT_LEAST_ONCE
    assert [found.kind for found in report.limits] == [FindingKind.SINK]
    assert FindingKind.STATE in {found.kind for found in report.findings}
    assert [found.kind for found in report.warnings] == [FindingKind.ROWS, FindingKind.ROWS]


@pytest.mark.parametrize("function", [exactly_once, at_least_once])
def test_a_socket_is_refused_at_start(
    function: Callable[..., Stream], spark: SparkSession, tmp_path: Path
) -> None:
    stream = function(socket(spark), "job").to(SqliteSink(tmp_path / "o.db", "t"))
    with pytest.raises(GuaranteeRefused, match=r"source socket 127\.0\.0\.1 is at-most-once"):
        stream.start(str(tmp_path / "checkpoint"), available_now=True)
    assert not list(tmp_path.iterdir())


def test_a_setting_that_loses_rows_is_refused_at_start(spark: SparkSession, tmp_path: Path) -> None:
    write_input(tmp_path / "in", 1)
    key = "spark.sql.streaming.minBatchesToRetain"
    stream = exactly_once(read(spark, tmp_path / "in"), "job").to(rows_sink(tmp_path))
    refused = pytest.raises(GuaranteeRefused, match=f"{key}=1")
    with session_conf(spark, {key: "1"}), refused:
        stream.start(str(tmp_path / "checkpoint"), available_now=True)


def test_analyze_for_people_and_programs(run: Run, tmp_path: Path) -> None:
    write_input(tmp_path / "in", 1)
    job = job_file(tmp_path, GOOD)
    code, out, _ = run(job, command="analyze")
    assert code == 0
    assert "query job is exactly-once" in out
    code, out, _ = run(job, "--json", command="analyze")
    found = json.loads(out.splitlines()[-1])
    assert (code, found["level"], found["refused"]) == (0, "exactly-once", False)
    assert {path.name for path in tmp_path.iterdir()} <= {"in", "job.py", "__pycache__"}


def test_analyze_exits_with_3_if_run_would_refuse(run: Run, tmp_path: Path) -> None:
    job = job_file(
        tmp_path,
        """
        def job(spark):
            reader = spark.readStream.format("socket").option("host", "127.0.0.1")
            return exactly_once(reader.option("port", 9).load(), "job").to(
                SqliteSink(HERE / "o.db", "t"))
        """,
        HEAD,
    )
    code, out, _ = run(job, command="analyze")
    assert code == 3
    assert "at-most-once, but was meant to be exactly-once; run would refuse it" in out


@pytest.mark.parametrize(
    ("key", "words"),
    [
        ("spark.sql.files.ignoreMissingFiles", "rows lost silently"),
        ("spark.sql.files.ignoreCorruptFiles", "rows lost silently"),
        ("spark.sql.adaptive.streaming.stateless.enabled", "into other parts"),
    ],
)
def test_analyze_sees_settings_that_run_refuses(
    run: Run, spark: SparkSession, tmp_path: Path, key: str, words: str
) -> None:
    write_input(tmp_path / "in", 1)
    job = job_file(tmp_path, GOOD)
    with session_conf(spark, {"spark.sql.adaptive.enabled": "true", key: "true"}):
        code, out, _ = run(job, command="analyze")
        assert (code, "run would refuse it" in out, key in out) == (3, True, True)
        code, out, _ = run(job, "--json", command="analyze")
        found = json.loads(out.splitlines()[-1])
        assert (code, found["refused"], len(found["problems"])) == (3, True, 1)
        assert words in found["problems"][0]
        refused, _, _ = run(job)
        assert refused == 2
    assert {path.name for path in tmp_path.iterdir()} <= {"in", "job.py", "__pycache__"}


def test_analyze_sees_a_checkpoint_that_run_refuses(run: Run, tmp_path: Path) -> None:
    write_input(tmp_path / "in", 1)
    job = job_file(tmp_path, f'CHECKPOINT = "s3a://bucket/checkpoint"\n{GOOD}')
    code, out, _ = run(job, command="analyze")
    assert code == 3
    assert "not proven to have one winner" in out


def test_functions_that_are_wrapped_or_cannot_be_read(spark: SparkSession) -> None:
    rate = sources.rate(spark)
    assert chance(rate.select(udf(functools.partial(diced), "double")("value"))) == ["PythonUDF"]
    (seen,) = [
        each
        for each in expressions(rate.select(udf(functools.partial(np.sin), "double")("value")))
        if each.name == "PythonUDF"
    ]
    assert (seen.chance, seen.unreadable) == ((), True)
