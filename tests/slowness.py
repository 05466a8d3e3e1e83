"""How slow this machine is now, and the share of the tests for which it has time.

The cores of a shared host may give a fifth of what they gave the day before, for hours. The whole
run would then take longer than CI waits. So `make test` runs as many tests of each file as the
machine's speed allows, chosen by the seed, and says so: other runs choose others, and a machine as
fast as that of the documented figures runs them all.
"""

from __future__ import annotations

import math
import os
import random
import statistics
import time
from collections import defaultdict
from collections.abc import Collection, Iterable

import pytest

SLOWNESS = "BEADLINE_SLOWNESS"  # set it to replay a run, or to 1 for every test
_REFERENCE_S = 0.045  # of `_loop_s`, where the figures of the docs were measured
_WHOLE_MAX = 1.8  # up to here the whole run fits
_TURNS = 15


def slowness() -> float:
    """Measure once per run: parallel workers must choose the same tests as their parent."""
    if SLOWNESS not in os.environ:
        found = statistics.median(_loop_s() for _ in range(_TURNS)) / _REFERENCE_S
        os.environ[SLOWNESS] = f"{found:.1f}" if found > _WHOLE_MAX else "1"
    return float(os.environ[SLOWNESS])


def patient(seconds: float) -> float:
    """Return a limit that finds what hangs, as long as this machine's speed makes it."""
    return seconds * slowness()


def too_many(items: Iterable[pytest.Item], seed: int, kept: Collection[str]) -> set[pytest.Item]:
    """The tests that a slow machine leaves out: the same share of every file not in ``kept``.

    Of the kills, each of which takes minutes then, of the folder. What starts JVMs slows down more
    than the loop that was measured, hence the power.
    """
    groups: dict[str, list[pytest.Item]] = defaultdict(list)
    for item in items:
        file = item.nodeid.partition("::")[0].removeprefix("tests/")
        folder = file.partition("/")[0]
        if folder not in kept:
            groups[folder if folder == "kill" else file].append(item)
    dropped: set[pytest.Item] = set()
    for name, group in groups.items():
        count = math.ceil(len(group) / slowness() ** 1.5)
        dropped.update(group)
        dropped.difference_update(random.Random(f"{seed} {name}").sample(group, count))
    return dropped


def _loop_s() -> float:
    begun_s = time.perf_counter()
    total = 0
    for number in range(1_000_000):
        total += number
    return time.perf_counter() - begun_s
