"""A table of TOML as the arguments of a constructor: its signature says which keys there are.

pydantic checks the values and makes the JSON schema. What it is given is the annotation as TOML
writes it (``in_toml``): a path is a string, a function ``"module:function"``, an object a table.
Its errors are translated into TOML's terms, with file, line and key. They never repeat a value,
which may be a secret, except a word where one of a few is allowed.
"""

from __future__ import annotations

import collections.abc
import dataclasses
import functools
import inspect
import os
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, replace
from datetime import timedelta
from types import GenericAlias, MappingProxyType, UnionType
from typing import Annotated, Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

from pydantic import (
    AfterValidator,
    BeforeValidator,
    ConfigDict,
    Field,
    PlainValidator,
    TypeAdapter,
    ValidationError,
)
from pydantic_core import PydanticCustomError
from typing_extensions import NotRequired, Required, TypedDict

from beadline.errors import NOTHING_WRITTEN, BeadlineError, UsageError
from beadline.jobs.document import TomlTable, TomlValue, nearest, sentence, toml_type
from beadline.jobs.environment import FromEnvironment, plain
from beadline.jobs.kinds import Kinds, nested, own

T = TypeVar("T")
typed_dict: Any = TypedDict  # its keys are known only when it is made

# Arguments that are paths although their annotation says no more than that they are text.
_PATHS = ("path", "journal", "staging", "folder", "checkpoint")
# Given by the job, not by the file: the session, and the object whose method it is.
_GIVEN = ("spark", "self")
_OwnName = Annotated[str, Field(pattern=r"^[\w.]+:\w+$")]  # what a user wrote: "module:name"
# What would be right, by pydantic's names of its errors and by ours.
_WANTED = {
    "string_type": "a string", "int_type": "a whole number", "float_type": "a number",
    "bool_type": "true or false", "literal_error": "a string", "list_type": "an array",
    "dict_type": "a table", "table": "a table", "function": 'a string "module:function"',
}  # fmt: skip


class OfSpark:
    """Stands for the classes of Spark in annotations; TOML has no such values."""


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

    @functools.cached_property
    def in_toml(self) -> Any:
        """What its value may be in TOML."""
        return in_toml(self.annotation)

    @property
    def field(self) -> Any:
        """The key in the type of a table, with its default for the JSON schema."""
        if self.required:
            return Required[self.in_toml]
        if not isinstance(self.default, bool | int | float | str) or self.default == "":
            return NotRequired[self.in_toml]
        default = Field(json_schema_extra={"default": self.default})
        return NotRequired[Annotated[self.in_toml, default]]

    def read(self, place: TomlValue) -> Any:
        """Return the argument, from the value of its key; raises with the place."""
        adapter = TypeAdapter(self.in_toml, config=ConfigDict(strict=True))
        try:
            value = adapter.validate_python(place.filled())
        except ValidationError as error:
            raise _problem(place, error) from None  # pydantic's text repeats the value
        if not isinstance(value, str) or not (self._path_like or self.name in _PATHS):
            return value
        return place.resolve(value, uri=not self._path_like)

    @property
    def _path_like(self) -> bool:
        kinds = members(self.annotation)
        return any((get_origin(kind) or kind) is os.PathLike for kind in kinds)


Fields = Mapping[str, Argument]


@functools.lru_cache(maxsize=256)
def arguments_of(build: Callable[..., Any]) -> dict[str, Argument]:
    """Return what a function or class may be given, by its signature."""
    hints = _hints(build)
    found: dict[str, Argument] = {}
    for name, parameter in inspect.signature(build).parameters.items():
        if name.startswith("_") or name in _GIVEN or parameter.kind is parameter.VAR_POSITIONAL:
            continue
        annotation = hints.get(name, Any)
        spread = parameter.kind is parameter.VAR_KEYWORD
        if spread:
            annotation = dict[str, annotation]  # type: ignore[valid-type]
        found[name] = Argument(name, annotation, parameter.default, spread)
    return found


def read_arguments(
    build: Callable[..., Any], table: TomlValue, others: Collection[str] = ()
) -> dict[str, Any]:
    """Return the arguments that a table gives; ``others`` are keys that are read elsewhere."""
    known = arguments_of(build)
    required = [each.name for each in known.values() if each.required]
    table.check_keys([*known, *others], required)
    return read_keys(build, table, [name for name in known if name not in others])


def read_keys(build: Callable[..., Any], table: TomlValue, keys: Iterable[str]) -> dict[str, Any]:
    """Return those of these arguments that a table gives."""
    found: dict[str, Any] = {}
    for name in keys:
        if name in table:
            argument = arguments_of(build)[name]
            value = argument.read(table[name])
            found.update(value if argument.spread else {name: value})
    return found


def call(place: TomlValue, build: Callable[..., T], *given: Any, **arguments: Any) -> T:
    """Call a constructor; its errors name the place of the table."""
    try:
        return build(*given, **arguments)
    except (BeadlineError, TypeError, ValueError, OverflowError) as error:
        kind = type(error) if isinstance(error, BeadlineError) else UsageError
        said = str(error)
        end = "" if NOTHING_WRITTEN in said else f" {NOTHING_WRITTEN}"
        raise kind(f"{place}: {sentence(said)}{end}") from error


def construct(table: TomlValue, kinds: Kinds, others: Collection[str] = ()) -> Any:
    """Return the object that a table describes: one of several kinds, or a user's own."""
    build = kinds.find(table)
    return call(table, build, **read_arguments(build, table, [kinds.key, *others]))


def members(annotation: Any) -> tuple[Any, ...]:
    """Return what an annotation allows, each by itself.

    ``None`` is a key that is left out, and a length of time is written as a string.
    """
    union = get_origin(annotation) in (Union, UnionType)
    each = get_args(annotation) if union else (annotation,)
    return tuple(
        kind
        for kind in each
        if kind not in (type(None), OfSpark, timedelta)
        and not str(getattr(kind, "__module__", "")).startswith("pyspark.")
    )


def union(kinds: Iterable[Any]) -> Any:
    """Return the union of annotations that are known only here."""
    return Union[tuple(kinds)]  # noqa: UP007


def in_toml(annotation: Any) -> Any:
    """Return an annotation as TOML writes its values, for pydantic."""
    kinds = members(annotation) or (OfSpark,)
    if len(kinds) > 1:
        # Where a string is as good, the text of a variable stays one.
        textual = str in kinds
        return union(kind if textual and kind in _PARSED else in_toml(kind) for kind in kinds)
    (kind,) = kinds
    origin, inner = get_origin(kind) or kind, get_args(kind) or (Any, Any)
    if kind is Any:
        return Annotated[Any, AfterValidator(plain)]
    if kind in _PARSED:
        return Annotated[kind, BeforeValidator(functools.partial(_parsed, kind))]
    if origin in (str, os.PathLike):
        return str
    if origin is Literal:
        return Annotated[kind, BeforeValidator(functools.partial(_choice, inner))]
    if origin in (list, tuple, collections.abc.Sequence):
        array = GenericAlias(list, (in_toml(inner[0]),))
        # The sinks take one column without brackets round it.
        return union([str, array]) if str in inner else array
    if origin in (dict, collections.abc.Mapping):
        keys, values = map(in_toml, inner)
        # The keys of TOML are text, also where numbers are wanted.
        return GenericAlias(dict, (Annotated[keys, BeforeValidator(FromEnvironment)], values))
    if origin is collections.abc.Callable:
        return Annotated[Any, PlainValidator(_function, json_schema_input_type=_OwnName)]
    tables: Any = Any  # a user's own class may be anything, and is in no schema
    kinds_of = nested(kind)
    if kinds_of is not None:
        tables = one_of(kinds_of)
    elif _is_ours(kind):
        tables = table_type(kind.__name__, kind, arguments_of(kind))
    read = functools.partial(_object, kind)
    return Annotated[Any, PlainValidator(read, json_schema_input_type=tables)]


def _is_ours(kind: Any) -> bool:
    return dataclasses.is_dataclass(kind) and str(kind.__module__).startswith("beadline.")


def one_of(kinds: Kinds, label: str = "", ours: Fields = MappingProxyType({}), **more: Any) -> Any:
    """Return the type of a table that is one of several kinds, distinguished by one of its keys.

    ``ours`` are further arguments in the same table, ``more`` are further keys and their types.
    """
    tables: list[Any] = []
    label = label or kinds.thing.replace(" ", "_")
    for word in kinds.known:
        build = kinds.named(word)
        theirs = arguments_of(build)
        # A key that both have may hold either's value.
        shared = {
            key: replace(theirs[key], annotation=union([mine.annotation, theirs[key].annotation]))
            for key, mine in ours.items()
            if key in theirs
        }
        tag = {kinds.key: Required[Literal[word]]}
        fields = {**ours, **theirs, **shared}
        tables.append(table_type(f"{word}_{label}", build, fields, **tag, **more))
    if not kinds.closed:
        own_table = typed_dict(f"own_{label}", {kinds.key: Required[_OwnName]})
        # Its other keys are its own: without this, it would forbid what the table around forbids.
        own_table.__pydantic_config__ = ConfigDict(extra="allow")
        tables.append(own_table)
    return union(tables)


def table_type(name: str, build: Callable[..., Any], fields: Fields, **more: Any) -> Any:
    """Return the type of a table with these arguments as keys, described as what it makes."""
    text = (inspect.getdoc(build) or "").partition("\n\n")[0]
    table = typed_dict(name, {**more, **{key: each.field for key, each in fields.items()}})
    table.__pydantic_config__ = ConfigDict(
        extra="forbid", json_schema_extra={"description": " ".join(text.split())}
    )
    return table


_PARSED = (int, float, bool)


def _parsed(kind: Any, value: Any) -> Any:
    """Variables are text; a number among them is read as one where a number is expected."""
    if not isinstance(value, FromEnvironment):
        return value
    try:
        return {"true": True, "false": False}[value.lower()] if kind is bool else kind(value)
    except (ValueError, KeyError):
        return value


def _choice(choices: tuple[Any, ...], value: Any) -> Any:
    if not isinstance(value, str):
        return value
    folded = {str(choice).casefold(): choice for choice in choices}
    if value.casefold() not in folded:
        hint = nearest(value, map(str, choices))
        raise ValueError(f"{str(value)!r} is not one of its values.{hint}")
    return folded[value.casefold()]


def _function(value: Any) -> Any:
    if not isinstance(value, str) or ":" not in value:
        raise PydanticCustomError("function", "not a function")
    return own(str(value))


def _object(kind: Any, value: Any) -> Any:
    """A table is an object: of one class, or of several, distinguished by its ``type``."""
    if isinstance(value, TomlTable):
        kinds = nested(kind)
        if kinds is not None:
            return construct(value.place, kinds)
        if dataclasses.is_dataclass(kind) and isinstance(kind, type):
            return call(value.place, kind, **read_arguments(kind, value.place))
    raise PydanticCustomError("table", "not a table")


def _problem(place: TomlValue, error: ValidationError) -> UsageError:
    """Translate the deepest error: of a union, that of the member that came closest."""
    found = [(_below(place, each["loc"]), each) for each in error.errors()]
    depth = max(len(at.path) for at, _ in found)
    at, first = next(each for each in found if len(each[0].path) == depth)
    if first["type"] == "value_error":
        return at.problem(str(first["ctx"]["error"]))
    here = [each for where, each in found if where.path == at.path]
    wanted = " or ".join(dict.fromkeys(_WANTED.get(each["type"], "another value") for each in here))
    if "[key]" in first["loc"]:
        return at.problem(f"the key must be {wanted}")
    what = toml_type(at.value)
    if isinstance(at.value, FromEnvironment):
        what += " from the environment that is not one"
    return at.problem(f"must be {wanted}, not {what}")


def _below(place: TomlValue, steps: tuple[int | str, ...]) -> TomlValue:
    """Follow pydantic's steps; those that are no keys name the member of a union."""
    for step in steps:
        if isinstance(place.value, list if isinstance(step, int) else dict) and (
            isinstance(step, int) or step in place.value
        ):
            place = place[step]
    return place


def _hints(build: Callable[..., Any]) -> dict[str, Any]:
    """Return the annotations; some of their names only a type checker has imported."""
    import pyarrow as pa

    names = {"pa": pa, "SparkSession": OfSpark, "DataFrame": OfSpark, "StructType": OfSpark}
    names["KW_ONLY"] = object  # which Python 3.10 does not take for a type, and gives up
    described = build
    # A subclass of a dataclass that is none itself may have an __init__ of its own.
    if isinstance(build, type) and not (
        "__dataclass_params__" in vars(build)
        or (dataclasses.is_dataclass(build) and "__init__" not in vars(build))
    ):
        described = build.__init__  # type: ignore[misc]
    try:
        return get_type_hints(described, localns=names)
    except (NameError, TypeError):  # a user's own class with annotations that cannot be resolved
        return {}
