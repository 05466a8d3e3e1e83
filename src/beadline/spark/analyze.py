"""What a stream promises, and whether it may be started; neither check writes anything."""

from __future__ import annotations

import uuid
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from beadline.errors import NOTHING_WRITTEN, BadSetting, CheckpointProblem
from beadline.files import qualify
from beadline.guarantee.judge import judge
from beadline.guarantee.options import check_options
from beadline.ids import QueryId
from beadline.spark import checks
from beadline.spark.checkpoint import planned_sources
from beadline.spark.facts import facts, sources
from beadline.spark.state import check_store

if TYPE_CHECKING:
    from pyspark.sql.streaming.readwriter import DataStreamWriter

    from beadline.guarantee import Report
    from beadline.sink import BoundSink
    from beadline.stream import StartSettings, Stream


@dataclass(frozen=True)
class Checked:
    """A stream with no known reason to refuse its start."""

    checkpoint: str
    sinks: list[BoundSink]
    writer: DataStreamWriter


def analyze(
    stream: Stream,
    restart_s: float | None = None,
    checkpoint: str | None = None,
    options: Mapping[str, str] | None = None,
) -> Report:
    """Judge a stream by its plan, its settings, and what the servers of its sinks say.

    The report also includes other reasons for a start to refuse it, as far as they are known here.
    """
    checks.check_stream(stream)
    query = QueryId(stream.name, uuid.uuid4().hex, "file:///nowhere")
    sinks = checks.bind(stream, query, refuse=False)
    problems = tuple(_problems(stream, checkpoint, options or {}))
    return replace(judge(facts(stream, sinks, restart_s)), problems=problems)


def _problems(stream: Stream, checkpoint: str | None, options: Mapping[str, str]) -> Iterator[str]:
    """Yield what breaks a rule of the protocol, whatever the level; nothing is executed."""
    try:
        checks.check_settings(stream, dict(options))
    except BadSetting as error:
        yield str(error)
    try:
        _check_sources(stream)
    except BadSetting as error:
        yield str(error)
    try:
        if checkpoint is not None:
            checks.check_rule(qualify(checkpoint), stream.mode)
            check_store(stream.frame, qualify(checkpoint), stream.name)
    except BadSetting as error:
        yield str(error)


def _check_sources(stream: Stream) -> None:
    """No source may have a misspelt option, whichever way the frame was made."""
    for seen in sources(stream.frame):
        check_options(seen.name, seen.options, seen.part)


def _check_number_of_sources(stream: Stream, checkpoint: str) -> None:
    """Spark identifies sources by their order, and would report a mismatch only after our claim."""
    before, now = planned_sources(checkpoint), sum(1 for _ in sources(stream.frame))
    if before is not None and before != now:
        raise CheckpointProblem(
            f"query {stream.name!r} reads {now} sources, and checkpoint {checkpoint} was written "
            f"by one that reads {before}: Spark identifies sources by their order, and cannot "
            "continue from there. An input with idle= counts as two. Restore the query as it was, "
            f"or start with a new checkpoint. {NOTHING_WRITTEN}"
        )


def check_start(stream: Stream, settings: StartSettings) -> Checked:
    """Run all checks that a start runs before it writes; raise at the first problem."""
    checks.check_stream(stream)
    checks.check_settings(stream, settings.options)
    _check_sources(stream)
    checkpoint = qualify(settings.checkpoint)
    checks.check_files(checkpoint, stream.mode)
    _check_number_of_sources(stream, checkpoint)
    check_store(stream.frame, checkpoint, stream.name)
    sinks = checks.bind(stream, QueryId(stream.name, uuid.uuid4().hex, checkpoint))
    checks.refuse_weak(judge(facts(stream, sinks)))
    return Checked(checkpoint, sinks, checks.writer(stream, settings, checkpoint))
