"""The JSON schema of job files, for editors: made from the constructors that the file's keys go to.

An editor that knows ``#:schema URL`` at the top of a TOML file completes keys and marks mistakes.
"""

from __future__ import annotations

from collections.abc import Callable
from types import GenericAlias
from typing import Annotated, Any, Literal

from pydantic import Field, TypeAdapter
from pydantic.json_schema import GenerateJsonSchema, JsonSchemaValue
from pydantic_core import core_schema
from typing_extensions import NotRequired, Required

from beadline.event_time import WindowedRows
from beadline.jobs.arguments import arguments_of, one_of, table_type, typed_dict, union
from beadline.jobs.kinds import AGGREGATES, JOINS, RESTARTS, SINKS, SOURCES
from beadline.jobs.queries import QuerySettings
from beadline.jobs.sinks import DEAD_LETTER, SinkSettings
from beadline.jobs.sources import Shaping
from beadline.jobs.views import AGG, JOINED, OPERATORS, TOP, WINDOWS, keys_of

_VARIABLE = {"type": "string", "pattern": r"\$\{"}


class _WithVariables(GenerateJsonSchema):
    """Takes a variable of the environment where a number or one of a few words is wanted."""

    def int_schema(self, schema: core_schema.IntSchema) -> JsonSchemaValue:
        return {"anyOf": [super().int_schema(schema), _VARIABLE]}

    def float_schema(self, schema: core_schema.FloatSchema) -> JsonSchemaValue:
        return {"anyOf": [super().float_schema(schema), _VARIABLE]}

    def bool_schema(self, schema: core_schema.BoolSchema) -> JsonSchemaValue:
        return {"anyOf": [super().bool_schema(schema), _VARIABLE]}

    def literal_schema(self, schema: core_schema.LiteralSchema) -> JsonSchemaValue:
        found = super().literal_schema(schema)
        return {"anyOf": [found, _VARIABLE]} if "enum" in found else found

    def field_title_should_be_set(self, schema: Any) -> bool:
        """Keys are their own titles."""
        return False


def _window_keys() -> dict[str, Any]:
    """Return the keys of windows beside the arguments of ``windowed``."""
    words = "|".join(AGGREGATES.known)
    word = Annotated[str, Field(pattern=rf"^({words})(:.+)?$")]
    aggregates = GenericAlias(dict, (str, union([word, one_of(AGGREGATES)])))
    top = table_type("top", WindowedRows.top, arguments_of(WindowedRows.top))
    return {AGG: NotRequired[Annotated[aggregates, Field(min_length=1)]], TOP: NotRequired[top]}


def _views(some: Callable[..., Any]) -> dict[str, Any]:
    """Return the tables of computed views."""
    found: dict[str, Any] = {}
    for name, build in OPERATORS.items():
        more = _window_keys() if name == WINDOWS else {}
        label = "window" if name == WINDOWS else build.__name__
        found[name] = table_type(label, build, keys_of(build), **more)
    found[JOINED] = union(
        table_type(f"{word}_join", build, keys_of(build), type=Required[Literal[word]])
        for word, build in ((word, JOINS.named(word)) for word in JOINS.known)
    )
    text = "Each becomes a view of its name."
    return {name: NotRequired[some(dict, (str, one), text)] for name, one in found.items()}


def schema() -> dict[str, Any]:
    """Return the whole of it."""

    def some(kind: Any, each: Any, text: str | None = None) -> Any:
        return Annotated[GenericAlias(kind, each), Field(min_length=1, description=text)]

    dead_letter = {DEAD_LETTER: NotRequired[one_of(SINKS, DEAD_LETTER)]}
    sink = one_of(SINKS, "sink", arguments_of(SinkSettings), **dead_letter)
    sinks = {"sinks": Required[some(list, (sink,))]}
    query = table_type("query", QuerySettings, arguments_of(QuerySettings), **sinks)
    views = (str, one_of(SOURCES, "source", arguments_of(Shaping)))
    spark = Field(description='Settings of Spark, without "spark." before them.')
    keys = {
        "spark": NotRequired[Annotated[dict[str, Any], spark]],
        "sources": Required[some(dict, views, "Each becomes a view of its name.")],
        **_views(some),
        "query": NotRequired[query],
        "queries": NotRequired[some(list, (query,))],
        "restart": NotRequired[one_of(RESTARTS)],
    }
    job = typed_dict("job", keys)
    made = TypeAdapter(job).json_schema(
        schema_generator=_WithVariables, ref_template="#/definitions/{model}"
    )
    definitions = made.pop("$defs")
    definitions["query"]["oneOf"] = [{"required": ["sql"]}, {"required": ["view"]}]
    definitions["window"]["oneOf"] = [{"required": [AGG]}, {"required": [TOP]}]
    return {
        **made,
        "$schema": "http://json-schema.org/draft-07/schema#",
        "title": "A job of Beadline",
        "description": "Sources, SQL over them as views, and sinks: beadline run job.toml",
        "additionalProperties": False,
        "oneOf": [{"required": ["query"]}, {"required": ["queries"]}],
        "definitions": definitions,
    }
