"""Drivers that are started ahead: they wait until they are due, and take their orders then."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from beadline.points import CrashOrder
from beadline.verify import processes
from beadline.verify.child import Children

PROGRAM = """
from beadline.points import reach
from beadline.verify.driver import emit, stand_by
import sys
stand_by()
emit({"kind": "began"})
reach("decide.before")
emit({"kind": "committed"})
"""


@pytest.fixture
def program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A module that a child can run."""
    (tmp_path / "a_driver.py").write_text(PROGRAM)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    return "a_driver"


@pytest.fixture
def children(tmp_path: Path, program: str) -> Iterator[Children]:
    made = Children(program, tmp_path, tmp_path, expected=3)
    yield made
    made.end()


def test_each_child_has_its_own_order_and_the_next_one_waits(children: Children) -> None:
    mark = children.mark()
    first = children.start(order=CrashOrder("decide.before", 1, "process", str(mark)))
    assert first.wait(60) == -9
    assert mark.exists()
    waiting = children._waiting
    assert waiting is not None
    assert waiting.alive
    second = children.start()
    assert second is waiting
    assert second.wait(60) == 0
    assert [line["kind"] for line in second.events] == ["began", "committed"]
    third = children.start()
    assert third.wait(60) == 0
    assert children._waiting is None  # no more are expected
    assert third.seconds < 60


def test_one_that_is_never_due_is_ended_too(children: Children) -> None:
    children.start().wait(60)
    waiting = children._waiting
    assert waiting is not None
    children.end()
    assert processes.state(waiting.pid) == ""
    assert waiting.events == []


def test_a_child_that_is_not_started_ahead_does_not_wait(tmp_path: Path, program: str) -> None:
    alone = Children(program, tmp_path, tmp_path)
    child = alone.start(order=CrashOrder("decide.before", 2))
    assert child.wait(60) == 0
    assert json.dumps(child.events) == '[{"kind": "began"}, {"kind": "committed"}]'
    alone.end()
