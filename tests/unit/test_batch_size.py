"""Spark counts the bytes of a batch unless the rows are known to be small, or the user said."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from beadline.run.acks import Ack
from beadline.run.batch_size import BYTES, ROWS, BatchSize


def ack(row_bytes: int) -> Ack:
    return Ack(0, 0, 0, 10, row_bytes, None, 0, None, "w", None)


def session(limit: str | None = "67108864b", rows: str = "10000") -> Any:
    settings = {ROWS: rows} | ({} if limit is None else {BYTES: limit})
    conf = SimpleNamespace(
        get=lambda key, default=None: settings.get(key, default),
        set=settings.__setitem__,
        all=settings,
    )
    return SimpleNamespace(conf=conf)


def test_small_rows_are_not_counted_and_large_ones_are_again() -> None:
    spark, size = session(), BatchSize()
    size.learn(spark, [ack(100), ack(120)])
    assert spark.conf.all[BYTES] == str(2**31 - 1)
    size.learn(spark, [])
    size.learn(spark, [ack(0)])  # nothing was read: nothing is known
    assert spark.conf.all[BYTES] == str(2**31 - 1)
    size.learn(spark, [ack(100), ack(5_000)])
    assert spark.conf.all[BYTES] == str(64 << 20)
    size.learn(spark, [ack(100)])
    assert spark.conf.all[BYTES] == str(2**31 - 1)


@pytest.mark.parametrize("limit", ["1000000", "2147483647", None])
def test_what_the_user_has_set_and_what_spark_does_not_know_is_left_alone(
    limit: str | None,
) -> None:
    spark, size = session(limit), BatchSize()
    size.learn(spark, [ack(100)])
    assert spark.conf.all.get(BYTES) == limit


def test_without_a_limit_of_rows_bytes_are_counted() -> None:
    spark, size = session(rows="-1"), BatchSize()
    size.learn(spark, [ack(100)])
    assert spark.conf.all[BYTES] == "67108864b"
