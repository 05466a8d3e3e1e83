"""Every call of windowed() and agg() that cannot be right: an error before anything is written."""

from __future__ import annotations

from typing import Any, cast

import pytest
from pyspark.sql import DataFrame
from pyspark.sql.types import (
    ArrayType,
    DecimalType,
    LongType,
    StringType,
    StructField,
    StructType,
    TimestampNTZType,
    TimestampType,
    YearMonthIntervalType,
)

from beadline.errors import UsageError
from beadline.event_time import Aggregate, CustomAggregate, count, sum_of, windowed
from beadline.event_time.columns import WATERMARK_KEY


class SchemaOnly:
    """As much of a frame as is looked at before Spark is asked for anything."""

    def __init__(self, *more: StructField) -> None:
        self.schema = StructType(
            [
                StructField("k", StringType()),
                StructField("ts", TimestampType()),
                StructField("local", TimestampNTZType()),
                StructField("day", StringType()),
                StructField("many", ArrayType(LongType())),
                StructField("folded", StringType("UTF8_LCASE")),
                StructField("x", LongType()),
                StructField("Revision", LongType()),
                StructField("marked", TimestampType(), True, {WATERMARK_KEY: 1000}),
                *more,
            ]
        )

    def withWatermark(self, time: str, delay: str) -> SchemaOnly:  # noqa: N802
        return self


def frame(*more: StructField) -> DataFrame:
    return cast(DataFrame, SchemaOnly(*more))


FINE: dict[str, Any] = {"time": "ts", "size": "10 minutes", "watermark": "5 minutes"}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"size": None}, "takes one of size=, session_gap= and every_rows=, not 0"),
        ({"session_gap": "1 minute"}, "not 2 of them"),
        ({"size": "10"}, "size='10' is not a duration"),
        ({"size": "0 s"}, "more than zero"),
        ({"size": 600}, "takes a duration"),
        ({"slide": "3 minutes"}, "slide='3 minutes' does not divide size='10 minutes'"),
        ({"slide": "20 minutes"}, "does not divide"),
        ({"slide": "soon"}, "is not a duration"),
        ({"offset": "-1 minute"}, "is not a duration"),
        (
            {"size": None, "session_gap": "1 s", "slide": "1 s"},
            "slide= can only be used with size=",
        ),
        (
            {"size": None, "session_gap": "1 s", "offset": "1 s"},
            "offset= can only be used with size=",
        ),
        ({"size": None, "session_gap": "now and then"}, "is not a duration"),
        ({"time": None}, "needs time=, the column of the rows' time"),
        ({"time": "t"}, "time='t': there is no such column"),
        ({"time": "day"}, "time='day' is of type string, and a timestamp is needed; cast it"),
        ({"time": "x"}, "is of type bigint"),
        ({"time": "local"}, "its time zone is not known"),
        ({"time": "marked"}, "has a watermark already"),
        ({"watermark": None}, "need a watermark"),
        ({"watermark": None, "allowed_lateness": "1 hour"}, "need a watermark"),
        ({"watermark": "2 months"}, "have no fixed length"),
        ({"watermark": "1 us"}, "whole milliseconds"),
        ({"allowed_lateness": "later"}, "is not a duration"),
        ({"allowed_lateness": 5}, "allowed_lateness= takes a duration"),
        ({"early": "0 s"}, "more than zero"),
        ({"late": "keep"}, "late='keep': it must be 'drop' or 'side'"),
        ({"clock": "wall"}, "clock='wall'"),
        ({"clock": "ingestion"}, "uses no column"),
        ({"clock": "processing"}, "uses no column"),
        ({"clock": "processing", "time": None}, "watermark= has no meaning here"),
        (
            {"clock": "processing", "time": None, "watermark": None, "late": "side"},
            "late='side' has no meaning here: in processing time no row is late",
        ),
        ({"by": "z"}, "by='z': there is no such column; there are k, ts"),
        ({"by": ["k", "k"]}, "names a column twice"),
        ({"by": "many"}, "by='many' is of type array<bigint>: it must be a plain value"),
        ({"by": "folded"}, "would be different keys"),
        ({"by": "Revision"}, "the results already have a column of that name"),
        ({"size": None, "every_rows": 0}, "every_rows=0: it must be a number, at least 1"),
        ({"size": None, "every_rows": "9"}, "every_rows='9': it must be a number"),
        ({"size": None, "every_rows": True}, "every_rows=True: it must be a number"),
        ({"size": None, "every_rows": 5}, "watermark= has no meaning here: a window of a number"),
        (
            {"size": None, "every_rows": 5, "watermark": None, "early": "1 s"},
            "early= has no meaning here",
        ),
        (
            {"size": None, "every_rows": 5, "watermark": None, "allowed_lateness": "1 s"},
            "allowed_lateness= has no meaning here",
        ),
        (
            {"size": None, "every_rows": 5, "watermark": None, "time": None, "clock": "ingestion"},
            "clock='ingestion' has no meaning with every_rows=",
        ),
    ],
)
def test_windowed_refuses(change: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError) as caught:
        windowed(frame(), **{**FINE, **change})
    assert message in str(caught.value)
    assert str(caught.value).endswith(" Nothing was written.")


class Nothing(CustomAggregate):
    def add(self, rows: Any) -> tuple[Any, ...]:
        return ()

    def merge(self, one: tuple[Any, ...], other: tuple[Any, ...]) -> tuple[Any, ...]:
        return one


@pytest.mark.parametrize(
    ("aggregates", "message"),
    [
        ({}, "agg() has no aggregate"),
        ({"n": "count"}, "takes an aggregate of beadline.event_time"),
        ({"n": count}, "takes an aggregate of beadline.event_time"),
        ({"k": count()}, "the results already have a column of that name"),
        ({"window_start": count()}, "the results already have a column of that name"),
        ({"Window_End": count()}, "the results already have a column of that name"),
        ({"deleted": count()}, "the results already have a column of that name"),
        ({"n": count(), "N": count()}, "the results already have a column of that name"),
        ({"n": count("z")}, "agg(n=...): there is no column 'z'; there are k, ts"),
        ({"n": sum_of("k")}, "column 'k' is of type string, and cannot be added up"),
        ({"n": Nothing()}, "Nothing needs a state_type"),
    ],
)
@pytest.mark.parametrize("lateness", [None, "1 hour"])
def test_agg_refuses(aggregates: dict[str, Aggregate], message: str, lateness: str | None) -> None:
    windows = windowed(frame(), by="k", allowed_lateness=lateness, **FINE)
    with pytest.raises(UsageError) as caught:
        windows.agg(**aggregates)
    assert message in str(caught.value)
    assert str(caught.value).endswith(" Nothing was written.")


def test_a_column_that_python_cannot_be_given() -> None:
    odd = frame(StructField("months", YearMonthIntervalType()), StructField("d", DecimalType(5, 2)))
    with pytest.raises(UsageError, match="cannot convert for Python: select only the columns"):
        windowed(odd, **FINE).agg(n=count())
