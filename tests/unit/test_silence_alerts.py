"""The process of ``examples/silence_alerts.py`` without Spark, as a user would test it."""

from __future__ import annotations

from datetime import datetime, timedelta, timezone

import pytest

from beadline.testing.keyed import KeyedRun
from examples.silence_alerts import OUTPUTS, Silence

NOON = datetime(2026, 1, 1, 12, tzinfo=timezone.utc)


def at(minute: int) -> datetime:
    return NOON + timedelta(minutes=minute)


def test_an_alert_when_nothing_came_for_five_minutes() -> None:
    run = KeyedRun(Silence(), by="sensor", outputs=OUTPUTS, time="ts", watermark="1 minute")
    readings = [("a", 0), ("a", 2), ("b", 1), ("a", 1)]
    out = run.epoch([{"sensor": sensor, "ts": at(minute)} for sensor, minute in readings])
    numbers = [(row["sensor"], row["ts"], row["number"]) for row in out["main"]]
    assert numbers == [("a", at(0), 1), ("a", at(1), 2), ("a", at(2), 3), ("b", at(1), 1)]
    run.epoch([{"sensor": "a", "ts": at(7)}])  # just in time: the watermark is 12:01
    assert run.watermark == at(6)
    assert run.epoch()["alerts"] == [{"sensor": "b", "silent_since": at(1), "readings": 1}]
    run.epoch([{"sensor": "b", "ts": at(20)}])
    assert run.epoch()["alerts"] == [{"sensor": "a", "silent_since": at(7), "readings": 4}]


@pytest.mark.parametrize(
    "epochs", [[[0, 5, 30, 33]], [[0], [5], [30], [33]], [[30, 0], [33, 5]], [[0, 5], [30, 33], []]]
)
def test_the_alerts_do_not_depend_on_the_epochs(epochs: list[list[int]]) -> None:
    run = KeyedRun(Silence(), by="sensor", outputs=OUTPUTS, time="ts", watermark="1 hour")
    alerts = []
    for epoch in [*epochs, [120], []]:
        alerts += run.epoch([{"sensor": "a", "ts": at(minute)} for minute in epoch])["alerts"]
    assert [row["silent_since"] for row in alerts] == [at(5), at(33)]
