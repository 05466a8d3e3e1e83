"""The same sink at a scratch target, and what shows there: a registry by the sink's class.

A sink of your own is found here too if it brings two methods::

    def scratch(self, tag: str) -> Sink     the same sink at a target of its own, made empty here
    def shown(self) -> list[tuple]          every row that a reader of the target sees now

and, optionally: ``remove_scratch(self)``, which removes the target again; ``grows = True``, if rows
are added and never changed; ``atomic = True``, if an epoch shows at once. Without one of these two
it is compared at the end only.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Hashable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

from beadline.errors import BeadlineError, UsageError
from beadline.ids import QueryId
from beadline.verify.compare import SeenRow, SinkContents, rows_of
from beadline.verify.kafka_proxy import KafkaProxy
from beadline.verify.proxy import TcpProxy

FoundRows = Iterable[Sequence[Any]]
Proxy = TcpProxy | KafkaProxy
# For a server that is down: the sink's own timeouts are meant for a running job.
_TIMEOUT_MAX_S = 10.0


@dataclass(frozen=True)
class ScratchLocation:
    """Where a sink's scratch target is: no other, in any round, has this folder and tag."""

    folder: Path
    tag: str


@dataclass(frozen=True)
class ScratchStore:
    """How one kind of sink is cloned, read and removed; all by its settings, outside Spark.

    ``remove`` is told the query's name too: what a server remembers of it goes as well.

    ``key`` gives the key of a row, for sinks that keep the order of each. ``address`` says where
    the server is, ``proxy`` makes one for it, and ``through`` gives the sink with a proxy instead;
    ``no_cuts`` says why there is none. ``with_timeout`` gives the sink with a transaction timeout
    in seconds. ``no_watch`` says why what it shows during a run cannot be judged, if it neither
    grows nor is atomic.
    """

    clone: Callable[[Any, ScratchLocation], Any]
    shown: Callable[[Any], FoundRows]
    remove: Callable[[Any, str], None]
    grows: Callable[[Any], bool] = lambda sink: True
    atomic: Callable[[Any], bool] = lambda sink: False
    key: Callable[[SeenRow], Hashable] | None = None
    address: Callable[[Any], tuple[str, int] | None] = lambda sink: None
    proxy: Callable[[Any, tuple[str, int]], Proxy] = lambda sink, address: TcpProxy(
        address[1], target_host=address[0]
    )
    through: Callable[[Any, int], Any] = lambda sink, port: sink
    no_cuts: str = "it has no network between it and its target"
    with_timeout: Callable[[Any, float], Any] | None = None
    note: Callable[[Any], str] = lambda sink: ""
    no_watch: str = "its rows change, and an epoch of it does not show at once"


def store_of(name: str, sink: Any) -> ScratchStore:
    """The entry of a sink, or an error that names it and what it needs."""
    if callable(getattr(sink, "scratch", None)) and callable(getattr(sink, "shown", None)):
        return _OWN
    for each in type(sink).__mro__:
        entry = _registry().get(each.__name__)
        if entry is not None and each.__module__.startswith("beadline.sinks"):
            return entry
    kind = type(sink).__name__
    raise UsageError(
        f"sink {name!r} ({kind}) cannot be verified: Beadline does not know how to give it a "
        f"scratch target, or how to read it. Add two methods to {kind}, or to a subclass of it: "
        "scratch(self, tag), which returns the same sink at a target of its own, and shown(self), "
        "which returns the rows that a reader of it sees, as a list of tuples. Nothing was written."
    )


def shown(name: str, sink: Any) -> SinkContents:
    """What a reader of the sink's target sees now."""
    store = store_of(name, sink)
    rows = rows_of(store.shown(sink))
    order: dict[Hashable, list[SeenRow]] = defaultdict(list)
    if store.key is not None:
        for row in rows:
            key = store.key(row)
            if key is not None:
                order[key].append(row)
    return SinkContents(Counter(rows), {key: tuple(found) for key, found in order.items()})


def abort(name: str, sink: Any, query: QueryId) -> None:
    """Discard what a query has prepared, decided or not: its target is removed too."""
    with suppress(Exception):
        hasty = _hasty(sink)
        parts = list(hasty.in_doubt(query, name))
        if parts:
            hasty.abort(parts)


def remove(name: str, sink: Any, query_name: str) -> list[str]:
    """Remove the target of a sink; return what went wrong, without secrets."""
    try:
        store_of(name, sink).remove(sink, query_name)
    except Exception as error:  # noqa: BLE001 (whatever a client library raises)
        return [f"the scratch target of {name} ({sink.default_name}) is left: {plain(error)}"]
    return []


def plain(error: Exception) -> str:
    """An error of ours in full; of others only the class: their text may hold an address."""
    return str(error) if isinstance(error, BeadlineError) else type(error).__name__


def _hasty(sink: Any) -> Any:
    for field in fields(sink):
        if field.name == "timeout_s" and field.init:
            return replace(sink, timeout_s=min(sink.timeout_s, _TIMEOUT_MAX_S))
    return sink


def _registry() -> dict[str, ScratchStore]:
    """Made on demand: an entry imports its client library when it is used."""
    from beadline.verify import scratch_databases, scratch_files, scratch_kafka, scratch_keys

    return {
        "FileSink": scratch_files.FILES_STORE,
        "SqliteSink": scratch_files.SQLITE_STORE,
        "KafkaSink": scratch_kafka.KAFKA_STORE,
        "PostgresSink": scratch_databases.POSTGRES_STORE,
        "MySqlSink": scratch_databases.MYSQL_STORE,
        "RedisSink": scratch_keys.REDIS_STORE,
        "HBaseSink": scratch_keys.HBASE_STORE,
    }


_OWN = ScratchStore(
    clone=lambda sink, place: sink.scratch(place.tag),
    shown=lambda sink: sink.shown(),
    remove=lambda sink, query: getattr(sink, "remove_scratch", lambda: None)(),
    grows=lambda sink: bool(getattr(sink, "grows", False)),
    atomic=lambda sink: bool(getattr(sink, "atomic", False)),
    no_cuts="a sink of your own: its address is not known",
    no_watch="it says neither grows = True nor atomic = True",
)
