"""Rows of the state, read with Spark's own data source for it (``statestore``).

Nothing is written: Spark copies what it needs to a local folder of its own. A driver may continue
meanwhile, as what is read is the state after one epoch that is complete, and Spark keeps a hundred
of them.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

from pyspark.errors import PySparkException
from pyspark.sql import functions as F
from pyspark.sql.types import BinaryType, LongType, StructType

from beadline.errors import CheckpointProblem, UsageError
from beadline.files import open_files, qualify
from beadline.state.backend import CHANGELOG, HDFS_BACKED, backend_of, session_settings
from beadline.state.metadata import JOIN, StateOperator, read_operators

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

BUCKET_KEY = "beadline_bucket"  # what the state of Beadline's own operators is keyed by
TIMERS = "timers"
SIDES = ("left", "right")
_EXPIRES = "expiration_timestamp_ms"  # of a timer


def names_of(operator: StateOperator) -> tuple[str, ...]:
    """Return what can be read of an operator: its variables, the sides of a join, its timers."""
    if operator.name == JOIN:
        return SIDES
    names = tuple(one.name for one in operator.variables if not one.internal)
    return (*names, TIMERS) if operator.has_timers else names


def read_state(
    spark: SparkSession,
    checkpoint: str,
    operator: int = 0,
    variable: str | None = None,
    *,
    epoch: int | None = None,
    raw: bool = False,
) -> DataFrame:
    """Return the state of an operator as rows: its keys, then its values.

    ``variable`` is one of those that the operator has: of a ``transformWithState`` a variable or
    ``timers``, of a join ``left`` or ``right``; it can be left out where there is only one. It is
    the state after the newest epoch that is complete, or after ``epoch``. Structs are spread out
    into columns, and the times that Beadline's operators keep as numbers are shown as timestamps,
    unless ``raw``.

    >>> read_state(spark, "/data/counts", variable="open").show()
    """
    uri = qualify(checkpoint)
    files = open_files(uri, patient=False)
    found = find_operator(read_operators(files, uri, epoch), operator, uri)
    name = _chosen(found, variable, uri)
    # For variables Spark's reader opens a store for writing and takes that back: with a changelog
    # it would begin a file in the checkpoint for it.
    conf = {CHANGELOG: "false", **backend_of(files, uri).settings(HDFS_BACKED)}
    _ = spark.streams  # the source asks for what Spark makes with it
    reader = spark.read.format("statestore").option("operatorId", str(operator))
    if epoch is not None:
        reader = reader.option("batchId", str(epoch))
    if found.name == JOIN:
        reader = reader.option("joinSide", name)
    elif name == TIMERS and found.has_timers:
        reader = reader.option("readRegisteredTimers", "true")
    elif found.transforms:
        reader = reader.option("stateVarName", name)
    try:
        with session_settings(spark, conf):  # the source takes them when it is made
            rows = reader.load(uri)
    except PySparkException as error:
        reason = str(error).strip().splitlines()[0]
        raise CheckpointProblem(
            f"checkpoint {uri}: the state of operator {operator} cannot be read: {reason} "
            "Nothing was changed."
        ) from error
    return rows if raw else readable(rows)


def find_operator(
    operators: tuple[StateOperator, ...], number: int, checkpoint: str
) -> StateOperator:
    """Return one operator, or raise with those that there are."""
    for one in operators:
        if one.number == number:
            return one
    if not operators:
        raise UsageError(f"checkpoint {checkpoint} holds no state: its query has none.")
    there = ", ".join(f"{one.number} ({one.name})" for one in operators)
    raise UsageError(f"checkpoint {checkpoint} has no operator {number}; it has {there}.")


def _chosen(operator: StateOperator, variable: str | None, checkpoint: str) -> str:
    names = names_of(operator)
    if variable is None and len(names) == 1:
        return names[0]
    if variable not in names:
        what = "has several variables" if variable is None else f"has no variable {variable!r}"
        raise UsageError(
            f"checkpoint {checkpoint}: operator {operator.number} ({operator.name}) {what}; "
            f"choose one of {', '.join(names)}."
        )
    return variable


def readable(rows: DataFrame) -> DataFrame:
    """Return rows of the state source as a person wants to see them."""
    key = rows.schema["key"].dataType
    ours = isinstance(key, StructType) and BUCKET_KEY in key.names
    shown: dict[str, Column] = {}
    for name in rows.columns:
        for inner, column in _spread(rows.schema, name, ours):
            # A key and a value may have columns of one name.
            shown[f"{name}_{inner}" if inner in shown else inner] = column
    for name in (BUCKET_KEY, "partition_id"):  # which say least, so they come last
        if name in shown:
            shown[name] = shown.pop(name)
    return rows.select(*(column.alias(name) for name, column in shown.items()))


def _spread(schema: StructType, name: str, ours: bool) -> Iterator[tuple[str, Column]]:
    """Yield a column, or the columns in it if it is a struct."""
    type_ = schema[name].dataType
    if name == _EXPIRES:
        yield "expires_at", F.timestamp_millis(F.col(name))
        return
    if not isinstance(type_, StructType):
        yield name, F.col(f"`{name}`")
        return
    for field in type_:
        if ours and isinstance(field.dataType, BinaryType):
            continue  # what orders keys in the store: a hash, and the times that are shown beside
        column = F.col(f"`{name}`.`{field.name}`")
        if ours and _is_time(field.name) and isinstance(field.dataType, LongType):
            unit = F.timestamp_micros if field.name.endswith("_us") else F.timestamp_millis
            yield _without_unit(field.name), unit(column)
        else:
            yield field.name, column


def _is_time(name: str) -> bool:
    return name.endswith(("_us", "_ms"))


def _without_unit(name: str) -> str:
    """Return the name of a time that is shown as a timestamp."""
    return {"start_us": "window_start", "end_us": "window_end"}.get(name, name[:-3])


def matching(rows: DataFrame, wanted: Mapping[str, str]) -> DataFrame:
    """Return the rows in which columns, shown as texts, have these values."""
    for name, value in wanted.items():
        if name not in rows.columns:
            raise UsageError(f"there is no column {name!r}; there are {', '.join(rows.columns)}.")
        rows = rows.where(F.col(f"`{name}`").cast("string") == value)
    return rows


def parse_key(text: str) -> tuple[str, str]:
    """Read ``column=value``.

    >>> parse_key("shop=Berlin")
    ('shop', 'Berlin')
    """
    match = re.fullmatch(r"([^=]+)=(.*)", text, re.DOTALL)
    if match is None:
        raise UsageError(f"--key {text!r}: a column and a value are needed, such as shop=Berlin.")
    return match[1], match[2]
