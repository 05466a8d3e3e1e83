"""The sinks, one module or package per system; a name is imported when it is first used.

So ``from beadline.sinks import SqliteSink`` needs nothing that only another sink needs.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from beadline.sinks.console import ConsoleSink
    from beadline.sinks.files.sink import FileSink
    from beadline.sinks.hbase import HBaseSink
    from beadline.sinks.kafka import KafkaSink
    from beadline.sinks.memory import MemorySink
    from beadline.sinks.mysql import MySqlSink
    from beadline.sinks.postgres import PostgresSink
    from beadline.sinks.redis import RedisSink
    from beadline.sinks.sqlite.sink import SqliteSink
    from beadline.sinks.write_ahead import WriteAheadSink

__all__ = [
    "ConsoleSink",
    "FileSink",
    "HBaseSink",
    "KafkaSink",
    "MemorySink",
    "MySqlSink",
    "PostgresSink",
    "RedisSink",
    "SqliteSink",
    "WriteAheadSink",
]

_HOME = {
    "ConsoleSink": "console",
    "FileSink": "files",
    "HBaseSink": "hbase",
    "KafkaSink": "kafka",
    "MemorySink": "memory",
    "MySqlSink": "mysql",
    "PostgresSink": "postgres",
    "RedisSink": "redis",
    "SqliteSink": "sqlite",
    "WriteAheadSink": "write_ahead",
}


def __getattr__(name: str) -> Any:
    """Import a sink by its name."""
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(f"{__name__}.{_HOME[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    """List the sinks, imported or not."""
    return sorted({*globals(), *__all__})
