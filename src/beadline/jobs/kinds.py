"""What the words of a job file stand for: ``type = "kafka"`` is a function or a class.

Each word leads to ``module:name``, imported when it is asked for, so that a job needs nothing that
only another sink needs. A user's own are written in the same way, ``type = "shop.sinks:TillSink"``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib import import_module
from typing import Any

from beadline.jobs.document import TomlValue, nearest


@dataclass(frozen=True)
class Kinds:
    """The kinds of one thing: what it is called, the key that says which, and where they are."""

    thing: str
    known: Mapping[str, str]
    key: str = "type"
    bases: tuple[str, ...] = ()  # the classes that a user's own must be of
    closed: bool = False  # there can be no user's own

    def find(self, table: TomlValue) -> Callable[..., Any]:
        """Return what a table's ``type`` stands for."""
        table.check_keys(table.value, [self.key])
        place = table[self.key]
        if not isinstance(place.value, str):
            raise place.problem(f"must be a string, the kind of {self.thing}")
        if ":" in place.value and not self.closed:
            return self._own(place)
        if place.value not in self.known:
            hint = nearest(place.value, self.known)
            raise place.problem(f"there is no {self.thing} {place.value!r}.{hint}")
        return self.named(place.value)

    def named(self, word: str) -> Callable[..., Any]:
        """Return what a word stands for."""
        found: Callable[..., Any] = imported(self.known[word])
        return found

    def _own(self, place: TomlValue) -> Callable[..., Any]:
        try:
            found = own(place.value)
        except ValueError as error:
            raise place.problem(str(error)) from error
        bases = tuple(imported(base) for base in self.bases)
        if bases and not (isinstance(found, type) and issubclass(found, bases)):
            wanted = " or ".join(self.bases)
            raise place.problem(f"{place.value} is not a {self.thing}: a class on {wanted}")
        return found


def imported(text: str) -> Any:
    """Return what ``module:name`` names."""
    module, _, name = text.partition(":")
    return getattr(import_module(module), name)


def own(text: str) -> Callable[..., Any]:
    """Return what a user wrote: ``module:name``, in a module that lies beside the job file."""
    try:
        found = imported(str(text))
    except (ImportError, AttributeError, ValueError) as error:
        raise ValueError(f"{str(text)!r} cannot be imported: {error}") from error
    if not callable(found):
        raise ValueError(f"{str(text)!r} is not a function or a class")
    called: Callable[..., Any] = found
    return called


_SOURCES = "beadline.sources"
_SINKS = "beadline.sinks"

SOURCES = Kinds(
    "source",
    {name: f"{_SOURCES}:{name}" for name in ("files", "journaled", "kafka", "rate", "socket")},
)
SINKS = Kinds(
    "sink",
    {
        "console": f"{_SINKS}:ConsoleSink",
        "files": f"{_SINKS}:FileSink",
        "hbase": f"{_SINKS}:HBaseSink",
        "kafka": f"{_SINKS}:KafkaSink",
        "memory": f"{_SINKS}:MemorySink",
        "mysql": f"{_SINKS}:MySqlSink",
        "postgres": f"{_SINKS}:PostgresSink",
        "redis": f"{_SINKS}:RedisSink",
        "sqlite": f"{_SINKS}:SqliteSink",
        "write_ahead": f"{_SINKS}:WriteAheadSink",
    },
    bases=("beadline.sink:Sink", "beadline.sink:FrameSink"),
)
RESTARTS = Kinds(
    "restart strategy",
    {
        "none": "beadline.jobs.restart:NoRestart",
        "fixed-delay": "beadline.jobs.restart:FixedDelay",
        "exponential-backoff": "beadline.jobs.restart:ExponentialBackoff",
    },
    key="strategy",
    closed=True,
)
_TIME = "beadline.event_time"
# What a window computes; in a string, "sum:amount" is a word and the column that it is of.
AGGREGATES = Kinds(
    "aggregate",
    {
        "approx_distinct": f"{_TIME}:approx_distinct",
        "avg": f"{_TIME}:avg_of",
        "collect": f"{_TIME}:collect_of",
        "count": f"{_TIME}:count",
        "first": f"{_TIME}:first_of",
        "last": f"{_TIME}:last_of",
        "max": f"{_TIME}:max_of",
        "min": f"{_TIME}:min_of",
        "quantiles": f"{_TIME}:quantiles",
        "sum": f"{_TIME}:sum_of",
    },
    bases=(f"{_TIME}:Aggregate",),
)
JOINS = Kinds(
    "join",
    {name: f"{_TIME}:{name}_join" for name in ("interval", "lookup", "temporal", "window")},
    closed=True,
)
# Arguments that are objects are tables with a type of their own, by the class that is wanted.
NESTED: Mapping[str, Kinds] = {
    "beadline.event_time.keyed:KeyedProcess": Kinds(
        "process", {}, bases=(f"{_TIME}:KeyedProcess",)
    ),
    "beadline.sources.journal.receivers:Receiver": Kinds(
        "receiver",
        {"socket": f"{_SOURCES}:SocketReceiver"},
        bases=("beadline.sources:Receiver",),
    ),
    "beadline.sinks.write_ahead.endpoint:Endpoint": Kinds(
        "endpoint",
        {"http": f"{_SINKS}.write_ahead:HttpEndpoint"},
        bases=("beadline.sinks.write_ahead:Endpoint",),
    ),
}


def nested(wanted: Any) -> Kinds | None:
    """Return the kinds of a class that an argument takes, if its values are tables."""
    return NESTED.get(f"{getattr(wanted, '__module__', '')}:{getattr(wanted, '__qualname__', '')}")
