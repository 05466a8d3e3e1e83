"""A TOML job file, opened: everything that can be wrong without Spark has been looked at."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from beadline.environment.jars import CONNECTORS
from beadline.errors import NOTHING_WRITTEN, BeadlineError, UsageError
from beadline.jobs.arguments import construct
from beadline.jobs.document import TomlValue, read
from beadline.jobs.environment import Environment, plain
from beadline.jobs.kinds import RESTARTS
from beadline.jobs.loading import Job, JobFile, PlannedQuery, make_importable
from beadline.jobs.queries import QueryTable, read_queries
from beadline.jobs.restart import NoRestart
from beadline.jobs.sources import SourceTable, read_sources
from beadline.jobs.views import JOINED, OPERATORS, ComputedView, read_views
from beadline.outputs import MAIN, Outputs
from beadline.shared.options import option_text

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

TABLES = ("spark", "sources", *OPERATORS, JOINED, "query", "queries", "restart")
_SPARK = "spark."


@dataclass(frozen=True)
class TomlJob(JobFile):
    """A job of one or more queries over the same sources."""

    sources: list[SourceTable] = field(default_factory=list)
    views: list[ComputedView] = field(default_factory=list)
    tables: list[QueryTable] = field(default_factory=list)
    environment: Environment = field(default_factory=Environment, repr=False)

    @property
    def several(self) -> bool:
        """Whether it has more than one query."""
        return len(self.tables) > 1

    def load(self) -> Job:
        """Return the only query, for callers that can take no more than one."""
        if self.several:
            names = ", ".join(table.settings.name for table in self.tables)
            raise UsageError(
                f"{self.path} has several queries ({names}): give one. {NOTHING_WRITTEN}"
            )
        settings = self.tables[0].settings
        return Job(
            self.path,
            lambda spark: self.plan(spark)[0].stream,
            settings.checkpoint,
            settings.every,
            settings.available_now,
            settings.output_mode,
        )

    def plan(self, spark: SparkSession) -> list[PlannedQuery]:
        """Return the queries, unstarted."""
        with self._views(spark) as views:
            return [self._planned(table, spark, views) for table in self.tables]

    def redact(self, text: str) -> str:
        """Take the values of environment variables out of a text."""
        return self.environment.redact(text)

    @contextmanager
    def _views(self, spark: SparkSession) -> Iterator[dict[str, Outputs]]:
        """Make the views while the SQL is read; a frame has its plan by then."""
        made: dict[str, Outputs] = {}
        try:
            for source in self.sources:
                made[source.view] = Outputs.of(source.frame(spark))
                made[source.view].frame.createOrReplaceTempView(source.view)
            for computed in self.views:
                made[computed.view] = outputs = computed.apply(made)
                if MAIN in outputs.names:
                    outputs.streaming().createOrReplaceTempView(computed.view)
            yield made
        finally:
            for view in made:
                spark.catalog.dropTempView(view)

    def _planned(
        self, table: QueryTable, spark: SparkSession, views: Mapping[str, Outputs]
    ) -> PlannedQuery:
        settings = table.settings
        return PlannedQuery(
            stream=table.stream(spark, views),
            where=str(table.place),
            checkpoint=settings.checkpoint,
            every=settings.every,
            available_now=settings.available_now,
            output_mode=settings.output_mode,
            drop=tuple(settings.drop),
            keep=settings.retention,
            options={name: option_text(value) for name, value in settings.options.items()},
        )


def open_toml(path: Path) -> TomlJob:
    """Read a TOML job file; raises ``UsageError`` with line, key and what to put right."""
    environment = Environment()
    job = read(path, environment)
    make_importable(str(job.document.folder))
    try:
        job.check_keys(TABLES)
        sources = read_sources(job)
        types = {source.place["type"].value for source in sources}
        views = read_views(job, [source.view for source in sources])
        outputs = {source.view: (MAIN,) for source in sources}
        tables = read_queries(job, outputs | {view.view: view.outputs for view in views})
        restart = NoRestart()
        if "restart" in job:
            restart = construct(job["restart"].table(), RESTARTS)
        lacking = (str(table.place) for table in tables if not table.settings.checkpoint)
        return TomlJob(
            path=path,
            conf=_settings(job["spark"].table()) if "spark" in job else {},
            connectors=tuple(sorted(types & set(CONNECTORS))),
            restart=restart,
            sources=sources,
            views=views,
            no_checkpoint=next(lacking, None),
            tables=tables,
            environment=environment,
        )
    except BeadlineError as error:
        said = environment.redact(str(error))
        if said == str(error):
            raise
        # Not "from error": its text holds the value that was just taken out.
        raise type(error)(said) from None


def _settings(table: TomlValue) -> dict[str, Any]:
    """Spark's settings by their own names: in ``[spark]``, ``driver.memory = "2g"``."""
    found: dict[str, Any] = {}
    for place in table:
        if isinstance(place.value, dict):
            below = _settings(place)
            key = str(place.path[-1])
            found.update({_joined(place, key, name): value for name, value in below.items()})
        elif isinstance(place.value, str | int | float):
            found[str(place.path[-1])] = plain(place.value)
        else:
            raise place.problem("a setting of Spark is a string, a number, true or false")
    if table.path != ("spark",):
        return found
    return {n if n.startswith(_SPARK) else f"{_SPARK}{n}": value for n, value in found.items()}


def _joined(place: TomlValue, key: str, name: str) -> str:
    if name.startswith(_SPARK):
        raise place.problem(f"the setting {name} must stand right under [spark]")
    return f"{key}.{name}"
