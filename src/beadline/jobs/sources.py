"""``[sources.<view>]``: each is a stream that SQL sees as a view of that name."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from beadline.errors import NOTHING_WRITTEN, UsageError
from beadline.event_time import watermark
from beadline.jobs.arguments import arguments_of, call, read_arguments, read_keys
from beadline.jobs.document import TomlValue
from beadline.jobs.kinds import SOURCES

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

EPOCH_VIEW = "epoch"  # the rows of one epoch, in the SQL of a sink


@dataclass(frozen=True)
class Watermark:
    """How late a row may come, by the time in one of its columns.

    With ``idle``, a source that brings nothing for that long no longer holds the others back.
    """

    column: str
    delay: str
    idle: str | None = None


@dataclass(frozen=True)
class Shaping:
    """What a source's table says beside the arguments of the source itself.

    ``columns`` are SQL expressions; without them the view has the source's own columns. The
    ``watermark`` is by a column of the view.
    """

    columns: list[str] | None = None
    watermark: Watermark | None = None


@dataclass(frozen=True)
class SourceTable:
    """One source, read and checked, and not opened yet."""

    view: str
    place: TomlValue
    build: Callable[..., DataFrame]
    arguments: dict[str, Any]
    shaping: Shaping

    def frame(self, spark: SparkSession) -> DataFrame:
        """Open the source, and shape it; nothing is read yet."""
        from pyspark.errors import PySparkException

        frame = call(self.place, self.build, spark, **self.arguments)
        step = self.place
        try:
            if self.shaping.columns is not None:
                step = self.place["columns"]
                frame = frame.selectExpr(*self.shaping.columns)
            if self.shaping.watermark is not None:
                step = self.place["watermark"]
                mark = self.shaping.watermark
                frame = call(
                    *(step, watermark, frame, mark.column, mark.delay),
                    idle=mark.idle,
                    name=self.view,
                )
                frame.schema  # noqa: B018 (asks Spark whether it has that column)
        except PySparkException as error:
            raise UsageError(
                f"{step}: Spark refuses it: {first_line(error)} {NOTHING_WRITTEN}"
            ) from error
        return frame


def read_sources(job: TomlValue) -> list[SourceTable]:
    """Return the sources of a job."""
    if "sources" not in job or not job["sources"].table().value:
        raise job.problem(
            "a job needs a source: a table [sources.orders] makes the view orders, over which its "
            "SQL is written"
        )
    return [_source(each.table()) for each in job["sources"]]


def _source(table: TomlValue) -> SourceTable:
    check_view(table)
    build = SOURCES.find(table)
    ours = [key for key in arguments_of(Shaping) if key not in arguments_of(build)]
    arguments = read_arguments(build, table, [SOURCES.key, *ours])
    shaping = Shaping(**read_keys(Shaping, table, ours))
    return SourceTable(table.key, table, build, arguments, shaping)


def check_view(table: TomlValue) -> None:
    """Refuse a table whose key cannot name a view."""
    view = table.key
    if not view.isidentifier():
        raise table.problem(f"{view!r} cannot name a view: letters, digits and '_', no digit first")
    if view == EPOCH_VIEW:
        raise table.problem(f"{view!r} is what a sink's own SQL calls the rows of one epoch")


def first_line(error: BaseException) -> str:
    """Return Spark's sentence without the plan and the Java stack that may follow."""
    text = str(error).strip().splitlines()
    return text[0].partition(" SQLSTATE:")[0] if text else type(error).__name__
