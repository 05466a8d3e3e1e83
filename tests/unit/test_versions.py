"""An epoch's version is later than those before it, whatever the clock does.

A sink that keeps versions (HBase) would hide the newer rows behind the older ones otherwise.
"""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from beadline.protocol.coordinator import Coordinator
from beadline.protocol.run import Run
from tests.model.model import Make, ModelWorld, at_least_once, drive
from tests.model.world import NAME

EXACTLY, AT_LEAST = Coordinator, at_least_once


@pytest.mark.parametrize(
    "starts",
    [
        (EXACTLY, EXACTLY, EXACTLY),
        (AT_LEAST, AT_LEAST, AT_LEAST),
        (AT_LEAST, EXACTLY, AT_LEAST),
        (EXACTLY, AT_LEAST, EXACTLY),
    ],
)
def test_a_clock_that_is_set_back_at_every_start(
    starts: Sequence[Make], monkeypatch: pytest.MonkeyPatch
) -> None:
    world = ModelWorld()
    versions = []
    for number, kind in enumerate(starts):
        clock_ms = 1_000_000 - number * 1_000
        monkeypatch.setattr(Run, "now_ms", lambda run, now=clock_ms: now)
        drive(world, kind, epochs=number + 1)
        versions.append(world.servers["ledger1"].seen[NAME].version_ms)
    assert versions == sorted(set(versions))


@pytest.mark.parametrize("kind", [EXACTLY, AT_LEAST])
def test_a_clock_that_stands_still(kind: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Run, "now_ms", lambda run: 5)
    world = ModelWorld()
    drive(world, kind, epochs=4)
    assert world.servers["ledger1"].seen[NAME].version_ms >= 8  # 5, and one more for each epoch
