"""A table of TOML as the arguments of a constructor: its signature says which keys there are."""

from __future__ import annotations

import dataclasses
import functools
import inspect
import os
from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import Any, TypeVar, get_origin, get_type_hints

from beadline.errors import BeadlineError, UsageError
from beadline.jobs.document import NOTHING, Place, sentence
from beadline.jobs.values import OfSpark, convert, members

T = TypeVar("T")

# Arguments that are paths although their annotation says no more than that they are text.
_PATHS = ("path", "journal", "staging", "folder", "checkpoint")
_SPARK = "spark"  # the session: given by the job, not by the file


@dataclass(frozen=True)
class Argument:
    """One key of a table: the argument that it becomes."""

    name: str
    annotation: Any
    default: Any = inspect.Parameter.empty
    spread: bool = False  # a table whose own keys are arguments: ``**options``

    @property
    def required(self) -> bool:
        """Whether the key must be there."""
        return self.default is inspect.Parameter.empty and not self.spread

    def read(self, place: Place) -> Any:
        """Return the argument, from the value of its key."""
        value = convert(self.annotation, place)
        if not isinstance(value, str) or not (self._path_like or self.name in _PATHS):
            return value
        return place.resolve(value, uri=not self._path_like)

    @property
    def _path_like(self) -> bool:
        kinds = members(self.annotation)
        return any((get_origin(kind) or kind) is os.PathLike for kind in kinds)


@functools.lru_cache(maxsize=256)
def arguments_of(build: Callable[..., Any]) -> dict[str, Argument]:
    """Return what a function or class may be given, by its signature."""
    hints = _hints(build)
    found: dict[str, Argument] = {}
    for name, parameter in inspect.signature(build).parameters.items():
        if name.startswith("_") or name == _SPARK or parameter.kind is parameter.VAR_POSITIONAL:
            continue
        annotation = hints.get(name, Any)
        spread = parameter.kind is parameter.VAR_KEYWORD
        if spread:
            annotation = dict[str, annotation]  # type: ignore[valid-type]
        found[name] = Argument(name, annotation, parameter.default, spread)
    return found


def read_arguments(
    build: Callable[..., Any], table: Place, others: Collection[str] = ()
) -> dict[str, Any]:
    """Return the arguments that a table gives; ``others`` are keys that somebody else reads."""
    known = arguments_of(build)
    required = [each.name for each in known.values() if each.required]
    table.check_keys([*known, *others], required)
    found: dict[str, Any] = {}
    for name, argument in known.items():
        if name not in table or name in others:
            continue
        value = argument.read(table[name])
        found.update(value if argument.spread else {name: value})
    return found


def call(place: Place, build: Callable[..., T], *given: Any, **arguments: Any) -> T:
    """Call a constructor; what it refuses is told with the place of its table."""
    try:
        return build(*given, **arguments)
    except (BeadlineError, TypeError, ValueError, OverflowError) as error:
        kind = type(error) if isinstance(error, BeadlineError) else UsageError
        said = str(error)
        end = "" if NOTHING in said else f" {NOTHING}"
        raise kind(f"{place}: {sentence(said)}{end}") from error


def _hints(build: Callable[..., Any]) -> dict[str, Any]:
    """Return the annotations; some of their names only a type checker has imported."""
    import pyarrow as pa

    names = {"pa": pa, "SparkSession": OfSpark, "DataFrame": OfSpark, "StructType": OfSpark}
    names["KW_ONLY"] = object  # which Python 3.10 does not take for a type, and gives up
    described = build
    if isinstance(build, type) and not dataclasses.is_dataclass(build):
        described = build.__init__  # type: ignore[misc]
    try:
        return get_type_hints(described, localns=names)
    except (NameError, TypeError):  # a user's own, whose annotations are nobody's business
        return {}
