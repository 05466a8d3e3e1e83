"""The sinks, one file or folder per system; a name is imported when it is first asked for.

So that ``from beadline.sinks import SqliteSink`` needs nothing that only another sink needs.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from beadline.sinks.console import ConsoleSink
    from beadline.sinks.files import FileSink
    from beadline.sinks.kafka import KafkaSink
    from beadline.sinks.memory import MemorySink
    from beadline.sinks.sqlite import SqliteSink
    from beadline.sinks.two_phase import TwoPhaseCommitSink

__all__ = [
    "ConsoleSink",
    "FileSink",
    "KafkaSink",
    "MemorySink",
    "SqliteSink",
    "TwoPhaseCommitSink",
]

_HOME = {
    "ConsoleSink": "console",
    "FileSink": "files",
    "KafkaSink": "kafka",
    "MemorySink": "memory",
    "SqliteSink": "sqlite",
    "TwoPhaseCommitSink": "two_phase",
}


def __getattr__(name: str) -> Any:
    """Import the module of a sink's name."""
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(f"{__name__}.{_HOME[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    """The sinks, imported or not."""
    return sorted({*globals(), *__all__})
