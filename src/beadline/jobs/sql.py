"""The SQL of a job file: parsed by Spark; its errors name the line in the file."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from beadline.errors import NOTHING_WRITTEN, UsageError
from beadline.jobs.document import TomlValue, nearest, sentence
from beadline.jobs.sources import EPOCH_VIEW, first_line
from beadline.spark.plan import nodes

if TYPE_CHECKING:
    from pyspark.errors import PySparkException
    from pyspark.sql import DataFrame, SparkSession

# Spark's words for a place in SQL: "(line 2, pos 7)" of its parser, "line 2 pos 7" of the rest.
_SQL_LINE = re.compile(r"line (\d+),? pos \d+")
# A key whose text begins on the next line.
_OPENED = re.compile(r"=\s*(\"\"\"|''')\s*\Z")
# What would be carried out at once, where a description is wanted.
_NOT_QUERIES = (
    "org.apache.spark.sql.catalyst.plans.logical.Command",
    "org.apache.spark.sql.catalyst.plans.logical.ParsedStatement",
)


def select(spark: SparkSession, sql: TomlValue, views: Iterable[str]) -> DataFrame:
    """Return the frame of one statement, which must be a query over a stream."""
    from pyspark.errors import PySparkException

    text = str(sql.value)
    try:
        _check_selects(spark, sql, text)
        frame = spark.sql(text)
        frame.schema  # noqa: B018 (Spark may look at the columns as late as here)
    except PySparkException as error:
        raise _with_line(sql, error, views) from error
    if not frame.isStreaming:
        raise sql.problem(f"it reads no source of this job. Its views are: {', '.join(views)}")
    return frame


def check_rows(frame: DataFrame, sql: TomlValue) -> None:
    """Try a sink's own SQL on no rows at all; they have the columns that an epoch will have."""
    from pyspark.errors import PySparkException

    session = frame.sparkSession
    try:
        _check_selects(session, sql, str(sql.value))
        rows = rows_of_epoch(str(sql.value), session.createDataFrame([], frame.schema))
    except PySparkException as error:
        raise _with_line(sql, error, [EPOCH_VIEW]) from error
    if rows.isStreaming:
        raise sql.problem(f"a sink's own SQL reads the view {EPOCH_VIEW!r}, and no source")


def rows_of_epoch(sql: str, frame: DataFrame) -> DataFrame:
    """Run a sink's own SQL on one epoch's rows."""
    session = frame.sparkSession
    frame.createOrReplaceTempView(EPOCH_VIEW)
    try:
        return session.sql(sql)
    finally:
        session.catalog.dropTempView(EPOCH_VIEW)


def _check_selects(spark: SparkSession, sql: TomlValue, text: str) -> None:
    """Spark carries out a command as soon as it sees it; here nothing may be written yet."""
    jvm: Any = spark.sparkContext._jvm
    plan = spark._jsparkSession.sessionState().sqlParser().parsePlan(text)
    loader = jvm.java.lang.Thread.currentThread().getContextClassLoader()
    for name in _NOT_QUERIES:
        command = jvm.java.lang.Class.forName(name, False, loader)
        if any(command.isInstance(node) for node in nodes(plan)):
            raise sql.problem("it must be a SELECT: a query describes rows, and does nothing else")


def _with_line(sql: TomlValue, error: PySparkException, views: Iterable[str]) -> UsageError:
    """Return Spark's error with the line of the file, and suggest the right view."""
    reason = sentence(first_line(error))
    found = _SQL_LINE.search(str(error))
    line = sql.line + _first_line_below(sql) + int(found[1]) - 1 if found else sql.line
    parameters = error.getMessageParameters() or {}
    hint = ""
    if "relationName" in parameters:
        name = parameters["relationName"].replace("`", "")
        reason = f"there is no view {name!r}."
        hint = nearest(name, views)
    where = f"{sql.document.path}:{line}: {'.'.join(k for k in sql.path if isinstance(k, str))}"
    return UsageError(f"{where}: {reason}{hint} {NOTHING_WRITTEN}")


def _first_line_below(sql: TomlValue) -> int:
    '''Return 1 if the statement begins below its key, after ``"""`` at the end of the line.'''
    line = sql.document.text.split("\n")[sql.line - 1]
    return int(_OPENED.search(line) is not None)
