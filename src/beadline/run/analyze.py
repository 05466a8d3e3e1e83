"""What a stream promises, without starting it."""

from __future__ import annotations

import uuid
from typing import TYPE_CHECKING

from beadline.guarantee.judge import judge
from beadline.ids import QueryId
from beadline.run import checks
from beadline.run.facts import facts

if TYPE_CHECKING:
    from beadline.guarantee import Report
    from beadline.stream import Stream


def analyze(stream: Stream, restart_s: float | None = None) -> Report:
    """Judge a stream by its plan, its settings, and what the servers of its sinks say."""
    checks.check_stream(stream)
    query = QueryId(stream.name, uuid.uuid4().hex, "file:///nowhere")
    sinks = checks.bind(stream, query, refuse=False)
    return judge(facts(stream, sinks, restart_s))
