"""On a slow machine a run takes the same share of every file, and another seed another share."""

from __future__ import annotations

import pytest

from tests.slowness import SLOWNESS, slowness, too_many


class Item:
    """What `too_many` reads of a test."""

    def __init__(self, nodeid: str) -> None:
        self.nodeid = nodeid


def items(*files: str) -> list[pytest.Item]:
    found: list[object] = [Item(f"{file}::test_{n}") for file in files for n in range(10)]
    return found  # type: ignore[return-value]


def test_a_share_of_every_file(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(SLOWNESS, "4.0")
    every = items("tests/unit/test_a.py", "tests/spark/test_b.py", "tests/spark/test_c.py")
    every += items("tests/kill/test_d.py", "tests/kill/test_e.py")
    dropped = too_many(every, 1, kept=("unit",))
    left = [item.nodeid.partition("::")[0] for item in every if item not in dropped]
    assert left.count("tests/unit/test_a.py") == 10
    assert left.count("tests/spark/test_b.py") == left.count("tests/spark/test_c.py") == 2
    assert sum(name.startswith("tests/kill") for name in left) == 3, "of the folder"


def test_every_test_is_chosen_by_some_seed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(SLOWNESS, "5.0")
    every = items("tests/spark/test_b.py")
    chosen = {item for seed in range(60) for item in set(every) - too_many(every, seed, kept=())}
    assert chosen == set(every)
    assert too_many(every, 7, kept=()) == too_many(every, 7, kept=())


def test_a_single_test_is_never_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(SLOWNESS, "9.0")
    assert not too_many(items("tests/spark/test_b.py")[:1], 1, kept=())


def test_the_machine_is_measured_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(SLOWNESS, raising=False)
    first = slowness()
    assert first >= 1
    assert slowness() == first
