"""A missing extra is an error that names it, and the table agrees with the package's metadata."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
import tomli

from beadline import extras, sinks
from beadline.errors import MissingExtra
from beadline.extras import EXTRAS, Requirement, missing, require
from beadline.ids import QueryId

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


SCHEMA = pa.schema([("key", pa.string()), ("value", pa.string())])
CONNECTORS: dict[str, Callable[[str], Any]] = {
    "postgres": lambda _: sinks.PostgresSink("postgresql://me:word@127.0.0.1:1/shop", "t"),
    "mysql": lambda _: sinks.MySqlSink("mysql://me:word@127.0.0.1:1/shop", "t"),
    "redis": lambda folder: sinks.RedisSink("redis://127.0.0.1:1", staging=folder),
    "hbase": lambda folder: sinks.HBaseSink(
        "127.0.0.1", port=1, table="t", row_key="key", family="f", staging=folder
    ),
    "kafka": lambda _: sinks.KafkaSink(topic="t", bootstrap_servers="127.0.0.1:1"),
}


@pytest.mark.parametrize("extra", CONNECTORS)
def test_a_connector_without_its_library_names_the_extra(
    extra: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Each library by itself: half an extra is as good as none."""
    query = QueryId("orders", "a" * 32, "file:/orders")
    sink = CONNECTORS[extra](str(tmp_path))
    for requirement in EXTRAS[extra]:
        with monkeypatch.context() as patch:
            patch.setitem(sys.modules, requirement.module, None)
            with pytest.raises(MissingExtra, match=rf"pip install 'beadline\[{extra}\]'"):
                sink.check(SCHEMA, query)
