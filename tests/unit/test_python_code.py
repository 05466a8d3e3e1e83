"""Clocks and dice in Python functions, by whatever name they are reached."""

from __future__ import annotations

import datetime
import random
import time
import uuid
from collections.abc import Callable
from datetime import datetime as moment
from random import randint
from time import time as now
from typing import Any

import numpy as np
import pytest

from beadline.run.python_code import calls_by_chance


def inside(row: int) -> float:
    import secrets
    from os import path, urandom

    return len(path.join("a", str(secrets.randbelow(9)))) + len(urandom(row))


def through(row: int) -> int:
    return helper(row)


def helper(row: int) -> int:
    return row + time.time_ns()


def generator(rows: list[int]) -> Any:
    for row in rows:
        yield from (row + random.random() for _ in range(2))


def enclosing() -> Callable[[int], float]:
    clock = time.time
    return lambda row: row + clock()


class Stamper:
    def stamp(self, row: int) -> str:
        return f"{row} {uuid.uuid4()}"


@pytest.mark.parametrize(
    ("function", "names"),
    [
        (lambda row: row + time.time(), {"time.time"}),
        (lambda row: row + now(), {"time.time"}),
        (lambda row: datetime.datetime.now(), {"datetime.datetime.now"}),
        (lambda row: moment.utcnow(), {"datetime.datetime.utcnow"}),
        (lambda row: datetime.date.today(), {"datetime.date.today"}),
        (lambda row: random.random(), {"random.random"}),
        (lambda row: randint(1, row), {"random.randint"}),
        (lambda row: np.random.rand(row) + 1, {"numpy.random.rand"}),
        (inside, {"secrets.randbelow", "os.urandom"}),
        (through, {"time.time_ns"}),
        (generator, {"random.random"}),
        (enclosing(), {"time.time"}),
        (Stamper().stamp, {"uuid.uuid4"}),
    ],
)
def test_chance_is_found(function: Callable[..., Any], names: set[str]) -> None:
    assert set(calls_by_chance(function)) == names


@pytest.mark.parametrize(
    "function",
    [
        lambda row: row + 1,
        lambda row: datetime.datetime(2026, 1, 1),
        lambda row: uuid.UUID(int=row),
        lambda row: uuid.uuid5(uuid.NAMESPACE_URL, str(row)),
        lambda row: time.strftime("%Y", time.gmtime(row)),
        len,
    ],
)
def test_what_is_always_the_same_is_not(function: Callable[..., Any]) -> None:
    assert calls_by_chance(function) == ()
