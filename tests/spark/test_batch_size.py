"""Spark counts the bytes of a batch unless the rows are known to be small, or the user said."""

from __future__ import annotations

import pytest
from pyspark.sql import SparkSession

from beadline.run.acks import Ack
from beadline.run.batch_size import BYTES, ROWS, BatchSize

UNCOUNTED = 2**31 - 1
DEFAULT = 64 << 20


def ack(row_bytes: int) -> Ack:
    return Ack(0, 0, 0, 10, row_bytes, None, 0, None, "w", None)


def limit_of(session: SparkSession) -> int:
    return int((session.conf.get(BYTES) or "").removesuffix("b"))


@pytest.fixture
def session(spark: SparkSession) -> SparkSession:
    """Settings of its own, as a streaming query's session has."""
    return spark.newSession()


def test_small_rows_are_not_counted_and_large_ones_are_again(session: SparkSession) -> None:
    size = BatchSize()
    size.learn(session, [ack(100), ack(120)])
    assert limit_of(session) == UNCOUNTED
    size.learn(session, [])
    size.learn(session, [ack(0)])  # nothing was read: nothing is known
    assert limit_of(session) == UNCOUNTED
    size.learn(session, [ack(100), ack(5_000)])
    assert limit_of(session) == DEFAULT
    size.learn(session, [ack(100)])
    assert limit_of(session) == UNCOUNTED


@pytest.mark.parametrize("limit", ["1000000", "2147483647"])
def test_what_the_user_has_set_is_left_alone(session: SparkSession, limit: str) -> None:
    session.conf.set(BYTES, limit)
    BatchSize().learn(session, [ack(100)])
    assert limit_of(session) == int(limit)


def test_a_limit_that_spark_does_not_know_is_left_alone(
    session: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("beadline.run.batch_size.BYTES", "spark.sql.no.such.setting")
    BatchSize().learn(session, [ack(100)])
    assert session.conf.get("spark.sql.no.such.setting", None) is None


def test_without_a_limit_of_rows_bytes_are_counted(session: SparkSession) -> None:
    session.conf.set(ROWS, "-1")
    BatchSize().learn(session, [ack(100)])
    assert limit_of(session) == DEFAULT
