"""Columns of the user's frames: how they are referred to, and what keys and times must be."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql import functions as F
from pyspark.sql.types import (
    ArrayType,
    DataType,
    MapType,
    StructType,
    TimestampNTZType,
    TimestampType,
    VariantType,
)

from beadline.errors import NOTHING_WRITTEN, BadQuery

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

_EXACT_JSON = {
    "ignoreNullFields": "false",
    "timestampFormat": "yyyy-MM-dd'T'HH:mm:ss.SSSSSSXXX",
    "timeZone": "UTC",
}
_BINARY = "UTF8_BINARY"
WATERMARK_KEY = "spark.watermarkDelayMs"  # Spark's mark on a column that has a watermark
FLOATS = ("float", "double")  # names of types in which equal values may have different bytes


def column_of(name: str) -> Column:
    """Return a column by its name, whatever characters the name has."""
    return F.col("`" + name.replace("`", "``") + "`")


def row_hash(frame: DataFrame) -> Column:
    """Return a hash of a whole row, which gives rows of equal times a fixed order.

    The order in which they arrive is none: Spark's Kafka source renumbers the topic's partitions at
    each start, and a shuffle fetches its parts in any order.
    """
    return F.xxhash64(*(part for name in frame.columns for part in _hashed(frame, name)))


def _hashed(frame: DataFrame, name: str) -> tuple[Column, Column]:
    """Return what to hash of a column: Spark's hash skips nulls, and takes no maps or variants."""
    column = column_of(name)
    if isinstance(frame.schema[name].dataType, ArrayType | MapType | StructType | VariantType):
        return F.to_json(F.struct(column), _EXACT_JSON), column.isNull()
    return column, column.isNull()


def _type_of(what: str, argument: str, name: str, schema: StructType) -> DataType:
    if name not in schema.names:
        raise BadQuery(
            f"{what}: {argument}={name!r}: there is no such column; there are "
            f"{', '.join(schema.names)}. {NOTHING_WRITTEN}"
        )
    return schema[name].dataType


def check_plain(what: str, argument: str, name: str, schema: StructType) -> DataType:
    """Return the type of a key or sort column, which is a plain one, or refuse the column."""
    type_ = _type_of(what, argument, name, schema)
    if isinstance(type_, ArrayType | MapType | StructType | VariantType):
        raise BadQuery(
            f"{what}: {argument}={name!r} is of type {type_.simpleString()}: it must be a plain "
            f"value. {NOTHING_WRITTEN}"
        )
    return type_


def check_time(what: str, argument: str, name: str, schema: StructType) -> None:
    """Refuse a column that is not a timestamp; ``what`` is the function that was called."""
    type_ = _type_of(what, argument, name, schema)
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
    """Refuse a second watermark; ``what`` is the function that was called to set it."""
    if WATERMARK_KEY in schema[time].metadata:
        raise BadQuery(
            f"{what}: {time!r} has a watermark already, and can have only one: leave this one out, "
            f"or the one that is set before it. {NOTHING_WRITTEN}"
        )
