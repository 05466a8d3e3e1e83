"""Passwords in a whole query: in no log of the driver, Python's or Java's, and in no file of it."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from beadline import exactly_once
from beadline.sink import AnySink
from beadline.sinks import RedisSink
from beadline.testing import CRASH, run_epochs
from beadline.testing.epochs import CrashStep
from tests.servers.mysql_tables import Table
from tests.servers.postgres_target import Orders

ROWS: list[dict[str, Any]] = [{"id": 1, "word": "a"}, {"id": 2, "word": "b"}]
Made = tuple[AnySink, str]


def a_postgres(request: pytest.FixtureRequest, folder: Path) -> Made:
    server = request.getfixturevalue("postgres_server")
    return Orders(server, "id bigint, word text").sink, server.password


def a_mysql(request: pytest.FixtureRequest, folder: Path) -> Made:
    server = request.getfixturevalue("mariadb_server")
    return Table(server, "id BIGINT, word TEXT").sink(), server.password


def a_redis(request: pytest.FixtureRequest, folder: Path) -> Made:
    server = request.getfixturevalue("redis_server")
    staging = folder / "staging"
    staging.mkdir()
    sink = RedisSink(server.url, key="id", value="word", prefix="secrets:", staging=staging)
    return sink, server.password


@contextmanager
def java_log(spark: SparkSession, path: Path) -> Iterator[None]:
    """What Spark's own driver logs, into a file; its console is nobody's to read here."""
    java: Any = spark._jvm
    log4j = java.org.apache.logging.log4j
    context = log4j.LogManager.getContext(False)
    configuration = context.getConfiguration()
    builder = log4j.core.appender.FileAppender.newBuilder()
    builder.setName("secrets")
    builder.setLayout(log4j.core.layout.PatternLayout.createDefaultLayout(configuration))
    appender = builder.withFileName(str(path)).build()
    appender.start()
    root = configuration.getRootLogger()
    level = root.getLevel()
    root.addAppender(appender, None, None)
    root.setLevel(log4j.Level.INFO)
    context.updateLoggers()
    try:
        yield
    finally:
        root.removeAppender("secrets")
        root.setLevel(level)
        context.updateLoggers()
        appender.stop()


@pytest.mark.parametrize("make", [a_postgres, a_mysql, a_redis])
def test_a_password_is_in_no_log_and_no_file(
    spark: SparkSession,
    request: pytest.FixtureRequest,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    make: Callable[[pytest.FixtureRequest, Path], Made],
) -> None:
    sink, password = make(request, tmp_path)
    java = tmp_path / "java.log"
    script: list[list[dict[str, Any]] | CrashStep] = [ROWS, CRASH("decide.after"), ROWS]
    with java_log(spark, java), caplog.at_level(logging.DEBUG):
        run = run_epochs(
            spark,
            lambda frame: exactly_once(frame, make.__name__).to(sink),
            script,
            tmp_path / "job",
            schema="id long, word string",
        )
    assert run.epochs == 2
    assert "committed" in caplog.text, "there is a log to be searched"
    assert java.stat().st_size > 10_000
    assert password not in caplog.text
    assert password not in repr(run)
    files = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert any("checkpoint" in path.parts for path in files)
    told = [path for path in files if password.encode() in path.read_bytes()]
    assert told == []
