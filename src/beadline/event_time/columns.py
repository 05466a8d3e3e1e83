"""Columns of the user's frames: how they are referred to, and what a time column must be."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql import functions as F
from pyspark.sql.types import DataType, StructType, TimestampNTZType, TimestampType

from beadline.errors import NOTHING_WRITTEN, BadQuery

if TYPE_CHECKING:
    from pyspark.sql import Column

_BINARY = "UTF8_BINARY"
WATERMARK_KEY = "spark.watermarkDelayMs"  # Spark's mark on a column that has a watermark


def column_of(name: str) -> Column:
    """Return a column by its name, whatever characters the name has."""
    return F.col("`" + name.replace("`", "``") + "`")


def check_time(what: str, argument: str, name: str, schema: StructType) -> None:
    """Refuse a column that is not a timestamp; ``what`` is the function that was called."""
    if name not in schema.names:
        raise BadQuery(
            f"{what}: {argument}={name!r}: there is no such column; there are "
            f"{', '.join(schema.names)}. {NOTHING_WRITTEN}"
        )
    type_ = schema[name].dataType
    if isinstance(type_, TimestampType):
        return
    hint = f"cast it: .withColumn({name!r}, col({name!r}).cast('timestamp'))"
    if isinstance(type_, TimestampNTZType):
        hint = f"its time zone is not known: {hint}, which assumes the session's time zone"
    raise BadQuery(
        f"{what}: {argument}={name!r} is of type {type_.simpleString()}, and a timestamp is "
        f"needed; {hint}. {NOTHING_WRITTEN}"
    )


def check_binary(key: str, type_: DataType) -> None:
    """Refuse a key with a collation, where keys are compared byte by byte; ``key`` names it."""
    if getattr(type_, "collation", _BINARY) != _BINARY:
        raise BadQuery(
            f"{key} is of type {type_.simpleString()}: strings that are equal in their "
            f"collation would be different keys. Use lower(), or collate it as {_BINARY}. "
            f"{NOTHING_WRITTEN}"
        )


def check_no_watermark(what: str, time: str, schema: StructType) -> None:
    """Refuse ``watermark=`` for a column that has one; ``what`` is the function that was called."""
    if WATERMARK_KEY in schema[time].metadata:
        raise BadQuery(
            f"{what}: {time!r} has a watermark already: leave watermark= out, or withWatermark() "
            f"before it. {NOTHING_WRITTEN}"
        )
