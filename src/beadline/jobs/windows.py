"""``[windows.<view>]``: windows over a source; a view of their results, or a query of their own."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from beadline.event_time import Aggregate, Outputs, windowed
from beadline.jobs.arguments import Argument, arguments_of, call, construct, read_keys
from beadline.jobs.document import TomlValue, nearest, toml_type
from beadline.jobs.kinds import AGGREGATES
from beadline.jobs.sources import check_view
from beadline.outputs import LATE, MAIN

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

FROM, AGG = "from", "agg"
_FRAME = "frame"  # of ``windowed``: the view that ``from`` names
_COLUMN = "column"  # what an aggregate is of


@dataclass(frozen=True)
class WindowTable:
    """One table of windows, read, and not applied to its view yet."""

    view: str
    place: TomlValue
    of: str  # the view that is cut into windows
    arguments: dict[str, Any]
    aggregates: dict[str, Aggregate]

    @property
    def outputs(self) -> tuple[str, ...]:
        """What its rows are tagged with."""
        return (MAIN, LATE) if self.arguments.get("late") == "side" else (MAIN,)

    def apply(self, frame: DataFrame) -> Outputs:
        """Return the windows over a view."""
        rows = call(self.place, windowed, frame, **self.arguments)
        found: Outputs = call(self.place[AGG], rows.agg, **self.aggregates)
        return found


def window_arguments() -> dict[str, Argument]:
    """Return the keys of a table that are arguments of ``windowed``."""
    return {name: one for name, one in arguments_of(windowed).items() if name != _FRAME}


def read_windows(job: TomlValue, sources: Collection[str]) -> list[WindowTable]:
    """Return the windows of a job; each may be over a source, or over windows before it."""
    found: list[WindowTable] = []
    for place in job["windows"].table() if "windows" in job else ():
        views = [*sources, *(table.view for table in found)]
        found.append(_window(place.table(), views))
    return found


def _window(table: TomlValue, views: Collection[str]) -> WindowTable:
    check_view(table)
    if table.key in views:
        raise table.problem(f"there is a source {table.key!r} already, which has a view of it")
    keys = window_arguments()
    table.check_keys([FROM, AGG, *keys], [FROM, AGG])
    of = table[FROM]
    if of.value not in views:
        raise of.problem(f"there is no view {of.value!r}.{nearest(str(of.value), views)}")
    arguments = read_keys(windowed, table, keys)
    return WindowTable(table.key, table, of.value, arguments, _aggregates(table[AGG].table()))


def _aggregates(table: TomlValue) -> dict[str, Aggregate]:
    if not table.value:
        raise table.problem('it computes nothing: orders = "count", total = "sum:amount"')
    return {place.key: _aggregate(place) for place in table}


def _aggregate(place: TomlValue) -> Aggregate:
    """``"sum:amount"``, or a table with a ``type`` and that aggregate's other arguments."""
    found: Aggregate
    if isinstance(place.value, dict):
        found = construct(place, AGGREGATES)
        return found
    if not isinstance(place.value, str):
        raise place.problem(
            f'must be a string "sum:amount" or a table, not {toml_type(place.value)}'
        )
    word, colon, column = place.value.partition(":")
    if word not in AGGREGATES.known:
        hint = nearest(word, AGGREGATES.known)
        raise place.problem(f"there is no aggregate {word!r}.{hint}")
    build: Callable[..., Aggregate] = AGGREGATES.named(word)
    _check_arguments(place, word, column, arguments_of(build))
    return call(place, build, **({_COLUMN: column} if colon else {}))


def _check_arguments(
    place: TomlValue, word: str, column: str, known: Mapping[str, Argument]
) -> None:
    """Say what a string leaves out."""
    required = [name for name, one in known.items() if one.required]
    if required == [_COLUMN] and not column:
        raise place.problem(f"{word} is of a column: {word + ':amount'!r}")
    if set(required) - {_COLUMN}:
        keys = ", ".join(f"{name} = …" for name in required)
        raise place.problem(f'it needs more than a string says: {{ type = "{word}", {keys} }}')
