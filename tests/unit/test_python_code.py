"""Clocks and random numbers in Python functions, by whatever name they are reached."""

from __future__ import annotations

import datetime
import functools
import math
import random
import sys
import time
import uuid
from collections.abc import Callable
from datetime import datetime as moment
from random import randint
from time import time as now
from typing import Any
from uuid import uuid4

import numpy as np
import pytest

from beadline.spark.python_code import calls_by_chance, can_be_read, code_held_by


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


class Clock:
    def __call__(self, row: int) -> float:
        return row + time.time()


class Dated:
    def __init__(self, row: int) -> None:
        self.day = datetime.date.today()


@functools.lru_cache
def cached(row: int) -> int:
    return row + time.time_ns()


clock = Clock()


class Held:
    """As a process with a helper object and a function in a list."""

    limit = 5

    def __init__(self) -> None:
        self.parts = {"stamper": [Stamper()], "dice": [lambda row: randint(1, row)]}
        self.itself = self

    def process(self, row: int) -> int:
        return self._inner(row)

    def _inner(self, row: int) -> int:
        return row + time.time_ns()

    @property
    def day(self) -> datetime.date:
        return datetime.date.today()

    @staticmethod
    def drawn() -> float:
        return random.random()


def applied(function: Callable[[int], Any], row: int) -> Any:
    return function(row)


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
        (functools.partial(through), {"time.time_ns"}),
        (functools.partial(functools.partial(through), 1), {"time.time_ns"}),
        (functools.partial(applied, helper), {"time.time_ns"}),
        (functools.partial(applied, function=lambda row: randint(1, row)), {"random.randint"}),
        (functools.partial(random.randint, 1), {"random.randint"}),
        (functools.partial(Stamper().stamp, 1), {"uuid.uuid4"}),
        (Clock(), {"time.time"}),
        (Clock().__call__, {"time.time"}),
        (lambda row: clock(row) + 1, {"time.time"}),
        (Dated, {"datetime.date.today"}),
        (cached, {"time.time_ns"}),
        (lambda row: cached(row) + 1, {"time.time_ns"}),
        (lambda row: uuid4(), {"uuid.uuid4"}),
        (time.time, {"time.time"}),
        (uuid4, {"uuid.uuid4"}),
        (np.random.rand, {"numpy.random.rand"}),
    ],
)
def test_chance_is_found(function: Callable[..., Any], names: set[str]) -> None:
    assert set(calls_by_chance(function)) == names


def test_an_object_is_looked_into_with_all_that_it_holds() -> None:
    found = {name for one in code_held_by(Held()) for name in calls_by_chance(one)}
    assert found == {
        "uuid.uuid4",
        "random.randint",
        "random.random",
        "time.time_ns",
        "datetime.date.today",
    }
    assert [*code_held_by([1, "a", np.int64(1), moment, datetime, {}])] == []


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


@pytest.mark.parametrize(
    ("function", "readable"),
    [
        (helper, True),
        (functools.partial(applied, helper), True),
        (functools.partial(math.pow, 2), True),
        (Stamper().stamp, True),
        (Clock(), True),
        (Dated, True),
        (cached, True),
        (len, True),
        (str.upper, True),
        ("-".join, True),
        (int, True),
        (np.sin, False),
        (functools.partial(np.sin), False),
        (np.vectorize(np.sin).pyfunc, False),
    ],
)
def test_code_that_cannot_be_read_is_reported(function: Callable[..., Any], readable: bool) -> None:
    assert can_be_read(function) is readable


def test_a_module_that_the_driver_has_not_got(monkeypatch: pytest.MonkeyPatch) -> None:
    def draws(row: int) -> Any:
        import numpy.random

        return numpy.random.rand(row) + time.time()

    for name in ("numpy", "numpy.random"):
        monkeypatch.setitem(sys.modules, name, None)
    assert calls_by_chance(draws) == ("time.time",)
