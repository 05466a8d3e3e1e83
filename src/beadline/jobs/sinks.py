"""``[[queries.sinks]]``: any class of ``beadline.sinks``, with what ``.to()`` takes beside it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Literal

from beadline.jobs.arguments import arguments_of, call, construct, read_keys
from beadline.jobs.document import TomlValue
from beadline.jobs.kinds import SINKS
from beadline.jobs.sql import rows_of_epoch
from beadline.outputs import MAIN
from beadline.sink import AnySink

if TYPE_CHECKING:
    from beadline.stream import Stream

DEAD_LETTER = "dead_letter"

Level = Literal["exactly-once", "at-least-once", "at-most-once"]


@dataclass(frozen=True)
class SinkSettings:
    """What a sink's table says beside the arguments of the sink itself, as ``.to()`` does.

    ``rows`` is SQL over the view ``epoch``, which holds the rows of one epoch. ``output`` is one of
    the outputs of windows, such as ``late``.
    """

    name: str | None = None
    rows: str | None = None
    output: str = MAIN
    allow: Level | None = None
    shared_disk: bool = False


@dataclass(frozen=True)
class SinkTable:
    """One sink of a query, made and not connected yet."""

    place: TomlValue
    sink: AnySink
    settings: SinkSettings
    dead_letter: AnySink | None

    def add(self, stream: Stream) -> Stream:
        """Return the stream with this sink."""
        rows = self.settings.rows
        return call(
            self.place,
            stream.to,
            self.sink,
            rows=None if rows is None else partial(rows_of_epoch, rows),
            output=self.settings.output,
            name=self.settings.name,
            allow=self.settings.allow,
            shared_disk=self.settings.shared_disk,
            dead_letter=self.dead_letter,
        )


def read_sinks(query: TomlValue) -> list[SinkTable]:
    """Return the sinks of a query."""
    found = [_sink(table) for table in query["sinks"].tables()] if "sinks" in query else []
    if not found:
        raise query.problem("a query needs a sink: add a table [[queries.sinks]] under it")
    return found


def own_keys(build: Callable[..., Any], table: dict[str, Any]) -> list[str]:
    """Return the keys that are for ``.to()`` and not for the sink.

    A few sinks have arguments of the same names: those come first, but SQL is never theirs.
    """
    taken, ours = arguments_of(build), arguments_of(SinkSettings)
    sql = isinstance(table.get("rows"), str)
    return [key for key in ours if key not in taken or (key == "rows" and sql)]


def _sink(table: TomlValue) -> SinkTable:
    keys = own_keys(SINKS.find(table), table.value)
    sink: AnySink = construct(table, SINKS, [DEAD_LETTER, *keys])
    settings = SinkSettings(**read_keys(SinkSettings, table, keys))
    dead_letter = construct(table[DEAD_LETTER].table(), SINKS) if DEAD_LETTER in table else None
    return SinkTable(table, sink, settings, dead_letter)
