"""The JSON schema of job files, for editors: made from the constructors that the file's keys go to.

An editor that knows ``#:schema URL`` at the top of a TOML file completes keys and marks mistakes.
"""

from __future__ import annotations

import collections.abc
import dataclasses
import inspect
import os
from collections.abc import Callable, Mapping
from typing import Any, Literal, get_args, get_origin

from beadline.jobs.arguments import Argument, arguments_of
from beadline.jobs.kinds import RESTARTS, SINKS, SOURCES, Kinds, nested
from beadline.jobs.queries import QueryWords
from beadline.jobs.sinks import DEAD_LETTER, SinkWords
from beadline.jobs.sources import Shaping
from beadline.jobs.values import members

Schema = dict[str, Any]

_VARIABLE: Schema = {"$ref": "#/definitions/variable"}
# What an environment variable may stand for.
_WORDS: dict[Any, str] = {int: "integer", float: "number", bool: "boolean"}
_OWN = r"^[\w.]+:\w+$"


def schema() -> Schema:
    """Return the whole of it."""
    query = _table(QueryWords, arguments_of(QueryWords))
    query["properties"]["sinks"] = {"type": "array", "items": {"$ref": "#/definitions/sink"}}
    query["properties"]["sinks"]["minItems"] = 1
    query["required"] = [*query["required"], "sinks"]
    return {
        "$schema": "http://json-schema.org/draft-07/schema#",
        "title": "A job of Beadline",
        "description": "Sources, SQL over them as views, and sinks: beadline run job.toml",
        "type": "object",
        "additionalProperties": False,
        "required": ["sources"],
        "oneOf": [{"required": ["query"]}, {"required": ["queries"]}],
        "properties": {
            "spark": {
                "type": "object",
                "description": 'Settings of Spark, without "spark." before them.',
            },
            "sources": {
                "type": "object",
                "description": "Each becomes a view of its name.",
                "minProperties": 1,
                "additionalProperties": {"$ref": "#/definitions/source"},
            },
            "query": {"$ref": "#/definitions/query"},
            "queries": {"type": "array", "minItems": 1, "items": {"$ref": "#/definitions/query"}},
            "restart": _one_of(RESTARTS, {}),
        },
        "definitions": {
            "query": query,
            "source": _one_of(SOURCES, arguments_of(Shaping)),
            "sink": _one_of(
                SINKS, arguments_of(SinkWords), {DEAD_LETTER: {"$ref": "#/definitions/dead_letter"}}
            ),
            "dead_letter": _one_of(SINKS, {}),
            "variable": {"type": "string", "pattern": r"\$\{"},
            **{word: {"anyOf": [{"type": word}, _VARIABLE]} for word in _WORDS.values()},
        },
    }


def _one_of(
    kinds: Kinds, ours: Mapping[str, Argument], more: Mapping[str, Schema] | None = None
) -> Schema:
    """Return a table that is one of several kinds, which one of its keys tells apart."""
    choices = []
    for word in kinds.known:
        build = kinds.named(word)
        choice = _table(build, {**ours, **arguments_of(build)})
        for key in ours:
            if key in arguments_of(build):  # the two share a key, told apart by what stands there
                both = (ours[key].annotation, arguments_of(build)[key].annotation)
                kinds_of = [kind for each in both for kind in members(each)]
                choice["properties"][key] = _any_of([_value(each) for each in kinds_of])
        tag = {kinds.key: {"const": word}}
        choice["properties"] = {**tag, **choice["properties"], **(more or {})}
        choice["required"] = [kinds.key, *choice["required"]]
        choices.append(choice)
    if not kinds.closed:
        own = {kinds.key: {"type": "string", "pattern": _OWN}}
        choices.append({"type": "object", "properties": own, "required": [kinds.key]})
    return {"oneOf": choices}


def _table(build: Callable[..., Any], arguments: Mapping[str, Argument]) -> Schema:
    text = (inspect.getdoc(build) or "").partition("\n\n")[0]
    return {
        "type": "object",
        "description": " ".join(text.split()),
        "additionalProperties": False,
        "properties": {name: _property(each) for name, each in arguments.items()},
        "required": [name for name, each in arguments.items() if each.required],
    }


def _property(argument: Argument) -> Schema:
    found = _any_of([_value(kind) for kind in members(argument.annotation)])
    default = argument.default
    if isinstance(default, bool | int | float | str) and default != "":
        # Beside a reference nothing else is read.
        found = {"allOf": [found]} if "$ref" in found else found
        found = {**found, "default": default}
    return found


def _any_of(choices: list[Schema]) -> Schema:
    different = [each for n, each in enumerate(choices) if each not in choices[:n]]
    return different[0] if len(different) == 1 else {"anyOf": different}


def _value(kind: Any) -> Schema:
    origin = get_origin(kind) or kind
    if origin in _PLAIN:
        return dict(_PLAIN[origin])
    if origin is Literal:
        return {"anyOf": [{"enum": list(get_args(kind))}, _VARIABLE]}
    if origin in (list, tuple, collections.abc.Sequence):
        items = _property(Argument("", get_args(kind)[0]))
        array = {"type": "array", "items": items}
        return {"anyOf": [{"type": "string"}, array]} if str in get_args(kind) else array
    if origin in (dict, collections.abc.Mapping):
        values = _property(Argument("", get_args(kind)[1]))
        return {"type": "object", "additionalProperties": values}
    kinds = nested(kind)
    if kinds is not None:
        return _one_of(kinds, {})
    if dataclasses.is_dataclass(kind) and isinstance(kind, type):
        return _table(kind, arguments_of(kind))
    return {}


_PLAIN: dict[Any, Schema] = {
    str: {"type": "string"},
    os.PathLike: {"type": "string"},
    **{kind: {"$ref": f"#/definitions/{word}"} for kind, word in _WORDS.items()},
    collections.abc.Callable: {"type": "string", "pattern": _OWN},
}
