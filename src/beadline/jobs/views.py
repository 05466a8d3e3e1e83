"""Views that a job computes of others: windows, joins, rows without duplicates, keyed processes.

Each is a table, ``[windows.<view>]`` or ``[joins.<view>]``, whose keys are the arguments of the
function of `beadline.event_time`; where that takes a frame, the file names a view. SQL sees the
result as a view too, and a query can send all of its outputs to sinks.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from beadline.errors import NOTHING_WRITTEN, UsageError
from beadline.event_time import Aggregate, WindowedRows, deduplicated, keyed_process, windowed
from beadline.jobs.arguments import (
    Argument,
    arguments_of,
    call,
    construct,
    read_arguments,
    read_keys,
)
from beadline.jobs.document import TomlValue, nearest, toml_type
from beadline.jobs.kinds import AGGREGATES, JOINS
from beadline.jobs.sources import check_view, first_line
from beadline.outputs import LATE, MAIN, Outputs

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

WINDOWS, JOINED = "windows", "joins"
# Tables of one kind each; a join says in its ``type`` which one it is.
OPERATORS: Mapping[str, Callable[..., Any]] = {
    WINDOWS: windowed,
    "deduplicated": deduplicated,
    "processes": keyed_process,
}
FROM, AGG, TOP = "from", "agg", "top"
# The arguments that are frames, and the keys that name their views.
_FRAMES = {"frame": FROM, "left": "left", "right": "right"}
_COLUMN = "column"  # what an aggregate is of


@dataclass(frozen=True)
class ComputedView:
    """One table, read, and not applied to its views yet."""

    view: str
    place: TomlValue
    build: Callable[..., Any]
    inputs: dict[str, TomlValue]  # by argument: where the file names the view
    arguments: dict[str, Any]

    @property
    def outputs(self) -> tuple[str, ...]:
        """The outputs that sinks can be given."""
        named = self.arguments.get("outputs")
        names = tuple(named) if isinstance(named, Mapping) else (MAIN,)
        return (*names, LATE) if self.arguments.get("late") == "side" else names

    def apply(self, views: Mapping[str, Outputs]) -> Outputs:
        """Return what is computed of the views."""
        from pyspark.errors import PySparkException

        frames = {name: views[place.value].streaming() for name, place in self.inputs.items()}
        try:
            return self.result(frames)
        except PySparkException as error:
            raise UsageError(
                f"{self.place}: Spark refuses it: {first_line(error)} {NOTHING_WRITTEN}"
            ) from error

    def result(self, frames: Mapping[str, DataFrame]) -> Outputs:
        """Return what is computed of frames."""
        made = call(self.place, self.build, **frames, **self.arguments)
        return made if isinstance(made, Outputs) else Outputs.of(made)


@dataclass(frozen=True)
class WindowTable(ComputedView):
    """Windows, and what is computed of each: aggregates, or the top rows."""

    aggregates: dict[str, Aggregate] = field(default_factory=dict)
    top: dict[str, Any] | None = None

    def result(self, frames: Mapping[str, DataFrame]) -> Outputs:
        """Return the results of windows."""
        rows: WindowedRows = call(self.place, self.build, **frames, **self.arguments)
        if self.top is not None:
            return call(self.place[TOP], rows.top, **self.top)
        return call(self.place[AGG], rows.agg, **self.aggregates)


def keys_of(build: Callable[..., Any]) -> dict[str, Argument]:
    """Return the keys of a table, with the names of views where the function takes frames."""
    return {
        _FRAMES.get(name, name): Argument(_FRAMES[name], str) if name in _FRAMES else one
        for name, one in arguments_of(build).items()
    }


def read_views(job: TomlValue, sources: Sequence[str]) -> list[ComputedView]:
    """Return the computed views of a job, each after those that it is computed of."""
    found: dict[str, ComputedView] = {}
    for place in _tables(job):
        check_view(place)
        if place.key in sources:
            raise place.problem(f"there is a source {place.key!r} already, which has a view of it")
        if place.key in found:
            line = found[place.key].place.line
            raise place.problem(f"there is a view {place.key!r} already, in line {line}")
        found[place.key] = _view(place)
    for view in found.values():
        for place in view.inputs.values():
            _check_input(place, [*sources, *found])
    return _in_order(found, sources)


def _tables(job: TomlValue) -> Iterator[TomlValue]:
    for kind in (*OPERATORS, JOINED):
        for place in job[kind].table() if kind in job else ():
            yield place.table()


def _view(table: TomlValue) -> ComputedView:
    kind = str(table.path[0])
    build = JOINS.find(table) if kind == JOINED else OPERATORS[kind]
    keys = keys_of(build)
    others = [JOINS.key] if kind == JOINED else [AGG, TOP] if kind == WINDOWS else []
    table.check_keys([*others, *keys], [name for name, one in keys.items() if one.required])
    inputs = {name: table[key] for name, key in _FRAMES.items() if name in arguments_of(build)}
    rest = [name for name in arguments_of(build) if name not in _FRAMES]
    view = ComputedView(table.key, table, build, inputs, read_keys(build, table, rest))
    return _windows(view) if kind == WINDOWS else view


def _windows(view: ComputedView) -> WindowTable:
    table = view.place
    if (AGG in table) == (TOP in table):
        what = "take agg or top, not both" if AGG in table else f"the key {AGG!r} is missing"
        raise (table[TOP] if AGG in table else table).problem(
            f"{what}: what is computed of each window, or its top rows"
        )
    aggregates = _aggregates(table[AGG].table()) if AGG in table else {}
    top = read_arguments(WindowedRows.top, table[TOP].table()) if TOP in table else None
    return WindowTable(**vars(view), aggregates=aggregates, top=top)


def _check_input(place: TomlValue, views: Sequence[str]) -> None:
    if not isinstance(place.value, str):
        raise place.problem(f"must be a string, the name of a view, not {toml_type(place.value)}")
    if place.value not in views:
        raise place.problem(f"there is no view {place.value!r}.{nearest(place.value, views)}")


def _in_order(views: Mapping[str, ComputedView], sources: Sequence[str]) -> list[ComputedView]:
    ordered: dict[str, ComputedView] = {}
    while len(ordered) < len(views):
        known = {*sources, *ordered}
        waiting = [view for name, view in views.items() if name not in ordered]
        ready = [
            view for view in waiting if all(one.value in known for one in view.inputs.values())
        ]
        if not ready:
            names = ", ".join(view.view for view in waiting)
            raise waiting[0].place.problem(f"these views are computed of each other: {names}")
        ordered.update({view.view: view for view in ready})
    return list(ordered.values())


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
