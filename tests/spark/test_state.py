"""State on Spark: its store and format, what `beadline state` reads, what a changed job is told."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.streaming.stateful_processor import StatefulProcessor

from beadline import Stream, exactly_once
from beadline.errors import BadSetting, StateChanged
from beadline.event_time import count, sum_of, windowed
from beadline.observe import Event
from beadline.sinks import MemorySink, SqliteSink
from beadline.state import read_state
from beadline.state.backend import CHECKPOINT_FORMAT, HDFS_BACKED, PROVIDER
from tests.command_line import Invoke, invoking
from tests.spark import jobs

TIMED = "k string, ts timestamp, v long"
Files = dict[str, tuple[int, int]]


def counted(frame: DataFrame, folder: Path, key: str = "k") -> Stream:
    counts = frame.groupBy(F.col(key)).count()
    return exactly_once(counts, "job").to(SqliteSink(folder / "out.db", "t", "upsert", key))


def count_up(spark: SparkSession, folder: Path) -> None:
    jobs.run(counted(jobs.read(spark, folder / "in"), folder), folder, output_mode="update")


def contents(folder: Path) -> Files:
    """Every file and folder, with size and time."""
    found = {}
    for path in folder.rglob("*"):
        about = path.lstat()
        found[str(path.relative_to(folder))] = (about.st_size, about.st_mtime_ns)
    return found


def state_files(folder: Path) -> set[str]:
    """How the files of the state end."""
    below = (folder / "checkpoint" / "state").rglob("*")
    return {path.suffix for path in below if path.suffix in (".delta", ".changelog")}


def formats(folder: Path) -> list[str]:
    commits = folder / "checkpoint" / "commits"
    numbers = sorted(int(path.name) for path in commits.iterdir() if path.name.isdigit())
    return [(commits / str(number)).read_text().split()[0] for number in numbers]


def own_session(spark: SparkSession, **settings: str) -> SparkSession:
    """A session of the user's, with other settings than ours."""
    own = spark.newSession()
    for key, value in settings.items():
        own.conf.set(key, value)
    return own


# -- which store, and in which format


def test_the_default_store_is_rocksdb_with_a_changelog_in_format_v2(
    spark: SparkSession, tmp_path: Path
) -> None:
    jobs.write_input(tmp_path / "in", 2)
    count_up(spark, tmp_path)
    assert formats(tmp_path) == ["v2", "v2"]
    assert state_files(tmp_path) == {".changelog"}


@pytest.mark.parametrize(
    ("before", "after", "format_", "files"),
    [
        ({PROVIDER: HDFS_BACKED, CHECKPOINT_FORMAT: "1"}, {}, "v1", {".delta"}),
        ({CHECKPOINT_FORMAT: "1"}, {}, "v1", {".changelog"}),
        ({}, {PROVIDER: HDFS_BACKED, CHECKPOINT_FORMAT: "1"}, "v2", {".changelog"}),
        # A session whose settings do not fit each other: the store is what counts.
        ({PROVIDER: HDFS_BACKED}, {PROVIDER: HDFS_BACKED}, "v1", {".delta"}),
    ],
    ids=["hdfs-backed", "format-v1", "format-v2", "both"],
)
def test_a_checkpoint_continues_with_its_own_store_and_format(
    spark: SparkSession,
    tmp_path: Path,
    before: dict[str, str],
    after: dict[str, str],
    format_: str,
    files: set[str],
) -> None:
    jobs.write_input(tmp_path / "in", 1)
    count_up(own_session(spark, **before), tmp_path)
    jobs.write_input(tmp_path / "in", 1, first=1)
    count_up(own_session(spark, **after), tmp_path)
    assert formats(tmp_path) == [format_] * 2
    assert state_files(tmp_path) == files
    assert jobs.table(tmp_path, "k, count") == [("k0", 7), ("k1", 7), ("k2", 6)]


class Remember(StatefulProcessor):
    """How many rows a key had."""

    def __init__(self, value: str = "n bigint") -> None:
        self.value = value

    def init(self, handle: Any) -> None:
        """Name the state."""
        self.seen = handle.getValueState("seen", self.value)

    def handleInputRows(  # type: ignore[override]  # noqa: N802 (Spark's name)
        self,
        key: Any,
        rows: Iterator[pd.DataFrame],
        timerValues: Any,  # noqa: N803
    ) -> Iterator[pd.DataFrame]:
        """Count."""
        held = self.seen.get()
        total = (0 if held is None else held[0]) + sum(len(frame) for frame in rows)
        self.seen.update((total, *([0] * self.value.count(","))))
        yield pd.DataFrame({"k": [key[0]], "n": [total]})

    def close(self) -> None:
        """Nothing is held."""


def remembered(frame: DataFrame, folder: Path, value: str = "n bigint") -> Stream:
    totals = frame.groupBy("k").transformWithStateInPandas(
        Remember(value), "k string, n bigint", "update", "none"
    )
    return exactly_once(totals, "job").to(SqliteSink(folder / "out.db", "t", "upsert", "k"))


def test_a_store_that_cannot_hold_the_state_is_refused_at_start(
    spark: SparkSession, tmp_path: Path
) -> None:
    jobs.write_input(tmp_path / "in", 1)
    own = own_session(spark, **{PROVIDER: HDFS_BACKED, CHECKPOINT_FORMAT: "1"})
    with pytest.raises(BadSetting, match=r"needs? several.*RocksDBStateStoreProvider") as refused:
        jobs.run(remembered(jobs.read(own, tmp_path / "in"), tmp_path), tmp_path)
    assert str(refused.value).endswith("Nothing was written.")
    assert not (tmp_path / "checkpoint").exists()
    # On a checkpoint that was begun with RocksDB, that is what Spark continues with.
    jobs.run(
        remembered(jobs.read(spark, tmp_path / "in"), tmp_path), tmp_path, output_mode="update"
    )
    jobs.write_input(tmp_path / "in", 1, first=1)
    jobs.run(remembered(jobs.read(own, tmp_path / "in"), tmp_path), tmp_path, output_mode="update")
    assert jobs.table(tmp_path, "k, n") == [("k0", 7), ("k1", 7), ("k2", 6)]
    rows = read_state(spark, str(tmp_path / "checkpoint"), variable="seen")
    assert {(row.k, row.n) for row in rows.collect()} == {("k0", 7), ("k1", 7), ("k2", 6)}
    refuse_changed(tmp_path, remembered(jobs.read(spark, tmp_path / "in"), tmp_path, "n string"),
                   r"variable 'seen': its value was \(n bigint\) and is \(n string\)")  # fmt: skip


# -- a job whose state has changed


def refuse_changed(folder: Path, stream: Stream, says: str, mode: str = "update") -> None:
    """A start is refused, and leaves everything as it was."""
    before = contents(folder)
    with pytest.raises(StateChanged, match=says) as refused:
        jobs.run(stream, folder, output_mode=mode)
    assert "a new checkpoint" in str(refused.value)
    assert str(refused.value).endswith("Nothing was written.")
    after = contents(folder)
    # Each start tries whether the checkpoint's disk has hard links, which is seen in the folder.
    assert {**after, "checkpoint": ()} == {**before, "checkpoint": ()}


def test_a_changed_state_is_refused_before_the_claim(spark: SparkSession, tmp_path: Path) -> None:
    jobs.write_input(tmp_path / "in", 2)
    rows = jobs.read(spark, tmp_path / "in")
    sink = MemorySink(f"changed {tmp_path}")  # which takes whatever columns come
    counts = exactly_once(rows.groupBy("k").count(), "job").to(sink)
    jobs.run(counts, tmp_path, output_mode="update")
    totals = exactly_once(rows.groupBy("k").agg(F.count("*").alias("count"), F.max("v")), "job")
    refuse_changed(tmp_path, totals.to(sink), "an aggregation: its value was .* and is ")
    grouped = exactly_once(rows.groupBy(F.col("id").alias("k")).count(), "job").to(sink)
    refuse_changed(tmp_path, grouped, r"its key was \(k string\) and is \(\w+ bigint\)")
    unique = exactly_once(rows.dropDuplicates(["k"]), "job").to(sink)
    refuse_changed(tmp_path, unique, "it has dropDuplicates .* of an aggregation", "append")
    # What is called otherwise, and is the same, is no change.
    jobs.write_input(tmp_path / "in", 1, first=2)
    same = exactly_once(rows.groupBy("k").agg(F.count(F.lit(1)).alias("count")), "job").to(sink)
    jobs.run(same, tmp_path, output_mode="update")
    newest = {row["k"]: row["count"] for row in MemorySink.rows(f"changed {tmp_path}")}
    assert newest == {"k0": 10, "k1": 10, "k2": 10}


# -- reading it


@pytest.fixture
def states(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Iterator[Invoke]:
    """`beadline state` in this process; gives code, stdout, stderr."""
    with invoking("state", monkeypatch, capsys, columns=160) as invoke:
        yield invoke


def only(states: Invoke, *arguments: object) -> dict[str, Any]:
    """The one operator that a command shows."""
    code, out, err = states(*arguments, "--json")
    assert code == 0, err
    (found,) = json.loads(out)["operators"]
    return dict(found)


def write_timed(folder: Path, number: int, rows: list[tuple[str, int, int]]) -> None:
    """One file of keys, seconds and values."""
    folder.mkdir(parents=True, exist_ok=True)
    base = pd.Timestamp("2026-11-19T12:00:00Z")
    lines = (
        json.dumps({"k": k, "ts": (base + pd.Timedelta(seconds=s)).isoformat(), "v": v})
        for k, s, v in rows
    )
    path = folder / f"{number}.json"
    path.write_text("\n".join(lines) + "\n")
    os.utime(path, (1_700_000_000 + number, 1_700_000_000 + number))


def read_timed(spark: SparkSession, folder: Path) -> DataFrame:
    return spark.readStream.schema(TIMED).option("maxFilesPerTrigger", 1).json(str(folder))


def in_windows(spark: SparkSession, folder: Path, lateness: str = "20 seconds", **more: Any) -> Any:
    rows = windowed(
        read_timed(spark, folder / "in"),
        "ts",
        size="10 seconds",
        by="k",
        watermark="5 seconds",
        allowed_lateness=lateness,
    )
    counts = rows.agg(n=count(), **more)
    return exactly_once(counts, "windows").to(MemorySink(f"windows {folder}"))


@pytest.fixture(scope="module")
def windows(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """Windows whose driver is still running: folder, and what it told."""
    folder = tmp_path_factory.mktemp("windows")
    told: list[Event] = []
    write_timed(folder / "in", 0, [("a", 1, 1), ("a", 2, 1), ("b", 3, 1)])
    write_timed(folder / "in", 1, [("a", 18, 1), ("b", 31, 1)])
    write_timed(folder / "in", 2, [("a", 4, 1), ("c", 33, 1), ("a", 0, 1)])
    query = in_windows(spark, folder).start(str(folder / "checkpoint"), listener=told.append)
    try:
        query.processAllAvailable()
        yield folder, told, query
    finally:
        query.stop()


def test_windows_are_read_while_their_driver_runs(windows: Any, states: Invoke) -> None:
    folder, _, query = windows
    before = contents(folder)
    found = only(states, folder / "checkpoint", "--keys", 10)
    assert query.isActive
    assert contents(folder) == before
    assert (found["name"], found["partitions"]) == ("transformWithStateInPandasExec", 2)
    # No window is gone: the watermark is at 28 s, and the oldest ends at 10 s, with 20 s of grace.
    assert found["rows"] == {"dropped": 0, "fired": 3, "open": 2, "timers": 5}
    assert found["bytes"] > 0
    assert {one["name"] for one in found["variables"]} == {"open", "fired", "dropped"}
    shown = sorted(
        (key["key_0"], key["window_start"], key["n_count_0"]) for key in found["keys"]["open"]
    )
    assert shown == [
        ("b", "2026-11-19T12:00:30.000Z", 1),
        ("c", "2026-11-19T12:00:30.000Z", 1),
    ]
    (one,) = only(states, folder / "checkpoint", "--variable", "open", "--key", "key_0=c")["keys"][
        "open"
    ]
    assert one["window_end"] == "2026-11-19T12:00:40.000Z"


def test_state_is_shown_to_people_and_wrong_questions_are_answered(
    windows: Any, states: Invoke
) -> None:
    folder, _, _ = windows
    code, out, _ = states(folder / "checkpoint", "--variable", "open", "--keys", 1)
    assert code == 0
    assert "operator 0: transformWithStateInPandas, 2 partitions" in out
    assert "window_start" in out
    assert "open: 1 of 2" in out
    for arguments, says in [
        (["--variable", "none"], "has no variable 'none'; it has dropped, fired, open, timers"),
        (["--operator", "3"], "has no operator 3; it has 0 (transformWithStateInPandasExec)"),
        (["--epoch", "99"], "has no complete epoch 99"),
        (["--variable", "open", "--key", "x=1"], "no column 'x'; there are"),
    ]:
        code, _, err = states(folder / "checkpoint", *arguments)
        assert code == 2
        assert says in " ".join(err.split())
    code, _, err = states(folder)
    assert code == 2
    assert "no checkpoint of Spark's" in err


def test_events_report_the_state_of_each_epoch(windows: Any, spark: SparkSession) -> None:
    folder, told, query = windows
    query.stop()
    found = {event.epoch: event.details for event in told if event.kind == "state"}
    committed = [event.epoch for event in told if event.kind == "committed"]
    assert list(found) == committed
    (one,) = found[committed[-1]]["operators"]
    assert one["name"] == "transformWithStateInPandasExec"
    assert one["rows"] > 0
    assert one["memory_bytes"] > 0
    # At 26 s: the rows of the window to 10 s came in time for its lateness of 20 s.
    assert sum(details["late_rows"] for details in found.values()) == 0
    refuse_changed(folder, in_windows(spark, folder, s=sum_of("v")), "variable 'open'", "append")
    refuse_changed(folder, in_windows(spark, folder, "0 seconds"), "fired", "append")


def test_a_join_after_a_crash(spark: SparkSession, tmp_path: Path, states: Invoke) -> None:
    for side in ("left", "right"):
        write_timed(tmp_path / side, 0, [("a", 1, 1), ("b", 2, 2)])
    left, right = (
        read_timed(spark, tmp_path / side).withWatermark("ts", "1 hour").alias(side)
        for side in ("left", "right")
    )
    joined = left.join(right, F.expr("left.k = right.k and left.ts = right.ts"))
    stream = exactly_once(joined.select("left.k", F.col("right.v").alias("v")), "job")
    stream = stream.to(MemorySink("joined"))
    jobs.run(stream, tmp_path)
    for side in ("left", "right"):
        write_timed(tmp_path / side, 1, [("c", 3, 3)])
    jobs.run_and_die(stream, tmp_path, "decide.after")
    before = contents(tmp_path)
    found = only(states, tmp_path / "checkpoint", "--keys", 5)
    assert contents(tmp_path) == before
    assert found["name"] == "symmetricHashJoin"
    assert found["rows"] == {"left": 2, "right": 2}  # the third epoch is not complete
    assert sorted(row["v"] for row in found["keys"]["right"]) == [1, 2]
    jobs.run(stream, tmp_path)
    # In a process of its own, in which no query has ever run.
    command = ["beadline", "state", str(tmp_path / "checkpoint"), "--store", "left", "--json"]
    alone = subprocess.run(
        [sys.executable, "-m", *command], capture_output=True, timeout=300, check=True
    )
    (found,) = json.loads(alone.stdout.splitlines()[-1])["operators"]
    assert found["rows"] == {"left": 3}


def test_a_query_without_state(spark: SparkSession, tmp_path: Path, states: Invoke) -> None:
    jobs.write_input(tmp_path / "in", 1)
    told: list[Event] = []
    jobs.run(jobs.sqlite_job(spark, tmp_path), tmp_path, listener=told.append)
    assert "state" not in {event.kind for event in told}
    code, out, _ = states(tmp_path / "checkpoint")
    assert (code, out) == (0, "The query keeps no state.\n")
    code, _, err = states(tmp_path / "checkpoint", "--operator", 0)
    assert code == 2
    assert "holds no state" in err
