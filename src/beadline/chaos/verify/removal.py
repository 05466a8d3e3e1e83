"""Taking scratch targets away again; what could not be removed is named, and nobody dies of it.

A round may end in the midst of an epoch (``--fail-fast``, Ctrl-C, a start that failed), and what is
prepared then locks its table: it is thrown away first.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

from beadline.chaos.verify import scratch
from beadline.chaos.verify.task import SECRET
from beadline.errors import BeadlineError
from beadline.ids import QueryId

# For a server that is away: the sink's own patience is meant for a job that runs.
_TIMEOUT_MAX_S = 10.0


def abort(name: str, sink: Any, query: QueryId) -> None:
    """Throw away what a query has prepared, decided or not: its target is going too."""
    with suppress(Exception):
        hasty = _hasty(sink)
        parts = list(hasty.in_doubt(query, name))
        if parts:
            hasty.abort(parts)


def remove(name: str, sink: Any, query_name: str) -> list[str]:
    """Remove the target of a sink; what went wrong comes back in words, without a secret."""
    try:
        scratch.store_of(name, sink).remove(sink, query_name)
    except Exception as error:  # noqa: BLE001 (whatever a client library raises)
        return [f"the scratch target of {name} ({sink.default_name}) is left: {plain(error)}"]
    return []


def forget_secrets(folder: Path, redact: Callable[[str], str]) -> None:
    """Take passwords out of what ``--keep`` leaves: messages in full, logs by the job's own."""
    for name in SECRET:
        for path in folder.rglob(name):
            path.unlink()
    for log in folder.rglob("*.log"):
        text = log.read_text("utf-8", "replace")
        said = redact(text)
        if said != text:
            log.write_text(said, "utf-8")


def plain(error: Exception) -> str:
    """An error of ours in full; of another only its kind: its text may hold an address."""
    return str(error) if isinstance(error, BeadlineError) else type(error).__name__


def _hasty(sink: Any) -> Any:
    for field in fields(sink):
        if field.name == "timeout_s" and field.init:
            return replace(sink, timeout_s=min(sink.timeout_s, _TIMEOUT_MAX_S))
    return sink
