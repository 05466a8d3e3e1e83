"""A value of TOML as what an annotation asks for, or an error that says what would be right.

No value is ever repeated in an error, but for words that stand where one of a few is wanted: it may
be a secret.
"""

from __future__ import annotations

import collections.abc
import dataclasses
import os
import types
from collections.abc import Callable
from typing import Any, Literal, Union, get_args, get_origin

from beadline.jobs.document import Place, nearest, word_for
from beadline.jobs.environment import FromEnvironment, plain
from beadline.jobs.kinds import nested, own


class OfSpark:
    """Stands for the classes of Spark in annotations; TOML has no such values."""


class _No:
    """What a reader answers to a value that is not its own."""


_NO = _No()
_Reader = Callable[[Any, Place], Any]


def members(annotation: Any) -> tuple[Any, ...]:
    """Return what an annotation allows, each by itself; ``None`` is a key that is left out."""
    union = get_origin(annotation) in (Union, types.UnionType)
    each = get_args(annotation) if union else (annotation,)
    return tuple(kind for kind in each if kind not in (type(None), OfSpark))


def convert(annotation: Any, place: Place) -> Any:
    """Return the value as the annotation wants it; raises with the place otherwise."""
    kinds = members(annotation)
    for kind in kinds:
        found = _reader(kind)(kind, place)
        if found is not _NO:
            return found
    if isinstance(place.value, FromEnvironment):
        for kind in kinds:
            found = _parsed(kind, str(place.value))
            if found is not _NO:
                return found
    wanted = " or ".join(dict.fromkeys(word_of(kind) for kind in kinds))
    given = word_for(place.value)
    if isinstance(place.value, FromEnvironment):
        given += " from the environment that is none"
    raise place.problem(f"must be {wanted}, not {given}")


def word_of(kind: Any) -> str:
    """Return what a value of this kind is called in TOML."""
    plain_words = {
        str: "a string", int: "a whole number", float: "a number", bool: "true or false",
        os.PathLike: "a string", collections.abc.Callable: 'a string "module:function"',
        collections.abc.Sequence: "an array", list: "an array", tuple: "an array",
        collections.abc.Mapping: "a table", dict: "a table", Literal: "a string",
    }  # fmt: skip
    return plain_words.get(get_origin(kind) or kind, "a table")


def _reader(kind: Any) -> _Reader:
    return _READERS.get(get_origin(kind) or kind, _table)


def _string(kind: Any, place: Place) -> Any:
    return str(place.value) if isinstance(place.value, str) else _NO


def _exact(kind: Any, place: Place) -> Any:
    return place.value if type(place.value) is kind else _NO


def _number(kind: Any, place: Place) -> Any:
    return float(place.value) if type(place.value) in (int, float) else _NO


def _anything(kind: Any, place: Place) -> Any:
    if isinstance(place.value, dict | list):
        return plain(_filled(place))
    return plain(place.value)


def _filled(place: Place) -> Any:
    """The values below have their variables filled in when they are asked for."""
    if isinstance(place.value, dict):
        return {key: _filled(place[key]) for key in place.value}
    if isinstance(place.value, list):
        return [_filled(each) for each in place]
    return place.value


def _choice(kind: Any, place: Place) -> Any:
    if not isinstance(place.value, str):
        return _NO
    choices = {str(choice).casefold(): choice for choice in get_args(kind)}
    if place.value.casefold() in choices:
        return choices[place.value.casefold()]
    hint = nearest(place.value, map(str, get_args(kind)))
    raise place.problem(f"{str(place.value)!r} is none of its values.{hint}")


def _sequence(kind: Any, place: Place) -> Any:
    if isinstance(place.value, str):  # the sinks take one column without brackets round it
        return str(place.value) if str in get_args(kind) else _NO
    if not isinstance(place.value, list):
        return _NO
    return [convert(get_args(kind)[0], each) for each in place]


def _mapping(kind: Any, place: Place) -> Any:
    if not isinstance(place.value, dict):
        return _NO
    keys, values = get_args(kind)
    found = {}
    for name in place.value:
        key = name if keys is str else _parsed(keys, name)
        if key is _NO:
            raise place[name].problem(f"the key must be {word_of(keys)}")
        found[key] = convert(values, place[name])
    return found


def _function(kind: Any, place: Place) -> Any:
    return own(place) if isinstance(place.value, str) and ":" in place.value else _NO


def _table(kind: Any, place: Place) -> Any:
    """A table is an object: of one class, or of several, which its ``type`` tells apart."""
    from beadline.jobs.arguments import call, read_arguments

    if not isinstance(place.value, dict):
        return _NO
    kinds = nested(kind)
    if kinds is not None:
        build = kinds.find(place)
        return call(place, build, **read_arguments(build, place, [kinds.key]))
    if dataclasses.is_dataclass(kind) and isinstance(kind, type):
        return call(place, kind, **read_arguments(kind, place))
    return _NO


_READERS: dict[Any, _Reader] = {
    Any: _anything,
    str: _string,
    os.PathLike: _string,
    int: _exact,
    bool: _exact,
    float: _number,
    Literal: _choice,
    list: _sequence,
    tuple: _sequence,
    collections.abc.Sequence: _sequence,
    dict: _mapping,
    collections.abc.Mapping: _mapping,
    collections.abc.Callable: _function,
}


def _parsed(kind: Any, text: str) -> Any:
    """Variables are text; a number among them is read as one where a number is wanted."""
    if kind is bool:
        return {"true": True, "false": False}.get(text.lower(), _NO)
    if kind not in (int, float):
        return _NO
    try:
        return kind(text)
    except ValueError:
        return _NO
