"""Spark counts the bytes of a batch unless the rows are known to be small, or the user said."""

from __future__ import annotations

import pytest
from pyspark.sql import SparkSession

from beadline.spark.acks import Ack
from beadline.spark.batch_size import BYTES, ROWS, BatchSize

UNCOUNTED = 2**31 - 1
DEFAULT = 64 << 20


def ack(row_bytes: int, rows: int = 100) -> Ack:
    return Ack(0, 0, 0, rows, row_bytes, None, 0, None, "w", None)


def learn(size: BatchSize, session: SparkSession, *acks: Ack) -> None:
    """One epoch, and what Spark is told before the next."""
    size.note(acks)
    size.tell(session)


def limit_of(session: SparkSession) -> int:
    return int((session.conf.get(BYTES) or "").removesuffix("b"))


@pytest.fixture
def session(spark: SparkSession) -> SparkSession:
    """Settings of its own, as a streaming query's session has."""
    return spark.newSession()


def test_small_rows_are_not_counted_and_large_ones_are_for_good(session: SparkSession) -> None:
    size = BatchSize()
    learn(size, session, ack(100), ack(120))
    assert limit_of(session) == UNCOUNTED
    learn(size, session)
    learn(size, session, ack(0, rows=0))  # nothing was read: nothing is known
    assert limit_of(session) == UNCOUNTED
    learn(size, session, ack(100), ack(5_000))
    assert limit_of(session) == DEFAULT
    learn(size, session, ack(100))
    assert limit_of(session) == DEFAULT, "rows that were large once may be large again"


def test_a_few_rows_say_nothing(session: SparkSession) -> None:
    size = BatchSize()
    learn(size, session, ack(20, rows=99))
    assert limit_of(session) == DEFAULT
    assert not size.small
    learn(size, session, ack(20, rows=1))
    assert limit_of(session) == UNCOUNTED
    assert size.small


def test_a_sink_with_large_rows_counts_for_all(session: SparkSession) -> None:
    """Spark is told once per epoch: not after the one, of the other."""
    size = BatchSize()
    for _ in range(3):
        size.note([ack(20)])
        assert limit_of(session) == DEFAULT
        size.note([ack(20_000)])
        size.tell(session)
        assert limit_of(session) == DEFAULT


@pytest.mark.parametrize(("row_bytes", "rows"), [(100, 15_728), (200, 10_000), (10, 20_000)])
def test_small_rows_come_in_larger_batches(
    session: SparkSession, row_bytes: int, rows: int
) -> None:
    size = BatchSize()
    learn(size, session, ack(row_bytes))
    assert session.conf.get(ROWS) == str(rows)
    assert size.small
    learn(size, session, ack(140))
    assert session.conf.get(ROWS) == str(min(rows, 11_234)), "rows have grown a little"
    learn(size, session, ack(5_000))
    assert session.conf.get(ROWS) == "10000"
    assert not size.small


@pytest.mark.parametrize("rows", ["2000", "10000"])
def test_the_users_own_number_of_rows_is_kept(session: SparkSession, rows: str) -> None:
    """Also where it is what Spark would take anyway."""
    session.conf.set(ROWS, rows)
    size = BatchSize()
    learn(size, session, ack(100))
    assert session.conf.get(ROWS) == rows
    assert size.small


def test_batches_that_others_share_are_left_alone(session: SparkSession) -> None:
    size = BatchSize(shared=True)
    learn(size, session, ack(100))
    assert limit_of(session) == DEFAULT
    assert session.conf.get(ROWS) == "10000"
    assert not size.small


@pytest.mark.parametrize("limit", ["1000000", "2147483647"])
def test_what_the_user_has_set_is_left_alone(session: SparkSession, limit: str) -> None:
    session.conf.set(BYTES, limit)
    learn(BatchSize(), session, ack(100))
    assert limit_of(session) == int(limit)


def test_a_limit_that_spark_does_not_know_is_left_alone(
    session: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("beadline.spark.batch_size.BYTES", "spark.sql.no.such.setting")
    learn(BatchSize(), session, ack(100))
    assert session.conf.get("spark.sql.no.such.setting", None) is None


def test_without_a_limit_of_rows_bytes_are_counted(session: SparkSession) -> None:
    session.conf.set(ROWS, "-1")
    learn(BatchSize(), session, ack(100))
    assert limit_of(session) == DEFAULT
