"""A missing extra is an error that names it, and the table agrees with the package's metadata."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import tomli

from beadline.errors import MissingExtra
from beadline.run import extras
from beadline.run.extras import EXTRAS, Requirement, missing, require

ROOT = Path(__file__).parents[2]
HERE = Requirement("pytest", "pytest")
NOWHERE = Requirement("beadline_no_such_module", "no-such-thing")


@pytest.fixture(autouse=True)
def table(monkeypatch: pytest.MonkeyPatch) -> None:
    both = {"whole": (HERE,), "half": (HERE, NOWHERE), **EXTRAS}
    monkeypatch.setattr(extras, "EXTRAS", both)


def test_a_complete_extra_is_fine() -> None:
    require("whole")
    assert HERE.version == pytest.__version__


def test_half_an_extra_is_missing() -> None:
    assert missing("half") == (NOWHERE,)
    assert NOWHERE.version is None
    with pytest.raises(MissingExtra) as raised:
        require("half")
    message = str(raised.value)
    assert "'half'" in message
    assert "no-such-thing missing" in message
    assert "pip install 'beadline[half]'" in message
    assert "pytest" not in message


def metadata() -> dict[str, Any]:
    project: dict[str, Any] = tomli.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    return project


def distribution(requirement: str) -> str:
    """`psycopg[binary]>=3.2` is `psycopg`."""
    found = re.match(r"[\w-]+", requirement)
    assert found is not None
    return found.group()


def test_the_table_is_that_of_the_package() -> None:
    declared = metadata()["optional-dependencies"]
    ours = {name: [each.distribution for each in EXTRAS[name]] for name in EXTRAS}
    theirs = {
        name: [distribution(requirement) for requirement in declared[name]]
        for name in declared
        if name not in ("all", "dev")
    }
    assert ours == theirs


def test_all_is_all_of_them() -> None:
    (everything,) = metadata()["optional-dependencies"]["all"]
    assert everything == f"beadline[{','.join(EXTRAS)}]"


def test_every_direct_dependency_is_pinned() -> None:
    text = (ROOT / "constraints.txt").read_text("utf-8")
    pinned = set(re.findall(r"^([\w-]+)==", text, re.MULTILINE))
    project = metadata()
    groups = [project["dependencies"], *project["optional-dependencies"].values()]
    names = {distribution(requirement) for group in groups for requirement in group}
    names.remove("beadline")  # `all` is made of Beadline's own extras
    assert names - pinned == set()
