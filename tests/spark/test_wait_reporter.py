"""The query says what an epoch that takes long is waiting for."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
from pyspark.sql import DataFrame, SparkSession

from beadline import exactly_once
from beadline.cli.run import _as_lines
from beadline.observe import Event
from beadline.spark import wait_reporter
from tests.spark.jobs import read, rows_sink, run, write_input

SLOW_S = 1.5


@pytest.fixture(autouse=True)
def hurried(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wait_reporter, "REPORT_AFTER_S", 0.5)
    monkeypatch.setattr(wait_reporter, "REPORT_EVERY_S", 0.2)


def slowly(frame: DataFrame) -> DataFrame:
    time.sleep(SLOW_S)
    return frame.select("id")


def test_a_slow_epoch_is_spoken_of(spark: SparkSession, tmp_path: Path) -> None:
    write_input(tmp_path / "in", 1)
    told: list[Event] = []
    stream = exactly_once(read(spark, tmp_path / "in"), "slow")
    run(stream.to(rows_sink(tmp_path), rows=slowly), tmp_path, listener=told.append)
    waiting = [event for event in told if event.kind == "waiting" and event.epoch == 0]
    assert len(waiting) >= 2
    assert waiting[0].details["doing"] == "preparing"
    seconds = [event.details["seconds"] for event in waiting]
    assert seconds == sorted(seconds)
    assert _as_lines(waiting[0])[0].startswith("epoch 0: [yellow]preparing[/], ")
    assert told.index(waiting[-1]) < next(i for i, e in enumerate(told) if e.kind == "committed")


def test_what_follows_is_named() -> None:
    told: list[tuple[str, int | None, str]] = []
    one = wait_reporter.WaitReporter()
    listener = one.listening(lambda event: None)
    one.start(lambda kind, epoch, doing, seconds: told.append((kind, epoch, doing)))
    for epoch, kind in ((None, "claimed"), (6, "trying"), (7, "decided")):
        if kind == "decided":
            one.began(epoch)
        listener(Event(kind, "q", 1, epoch, {"sink": "t"}))
        time.sleep(1.2)
    one.ended()
    time.sleep(0.5)
    count = len(told)
    time.sleep(0.5)
    assert len(told) == count  # nothing is said between epochs
    one.close()
    assert ("waiting", None, "finishing what older starts left") in told
    assert any('drop=["t@6"] does at once' in doing for _, _, doing in told)
    assert told[-1] == ("waiting", 7, "committing")
