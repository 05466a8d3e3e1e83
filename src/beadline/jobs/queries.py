"""``[[queries]]``: SQL over the views or one whole view, its sinks, and how it is started."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

from beadline.decisions import KEEP_DEFAULT
from beadline.ids import check_name
from beadline.jobs.arguments import call, read_arguments
from beadline.jobs.document import TomlValue, nearest
from beadline.jobs.sinks import Level, SinkTable, read_sinks
from beadline.jobs.sql import check_rows, select
from beadline.outputs import LATE, MAIN, Outputs
from beadline.stream import Stream, at_least_once, exactly_once

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

FUNCTIONS = {"exactly_once": exactly_once, "at_least_once": at_least_once}


@dataclass(frozen=True)
class QuerySettings:
    """The keys of a query, but for its sinks. ``retention`` is ``start(keep=…)``.

    Its rows are those of one ``SELECT`` over the views, ``sql``, or all outputs of one ``view``.
    """

    name: str
    sql: str | None = field(default=None, repr=False)
    view: str | None = None
    function: Literal["exactly_once", "at_least_once"] = "exactly_once"
    allow: Level | None = None
    checkpoint: str | None = None
    every: str | None = None
    available_now: bool = False
    output_mode: Literal["append", "update", "complete"] = "append"
    retention: int = KEEP_DEFAULT
    drop: list[str] = field(default_factory=list)
    options: dict[str, str | int | float | bool] = field(default_factory=dict, repr=False)


@dataclass(frozen=True)
class QueryTable:
    """One query, read and checked as far as that goes without Spark."""

    place: TomlValue
    settings: QuerySettings
    sinks: list[SinkTable]

    def stream(self, spark: SparkSession, views: Mapping[str, Outputs]) -> Stream:
        """Return the unstarted stream; the views must be there, by their names."""
        if self.settings.view is None:
            outputs = Outputs.of(select(spark, self.place["sql"], views))
        else:
            outputs = views[self.settings.view]
        function = FUNCTIONS[self.settings.function]
        stream = call(self.place, function, outputs, self.settings.name, allow=self.settings.allow)
        for sink in self.sinks:
            if sink.settings.rows is not None:
                check_rows(outputs.streaming(sink.settings.output), sink.place["rows"])
            stream = sink.add(stream)
        return stream


def read_queries(job: TomlValue, views: Mapping[str, Sequence[str]]) -> list[QueryTable]:
    """Return the queries of a job, ``[query]`` or ``[[queries]]``; ``views`` have these outputs."""
    if ("query" in job) == ("queries" in job):
        what = "both [query] and [[queries]]: take one" if "query" in job else "no [[queries]]"
        raise job.problem(f"this job has {what}")
    tables = [job["query"].table()] if "query" in job else job["queries"].tables()
    if not tables:
        raise job["queries"].problem("this job has no query")
    found = [_query(table, views) for table in tables]
    for key in ("name", "checkpoint"):
        _check_different(found, key)
    return found


def _query(table: TomlValue, views: Mapping[str, Sequence[str]]) -> QueryTable:
    settings = QuerySettings(**read_arguments(QuerySettings, table, ["sinks"]))
    call(table["name"], check_name, "query", settings.name)
    if settings.every is not None and settings.available_now:
        raise table["available_now"].problem("take every or available_now, not both")
    if settings.retention < 1:
        raise table["retention"].problem("it is a number of records of the log, 1 or more")
    sinks = read_sinks(table)
    _check_rows_of(table, settings, views, sinks)
    return QueryTable(table, settings, sinks)


def _check_rows_of(
    table: TomlValue,
    settings: QuerySettings,
    views: Mapping[str, Sequence[str]],
    sinks: list[SinkTable],
) -> None:
    """A query is SQL or a view, and its sinks take the outputs that it has."""
    if settings.sql is None and settings.view is None:
        raise table.problem("the key 'sql' is missing, or 'view' where one view is all of it")
    if settings.sql is not None and settings.view is not None:
        raise table["view"].problem("take sql or view, not both")
    if settings.view is not None and settings.view not in views:
        hint = nearest(settings.view, views)
        raise table["view"].problem(f"there is no view {settings.view!r}.{hint}")
    there = (MAIN,) if settings.view is None else views[settings.view]
    for sink in sinks:
        if sink.settings.output not in there:
            hint = nearest(sink.settings.output, there)
            if sink.settings.output == LATE:
                hint = ' Late rows are an output of a view with late = "side", not of SQL.'
            wrong = sink.place["output"]
            raise wrong.problem(f"this query has no output {sink.settings.output!r}.{hint}")


def _check_different(queries: list[QueryTable], key: str) -> None:
    seen: dict[str, QueryTable] = {}
    for query in queries:
        value = getattr(query.settings, key)
        if value is not None and value in seen:
            other = seen[value].place[key].line
            raise query.place[key].problem(f"the query of line {other} has the same {key}")
        seen[value] = query
