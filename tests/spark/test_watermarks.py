"""Inputs that are idle: windows and joins of several inputs continue, over kills and restarts."""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from beadline import cli, exactly_once
from beadline.errors import BadQuery, BadSetting, BeadlineError, CheckpointProblem
from beadline.event_time import count, watermark, windowed
from beadline.observe import Event
from beadline.points import hooked
from beadline.sinks import MemorySink
from beadline.sources import ticker
from beadline.spark.query import Query
from beadline.stream import Stream
from tests.slowness import patient
from tests.spark.jobs import Died, session_conf

SOON_S = patient(150.0)


def at(clock: str) -> int:
    """Milliseconds of a time of the day on which all of this happens."""
    day = datetime.fromisoformat(f"2026-01-01T{clock}:00").replace(tzinfo=timezone.utc)
    return int(day.timestamp() * 1000)


class Inputs:
    """Two folders, orders and returns, into which rows are put, a file each time."""

    def __init__(self, spark: SparkSession, folder: Path) -> None:
        self.spark = spark
        self.folder = folder
        self.files = 0
        for name in ("orders", "returns"):
            (folder / name).mkdir()

    def put(self, name: str, *clocks: str) -> None:
        lines = (json.dumps({"shop": "a", "ts": f"2026-01-01T{clock}:00Z"}) for clock in clocks)
        unfinished = self.folder / f"{self.files}.new"
        unfinished.write_text("\n".join(lines) + "\n")
        os.rename(unfinished, self.folder / name / f"{self.files}.json")
        self.files += 1

    def read(self, name: str, idle: str | None = None) -> DataFrame:
        reader = self.spark.readStream.schema("shop string, ts timestamp")
        frame = reader.json(str(self.folder / name))
        return watermark(frame, "ts", "5 minutes", idle=idle, name=name)

    def ticked(self) -> set[int]:
        """The times to which inputs were brought on, in the newest offsets of the checkpoint."""
        folder = self.folder / "checkpoint" / "offsets"
        newest = max(int(path.name) for path in folder.iterdir() if path.name.isdigit())
        lines = (folder / str(newest)).read_text().splitlines()[2:]
        return {json.loads(line)["tick_ms"] for line in lines if "tick_ms" in line} - {0}


@pytest.fixture
def inputs(spark: SparkSession, tmp_path: Path) -> Inputs:
    return Inputs(spark, tmp_path)


def counted(inputs: Inputs, idle: str | None) -> Stream:
    """Orders and returns per shop and ten minutes; returns may be idle."""
    both = inputs.read("orders").union(inputs.read("returns", idle)).where("shop = 'a'")
    counts = windowed(both, "ts", size="10 minutes", by="shop").agg(n=count())
    return exactly_once(counts, "counts").to(MemorySink(str(inputs.folder)))


@contextmanager
def running(stream: Stream, inputs: Inputs, told: list[Event] | None = None) -> Iterator[Query]:
    events = [] if told is None else told
    query = stream.start(str(inputs.folder / "checkpoint"), listener=events.append)
    try:
        yield query
    finally:
        query.stop()


def shown(inputs: Inputs) -> list[tuple[str, int]]:
    rows = MemorySink.rows(str(inputs.folder))
    return sorted((f"{row['window_start']:%H:%M}", row["n"]) for row in rows)


def wait_for(query: Query, done: Callable[[], bool]) -> None:
    until = time.monotonic() + SOON_S
    while not done():
        assert time.monotonic() < until
        assert not query.awaitTermination(0.05)


def die_when_ticked(inputs: Inputs) -> Callable[[str], None]:
    def hook(name: str) -> None:
        if name == "decide.before" and inputs.ticked():
            raise Died(name)

    return hook


def test_windows_go_on_over_a_death(inputs: Inputs) -> None:
    inputs.put("orders", "10:01", "10:02", "10:31")
    inputs.put("returns", "10:03")
    with (
        hooked(die_when_ticked(inputs)),
        pytest.raises(Died),
        running(counted(inputs, "1 second"), inputs) as query,
    ):
        wait_for(query, lambda: False)
    assert shown(inputs) == [], "returns, at 10:03, held the window up"
    # To the watermark of the orders, 10:26, and the delay of the returns.
    assert inputs.ticked() == {at("10:31")}
    for path in ticker._folder().iterdir():
        path.unlink()
    # The epoch is redelivered with the time that was planned for it: nobody is idle in an hour.
    # After a restart, Spark knows of an input what it has brought since, so orders bring a row.
    with running(counted(inputs, "1 hour"), inputs) as query:
        inputs.put("orders", "10:32")
        wait_for(query, lambda: shown(inputs) == [("10:00", 3)])
    # And a third start brings the time on from there; what comes back is late.
    told: list[Event] = []

    def marks() -> list[dict[str, Any]]:
        return [event.details for event in told if event.kind == "watermark"]

    with running(counted(inputs, "1 second"), inputs, told) as query:
        inputs.put("orders", "11:01")
        wait_for(query, lambda: ("10:30", 2) in shown(inputs))
        inputs.put("returns", "10:04", "11:02")
        query.processAllAvailable()
    assert shown(inputs) == [("10:00", 3), ("10:30", 2)]
    assert sum(mark["late_rows"] for mark in marks()) == 1
    assert marks()[-1]["watermark_ms"] == at("10:56")
    assert {"rows": 0, "newest_ms": None, "watermark_ms": at("10:56"), "idle": True} in [
        mark["inputs"]["returns"] for mark in marks()
    ]
    assert marks()[-1]["inputs"]["returns"]["newest_ms"] == at("11:02")
    assert all(event.epoch is not None for event in told if event.kind == "watermark")


def test_an_outer_join_goes_on(inputs: Inputs) -> None:
    """An order without a return shows when no return can come any more."""
    orders = inputs.read("orders").withColumnRenamed("ts", "ordered")
    returns = inputs.read("returns", "1 second").withColumnRenamed("ts", "returned")
    returns = returns.withColumnRenamed("shop", "by")
    within = "shop = by AND returned BETWEEN ordered AND ordered + INTERVAL 10 MINUTES"
    joined = orders.join(returns, F.expr(within), "left")
    stream = exactly_once(joined, "joined").to(MemorySink(str(inputs.folder)))
    inputs.put("orders", "10:01", "10:41")
    with running(stream, inputs) as query:
        rows: Callable[[], list[Any]] = lambda: MemorySink.rows(str(inputs.folder))  # noqa: E731
        wait_for(query, lambda: bool(rows()))
    assert [(f"{row['ordered']:%H:%M}", row["returned"]) for row in rows()] == [("10:01", None)]


def test_what_is_known_afterwards(
    inputs: Inputs, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """`beadline epochs` shows each epoch's watermark, late rows, and what each input brought."""
    inputs.put("orders", "10:01", "10:31")
    inputs.put("returns", "10:33")
    with running(counted(inputs, None), inputs) as query:
        query.processAllAvailable()
    monkeypatch.setenv("COLUMNS", "200")

    def epochs(*arguments: str) -> str:
        checkpoint = str(inputs.folder / "checkpoint")
        monkeypatch.setattr(sys, "argv", ["beadline", "epochs", checkpoint, *arguments])
        with pytest.raises(SystemExit) as ended:
            cli.main()
        assert not ended.value.code
        return capsys.readouterr().out

    found = json.loads(epochs("--json"))["epochs"]
    assert [epoch["event_time"]["watermark_ms"] for epoch in found] == [0, at("10:26")]
    assert found[0]["event_time"]["inputs"] == {
        "orders": {
            "rows": 2,
            "newest_ms": at("10:31"),
            "watermark_ms": at("10:26"),
            "idle": False,
        },
        "returns": {
            "rows": 1,
            "newest_ms": at("10:33"),
            "watermark_ms": at("10:28"),
            "idle": False,
        },
    }
    assert "watermark" in epochs()
    # An input that may be idle from now on would be one source more.
    with pytest.raises(CheckpointProblem, match=r"reads 3 sources.*by one that reads 2"):
        counted(inputs, "1 minute").start(str(inputs.folder / "checkpoint"))
    assert "input orders: 2 rows, newest time 2026-01-01" in epochs("--epoch", "0")


def test_the_report_of_a_job(inputs: Inputs) -> None:
    report = counted(inputs, "1 minute").guarantee()
    assert str(report.level) == "exactly-once"
    parts = [finding.part for finding in report.findings]
    assert "source beadline-ticker returns" in parts
    assert len([part for part in parts if part.startswith("source ")]) == 3


def test_without_idle_nothing_is_added(inputs: Inputs) -> None:
    parts = [finding.part for finding in counted(inputs, None).guarantee().findings]
    assert not [part for part in parts if "ticker" in part]


@pytest.mark.parametrize(
    ("time_", "delay", "idle", "error", "said"),
    [
        ("when", "5 minutes", None, BadQuery, "there is no such column"),
        ("shop", "5 minutes", None, BadQuery, "is of type string, and a timestamp is needed"),
        ("ts", "5 lightyears", None, BadSetting, "is not a duration"),
        ("ts", "5 minutes", "0 seconds", BadSetting, "more than zero"),
        ("late", "5 minutes", None, BadQuery, "has a watermark already"),
    ],
)
def test_what_is_refused(
    spark: SparkSession,
    time_: str,
    delay: str,
    idle: str | None,
    error: type[BeadlineError],
    said: str,
) -> None:
    frame = spark.readStream.format("rate").load()
    frame = frame.selectExpr("'a' AS shop", "timestamp AS ts", "timestamp AS late")
    frame = frame.withWatermark("late", "1 second")
    with pytest.raises(error, match=said):
        watermark(frame, time_, delay, idle=idle)


def test_a_policy_that_makes_the_slower_input_late(inputs: Inputs) -> None:
    key = "spark.sql.streaming.multipleWatermarkPolicy"
    with session_conf(inputs.spark, {key: "max"}):
        report = counted(inputs, None).guarantee()
    (found,) = [one for one in report.findings if one.part == f"{key}=max"]
    assert found.warning
    assert "slower" in found.why
