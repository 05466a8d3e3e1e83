"""The JSON schema of job files: up to date, and of the same mind as the reader."""

from __future__ import annotations

import inspect
import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

import beadline.sinks
from beadline.cli.app import app
from beadline.jobs.arguments import arguments_of
from beadline.jobs.kinds import NESTED, RESTARTS, SINKS, SOURCES, Kinds
from beadline.jobs.lines import parse
from beadline.jobs.schema import schema
from tests.unit.test_job_toml import JOB, WHOLE

FILE = Path(__file__).parents[2] / "docs" / "job.schema.json"
EXAMPLES = sorted((Path(__file__).parents[2] / "examples").glob("*.toml"))


def test_the_file_is_up_to_date() -> None:
    """If not: beadline schema > docs/job.schema.json."""
    assert json.loads(FILE.read_text("utf-8")) == schema()


def test_the_command_prints_it() -> None:
    for arguments in (["schema"], ["schema", "--json"]):
        answered = CliRunner().invoke(app, arguments)
        assert answered.exit_code == 0
        assert json.loads(answered.stdout) == schema()
    assert answered.stdout.count("\n") == 1


def test_every_sink_and_source_has_a_word() -> None:
    public = {getattr(beadline.sinks, name) for name in beadline.sinks.__all__}
    concrete = {each for each in public if not inspect.isabstract(each)}
    assert {SINKS.named(word) for word in SINKS.known} == concrete
    named = {word for word in beadline.sources.__all__ if word.islower()}
    assert set(SOURCES.known) == named


@pytest.mark.parametrize("kinds", [SOURCES, SINKS, RESTARTS, *NESTED.values()])
def test_every_argument_is_understood(kinds: Kinds) -> None:
    """An annotation that could not be read would be a key that takes anything."""
    for word in kinds.known:
        for argument in arguments_of(kinds.named(word)).values():
            assert argument.annotation is not Any, (word, argument)


class Checker:
    """As much of JSON schema as is used here: no validator is among the dependencies."""

    def __init__(self, whole: dict[str, Any]) -> None:
        self.whole = whole

    def fits(self, value: Any, given: dict[str, Any]) -> bool:
        known: dict[str, Callable[[Any], bool]] = {
            "$ref": lambda ref: self.fits(value, self._found(ref)),
            "allOf": lambda each: all(self.fits(value, one) for one in each),
            "anyOf": lambda each: any(self.fits(value, one) for one in each),
            "oneOf": lambda each: sum(self.fits(value, one) for one in each) == 1,
            "const": lambda wanted: value == wanted,
            "enum": lambda wanted: value in wanted,
            "type": lambda word: self._is(value, word),
            "pattern": lambda text: not isinstance(value, str) or self._matches(text, value),
            "required": lambda keys: not isinstance(value, dict) or set(keys) <= set(value),
            "properties": lambda each: self._below(value, each),
            "additionalProperties": lambda more: self._more(value, given, more),
            "items": lambda one: (
                not isinstance(value, list) or all(self.fits(item, one) for item in value)
            ),
            "minItems": lambda least: not isinstance(value, list) or len(value) >= least,
            "minProperties": lambda least: not isinstance(value, dict) or len(value) >= least,
        }
        silent = {"$schema", "title", "description", "default", "definitions"}
        return all(known[key](said) for key, said in given.items() if key not in silent)

    def _found(self, reference: str) -> dict[str, Any]:
        found = self.whole["definitions"][reference.removeprefix("#/definitions/")]
        assert isinstance(found, dict)
        return found

    @staticmethod
    def _matches(text: str, value: str) -> bool:
        return re.search(text, value) is not None

    @staticmethod
    def _is(value: Any, word: str) -> bool:
        kinds = {"string": str, "object": dict, "array": list, "boolean": bool, "integer": int}
        if word == "number":
            return isinstance(value, int | float) and not isinstance(value, bool)
        return isinstance(value, kinds[word]) and (word != "integer" or value is not bool(value))

    def _below(self, value: Any, each: dict[str, Any]) -> bool:
        if not isinstance(value, dict):
            return True
        return all(self.fits(value[key], one) for key, one in each.items() if key in value)

    def _more(self, value: Any, given: dict[str, Any], more: Any) -> bool:
        if not isinstance(value, dict):
            return True
        others = [value[key] for key in value if key not in given.get("properties", {})]
        if isinstance(more, bool):
            return more or not others
        return all(self.fits(one, more) for one in others)


def fits(text: str) -> bool:
    whole = schema()
    return Checker(whole).fits(parse(text), whole)


@pytest.mark.parametrize("text", [JOB, WHOLE.replace('"xadd"', '"XADD"')], ids=["small", "whole"])
def test_what_the_reader_takes_the_schema_takes(text: str) -> None:
    assert fits(text)


def test_a_sink_of_ones_own_has_keys_of_its_own() -> None:
    whole = schema()
    own = {key: one for key, one in whole["definitions"].items() if key.startswith("own_")}
    assert {"own_sink", "own_source", "own_process", "own_aggregate"} <= set(own)
    for one in own.values():
        assert Checker(whole).fits({"type": "shop.sinks:Till", "drawer": 3}, one), one
        assert not Checker(whole).fits({"type": "sqlite", "drawer": 3}, one), one


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: str(path.name))
def test_the_examples(path: Path) -> None:
    text = path.read_text("utf-8")
    assert text.startswith("#:schema ../docs/job.schema.json\n")
    assert fits(text)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("table =", "tabel ="),
        ('"sqlite"', '"sqllite"'),
        ('path = "in"', "path = 3"),
        ('name = "orders"', 'name = "orders"\nfunction = "twice"'),
        ('name = "orders"', 'name = "orders"\nretention = true'),
        ('sql = "SELECT * FROM orders"', ""),
        ("[[queries]]", "[[querys]]"),
    ],
)
def test_what_the_reader_refuses_the_schema_refuses(old: str, new: str) -> None:
    assert not fits(JOB.replace(old, new))
