"""``[[queries]]``: one statement of SQL over the views, its sinks, and how it is started."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

from beadline.ids import check_name
from beadline.jobs.arguments import call, read_arguments
from beadline.jobs.document import TomlValue
from beadline.jobs.sinks import Level, SinkTable, read_sinks
from beadline.jobs.sql import check_rows, select
from beadline.stream import Stream, at_least_once, exactly_once

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

FUNCTIONS = {"exactly_once": exactly_once, "at_least_once": at_least_once}


@dataclass(frozen=True)
class QuerySettings:
    """The keys of a query, but for its sinks. ``retention`` is ``start(keep=…)``."""

    name: str
    sql: str = field(repr=False)
    function: Literal["exactly_once", "at_least_once"] = "exactly_once"
    allow: Level | None = None
    checkpoint: str | None = None
    every: str | None = None
    available_now: bool = False
    output_mode: Literal["append", "update", "complete"] = "append"
    retention: int = 100
    drop: list[str] = field(default_factory=list)
    options: dict[str, str | int | float | bool] = field(default_factory=dict, repr=False)


@dataclass(frozen=True)
class QueryTable:
    """One query, read and checked as far as that goes without Spark."""

    place: TomlValue
    settings: QuerySettings
    sinks: list[SinkTable]

    def stream(self, spark: SparkSession, views: Iterable[str]) -> Stream:
        """Return the unstarted stream; the views must be there."""
        frame = select(spark, self.place["sql"], views)
        function = FUNCTIONS[self.settings.function]
        stream = call(self.place, function, frame, self.settings.name, allow=self.settings.allow)
        for sink in self.sinks:
            if sink.settings.rows is not None:
                check_rows(frame, sink.place["rows"])
            stream = sink.add(stream)
        return stream


def read_queries(job: TomlValue) -> list[QueryTable]:
    """Return the queries of a job: ``[query]``, or ``[[queries]]``."""
    if ("query" in job) == ("queries" in job):
        what = "both [query] and [[queries]]: take one" if "query" in job else "no [[queries]]"
        raise job.problem(f"this job has {what}")
    tables = [job["query"].table()] if "query" in job else job["queries"].tables()
    if not tables:
        raise job["queries"].problem("this job has no query")
    found = [_query(table) for table in tables]
    for key in ("name", "checkpoint"):
        _check_different(found, key)
    return found


def _query(table: TomlValue) -> QueryTable:
    settings = QuerySettings(**read_arguments(QuerySettings, table, ["sinks"]))
    call(table["name"], check_name, "query", settings.name)
    if settings.every is not None and settings.available_now:
        raise table["available_now"].problem("take every or available_now, not both")
    if settings.retention < 1:
        raise table["retention"].problem("it is a number of records of the log, 1 or more")
    return QueryTable(table, settings, read_sinks(table))


def _check_different(queries: list[QueryTable], key: str) -> None:
    seen: dict[str, QueryTable] = {}
    for query in queries:
        value = getattr(query.settings, key)
        if value is not None and value in seen:
            other = seen[value].place[key].line
            raise query.place[key].problem(f"the query of line {other} has the same {key}")
        seen[value] = query
