"""The rules in ``docs/protocol.md``: their tests are there, and so is every rule that is cited."""

from __future__ import annotations

import ast
import re
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "protocol.md").read_text("utf-8")
SECTIONS = {
    int(number): text
    for number, text in re.findall(r"^### (\d+)\. (.*?)(?=^##|\Z)", PAGE, re.MULTILINE | re.DOTALL)
}
TEST = re.compile(r"`(tests/[\w/]+\.py)::(\w+)`")
CITED = re.compile(r"\brules? (\d+(?:(?:, | and | to )\d+)*)", re.IGNORECASE)


@cache
def names(file: str) -> set[str]:
    """Return what a test file defines at its top level: tests, and cases of Hypothesis."""
    found = set()
    for node in ast.parse((ROOT / file).read_text("utf-8")).body:
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            found.add(node.name)
        elif isinstance(node, ast.Assign):
            found |= {target.id for target in node.targets if isinstance(target, ast.Name)}
    return found


def cited(text: str) -> set[int]:
    """Return the numbers of the rules that a text names."""
    return {int(n) for found in CITED.findall(text) for n in re.findall(r"\d+", found)}


def test_the_rules_are_numbered_without_a_gap() -> None:
    assert list(SECTIONS) == list(range(1, 29))


@pytest.mark.parametrize("number", SECTIONS)
def test_a_rule_has_its_crash_and_the_tests_that_show_it(number: int) -> None:
    section = SECTIONS[number]
    assert "**Crash" in section
    found = TEST.findall(section.partition("**Shown by:**")[2])
    assert found
    for file, name in found:
        assert (ROOT / file).is_file(), file
        assert name in names(file), f"{file} has no {name}"


@pytest.mark.parametrize("folder", ["src", "tests", "docs"])
def test_every_rule_that_is_cited_is_there(folder: str) -> None:
    for path in [*(ROOT / folder).rglob("*.py"), *(ROOT / folder).rglob("*.md")]:
        missing = cited(path.read_text("utf-8")) - SECTIONS.keys()
        assert not missing, f"{path} cites rules {missing}"


def test_citations_are_read() -> None:
    text = "rule 3; Rules 4 and 5, rules 7, 8 and 12; rules 1 to 2"
    assert cited(text) == {
        3,
        4,
        5,
        7,
        8,
        12,
        1,
        2,
    }
    assert not cited("the rule is 5")
