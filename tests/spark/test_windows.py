"""Windows on real Spark: its state store, timers and watermarks, and its own windows beside."""

from __future__ import annotations

import json
import os
import random
import re
import sqlite3
from contextlib import closing
from datetime import datetime, timedelta, timezone
from decimal import Decimal
from pathlib import Path
from typing import Any, Literal

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from beadline import Stream, exactly_once
from beadline.event_time import (
    CustomAggregate,
    approx_distinct,
    avg_of,
    collect_of,
    count,
    first_of,
    interval_join,
    last_of,
    max_of,
    min_of,
    quantiles,
    sum_of,
    windowed,
)
from beadline.event_time.windows import WindowShape
from beadline.outputs import Outputs
from beadline.sinks import MemorySink, SqliteSink
from beadline.testing import CRASH, run_epochs
from beadline.testing.epochs import Script
from tests.spark.jobs import run, run_and_die
from tests.unit.test_windows_oracle import (
    AGGREGATES,
    Epochs,
    oracle_of_sessions,
    oracle_of_windows,
)

ROOT = Path(__file__).parents[2]
MINUTE = 60_000_000
# In Berlin, the clocks go from 2:00 to 3:00 at 1:00 UTC.
MIDNIGHT = int(datetime(2026, 3, 29, tzinfo=timezone.utc).timestamp()) * 1_000_000
SCHEMA = pa.schema(
    [
        pa.field("n", pa.int64()),
        pa.field("k", pa.string()),
        pa.field("ts", pa.timestamp("us", tz="UTC")),
        pa.field("x", pa.int64()),
    ]
)
DDL = "n long, k string, ts timestamp, x long"


@pytest.fixture
def rocks(spark: SparkSession) -> SparkSession:
    """A session with the state store that these operators need, in a zone with summer time."""
    session = spark.newSession()
    store = "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"
    session.conf.set("spark.sql.streaming.stateStore.providerClass", store)
    session.conf.set("spark.sql.session.timeZone", "Europe/Berlin")
    session.conf.set("spark.sql.shuffle.partitions", "1")
    return session


def put(folder: Path, number: int, rows: list[dict[str, Any]], schema: pa.Schema = SCHEMA) -> None:
    """Write one file, which is one epoch."""
    folder.mkdir(exist_ok=True)
    whole = folder / f".{number}.parquet"
    pq.write_table(pa.Table.from_pylist(rows, schema), whole)
    os.utime(whole, (1_700_000_000 + number,) * 2)  # by which Spark puts them in order
    whole.rename(folder / f"{number}.parquet")


def read(session: SparkSession, folder: Path, ddl: str = DDL) -> DataFrame:
    """One file an epoch."""
    folder.mkdir(exist_ok=True)
    files = session.readStream.schema(ddl).option("maxFilesPerTrigger", 1)
    return files.parquet(str(folder))


def us(time: datetime | None) -> int | None:
    """A timestamp as microseconds."""
    if time is None:
        return None
    assert time.tzinfo is not None
    delta = time - datetime(1970, 1, 1, tzinfo=timezone.utc)
    return (delta.days * 86_400 + delta.seconds) * 1_000_000 + delta.microseconds


class Job:
    """One query with its two sinks, which is stopped and started again."""

    def __init__(self, name: str, folder: Path, frame: Outputs) -> None:
        self.name, self.folder = name, folder
        self.stream = (
            exactly_once(frame, name)
            .to(MemorySink(f"windows-{name}"))
            .to(MemorySink(f"windows-{name}-late"), output="late", name="late")
        )
        MemorySink.clear(f"windows-{name}")
        MemorySink.clear(f"windows-{name}-late")
        self.watermarks_ms: dict[int, int] = {}

    def start(self) -> None:
        checkpoint = str(self.folder / f"checkpoint-{self.name}")
        self.query = self.stream.start(checkpoint, available_now=True)

    def wait(self) -> None:
        assert self.query.awaitTermination(120)
        for progress in self.query.recentProgress:
            if progress["numInputRows"]:
                at = datetime.fromisoformat(
                    progress["eventTime"]["watermark"].replace("Z", "+00:00")
                )
                found = us(at)
                assert found is not None
                self.watermarks_ms[progress["batchId"]] = found // 1000

    @property
    def rows(self) -> list[dict[str, Any]]:
        return [dict(row) for row in MemorySink.rows(f"windows-{self.name}")]

    @property
    def final(self) -> dict[tuple[Any, int | None], dict[str, Any]]:
        newest: dict[tuple[Any, int | None], dict[str, Any]] = {}
        for row in sorted(self.rows, key=lambda row: row["revision"]):
            place = (row["k"], us(row["window_start"]))
            assert row["revision"] == (newest[place]["revision"] + 1 if place in newest else 0)
            newest[place] = row
        return {
            place: row
            for place, row in newest.items()
            if row["k"] != "far" and not row.get("deleted")
        }

    @property
    def late(self) -> list[int]:
        late = [dict(row) for row in MemorySink.rows(f"windows-{self.name}-late")]
        return sorted(row["n"] for row in late)


def some_epochs(rng: random.Random) -> Epochs:
    """Rows within hours of a change of the clocks, some of them late, and one far ahead."""
    found: Epochs = []
    for epoch in range(3):
        minutes = [35 * epoch - rng.choice([0, 0, 5, 10, 20, 30, 60, 90, 120]) for _ in range(16)]
        # Of a key of their own: the first of epoch 1 has fired when the last of epoch 2 comes.
        minutes += [35 * epoch, 35 * epoch - 36, 35 * epoch - 62]
        rows = [
            {
                "n": epoch * 100 + at,
                "k": rng.choice([None, "a", "b"]) if at < 16 else "c",
                "ts": None if at == 0 else MIDNIGHT + one * MINUTE + rng.choice([0, 0, -1, 1]),
                "x": rng.choice([None, 1, 2, 3]),
            }
            for at, one in enumerate(minutes)
        ]
        found.append((rows, False))
    far = {"n": -1, "k": "far", "ts": MIDNIGHT + 10_000 * MINUTE, "x": None}
    return [*found, ([far], False)]


def test_windows_and_sessions_are_those_of_the_oracle_over_a_restart(
    rocks: SparkSession, tmp_path: Path, rng: random.Random
) -> None:
    epochs = some_epochs(rng)
    source = read(rocks, tmp_path / "in")
    shapes: dict[str, dict[str, Any]] = {
        "sliding": {"size": "40 minutes", "slide": "20 minutes", "offset": "2 minutes"},
        "sessions": {"session_gap": "10 minutes"},
    }
    jobs = {}
    for name, shape in shapes.items():
        shape |= {"watermark": "10 minutes", "allowed_lateness": "30 minutes", "late": "side"}
        jobs[name] = Job(name, tmp_path, windowed(source, "ts", by="k", **shape).agg(**AGGREGATES))
    for files in (range(2), range(2, 4)):
        for number in files:
            put(tmp_path / "in", number, epochs[number][0])
        for job in jobs.values():
            job.start()
        for job in jobs.values():
            job.wait()
    for name, job in jobs.items():
        watermarks = [at for _, at in sorted(job.watermarks_ms.items())]
        assert len(watermarks) == 4
        late_us = 30 * MINUTE
        if name == "sessions":
            expected, too_late = oracle_of_sessions(epochs, watermarks, 10 * MINUTE, late_us, True)
        else:
            sliding = WindowShape(40 * MINUTE, 20 * MINUTE, 2 * MINUTE)
            expected, too_late = oracle_of_windows(epochs, watermarks, sliding, late_us)
        assert job.late == sorted(n for each in too_late for n in each)
        found = {
            place: {column: row[column] for column in AGGREGATES}
            | ({"window_end": us(row["window_end"])} if name == "sessions" else {})
            for place, row in job.final.items()
        }
        assert found == {place: row for place, row in expected.items() if place[0] != "far"}, name
        assert len(job.late) > 3
        assert any(row["revision"] for row in job.rows), "nothing fired again"


VALUES = pa.schema(
    [
        pa.field("k", pa.float64()),
        pa.field("ts", pa.timestamp("us", tz="UTC")),
        pa.field("i", pa.int32()),
        pa.field("f", pa.float64()),
        pa.field("d", pa.decimal128(30, 3)),
        pa.field("s", pa.string()),
        pa.field("t", pa.timestamp("us", tz="UTC")),
        pa.field("day", pa.date32()),
        pa.field("b", pa.bool_()),
    ]
)
VALUES_DDL = (
    "k double, ts timestamp, i int, f double, d decimal(30, 3), s string, t timestamp, day date, "
    "b boolean"
)
NATIVE = {
    "rows": count(), "there": count("s"), "i_sum": sum_of("i"), "f_sum": sum_of("f"),
    "d_sum": sum_of("d"), "i_mean": avg_of("i"), "f_mean": avg_of("f"), "d_mean": avg_of("d"),
    "f_min": min_of("f"), "f_max": max_of("f"), "s_min": min_of("s"), "s_max": max_of("s"),
    "t_min": min_of("t"), "day_max": max_of("day"), "b_max": max_of("b"), "d_min": min_of("d"),
    "all": collect_of("s"), "times": collect_of("t"), "first": first_of("i"), "last": last_of("f"),
}  # fmt: skip


def hard_rows(rng: random.Random, base: int) -> list[dict[str, Any]]:
    """Values that are easily taken for others."""
    nan = float("nan")
    return [
        {
            "k": rng.choice([None, 0.0, -0.0, nan, 1.5]),
            "ts": base + rng.randrange(0, 40) * MINUTE // 4,
            "i": rng.choice([None, -(2**31), 2**31 - 1, 0]),
            "f": rng.choice([None, nan, 0.0, 0.5, -2.0, float("inf")]),
            "d": rng.choice([None, Decimal("0.001"), Decimal("123456789012345678901234567.891")]),
            "s": rng.choice([None, "", "ä", "𝄞", "z"]),
            "t": rng.choice([None, 0, -1, MIDNIGHT + 90 * MINUTE]),
            "day": rng.choice([None, 0, -100_000, 2_000_000]),
            "b": rng.choice([None, True, False]),
        }
        for _ in range(60)
    ]


def test_without_lateness_ours_are_sparks_own(
    rocks: SparkSession, tmp_path: Path, rng: random.Random
) -> None:
    """Also two rows that are exactly the gap of a session apart, which are one session."""
    source = read(rocks, tmp_path / "in", VALUES_DDL)
    shapes: dict[str, dict[str, Any]] = {
        "sliding": {"size": "6 minutes", "slide": "2 minutes", "offset": "1 minute"},
        "sessions": {"session_gap": "1 minute"},
    }
    both = None
    for name, shape in shapes.items():
        for lateness in (None, "0 seconds"):
            made = windowed(
                source, "ts", by="k", watermark="2 minutes", allowed_lateness=lateness, **shape
            ).agg(**NATIVE)
            frame = made.frame.drop("deleted")
            frame = frame.select(
                F.lit(name).alias("shape"), F.lit(lateness is None).alias("native"), "*"
            )
            assert ("TransformWithState" in plan_of(frame)) is (lateness is not None)
            both = frame if both is None else both.unionByName(frame)
    assert both is not None
    writer = both.writeStream.format("memory").queryName("windows_both")
    query = writer.option("checkpointLocation", str(tmp_path / "checkpoint")).start()
    edge = [
        {**dict.fromkeys(VALUES.names), "k": 7.0, "ts": MIDNIGHT + at}
        for at in (0, MINUTE, 2 * MINUTE + 1)
    ]
    far = {**dict.fromkeys(VALUES.names), "ts": MIDNIGHT + 1000 * MINUTE}
    parts = [hard_rows(rng, MIDNIGHT) + edge, hard_rows(rng, MIDNIGHT + 8 * MINUTE), [far]]
    for number, rows in enumerate(parts):
        put(tmp_path / "in", number, rows, VALUES)
        query.processAllAvailable()
    query.stop()
    found = rocks.table("windows_both").drop("revision").toPandas()
    for name in shapes:
        of = found[found["shape"] == name]
        native, ours = (
            sorted(
                repr(tuple(row)) for row in of[of["native"] == own].drop(columns="native").values
            )
            for own in (True, False)
        )
        assert len(native) > 5
        assert ours == native, name
    sessions = found[(found["shape"] == "sessions") & (found["k"] == 7.0) & found["native"]]
    assert sorted(sessions["rows"]) == [1, 2]


def plan_of(frame: DataFrame) -> str:
    """What Spark is going to do, in words."""
    return str(frame._jdf.queryExecution().analyzed().toString())


class Weighted(CustomAggregate):
    state_type = "total double, n bigint"
    returns = "double"

    def add(self, rows: pd.DataFrame) -> tuple[Any, ...]:
        return rows.x.sum(), len(rows)

    def merge(self, one: tuple[Any, ...], other: tuple[Any, ...]) -> tuple[Any, ...]:
        return one[0] + other[0], one[1] + other[1]

    def result(self, partial: tuple[Any, ...]) -> Any:
        return partial[0] / partial[1]


def test_counted_rows_and_an_aggregate_of_ones_own(rocks: SparkSession, tmp_path: Path) -> None:
    MemorySink.clear("windows-counted")
    for number in range(2):
        rows = [
            {"n": number * 5 + at, "k": "a", "ts": MIDNIGHT + (5 - at) * MINUTE, "x": number + at}
            for at in range(5)
        ]
        put(tmp_path / "in", number, rows)
    frame = windowed(read(rocks, tmp_path / "in"), "ts", every_rows=4, by="k").agg(
        ns=collect_of("n"), mean=Weighted(), many=approx_distinct("n"), half=quantiles("x", 0.5)
    )
    stream = exactly_once(frame, "counted").to(MemorySink("windows-counted"))
    assert stream.start(str(tmp_path / "checkpoint"), available_now=True).awaitTermination(120)
    told: list[Any] = list(MemorySink.rows("windows-counted"))
    told.sort(key=lambda row: row["window_number"])
    assert [(row["k"], row["window_number"], row["revision"]) for row in told] == [
        ("a", 0, 0),
        ("a", 1, 0),
    ]
    # Each epoch's rows are counted in the order of time, which here goes backwards.
    assert [sorted(row["ns"]) for row in told] == [[1, 2, 3, 4], [0, 7, 8, 9]]
    assert [row["mean"] for row in told] == [2.5, (0 + 3 + 4 + 5) / 4]
    assert [row["many"] for row in told] == [4, 4]
    assert [round(row["half"][0], 1) for row in told] == [2.0, 3.0]


def put_pair(folder: Path, epoch: int, larger: int) -> list[int]:
    """Two files of an epoch, one of which has more bytes; return the numbers in them."""
    folder.mkdir(exist_ok=True)
    numbers = range(epoch * 10, epoch * 10 + 10)
    for side in range(2):
        rows = (json.dumps({"n": n, "k": "a"}) for n in numbers[side * 5 : side * 5 + 5])
        blanks = " " * (500 if side == larger else 1)
        path = folder / f"{epoch}-{side}.json"
        path.write_text("".join(f"{row}{blanks}\n" for row in rows))
        os.utime(path, (1_700_000_000 + 2 * epoch + side,) * 2)
    return list(numbers)


def test_counted_rows_of_an_epoch_that_comes_again_in_another_order(
    rocks: SparkSession, tmp_path: Path
) -> None:
    """Spark reads large files first, and the order of its Kafka partitions is another one too."""

    def job() -> Stream:
        files = rocks.readStream.schema("n long, k string").option("maxFilesPerTrigger", 2)
        made = windowed(files.json(str(tmp_path / "in")), every_rows=4, by="k")
        return exactly_once(made.agg(ns=collect_of("n")), "again").to(MemorySink("again"))

    MemorySink.clear("again")
    given = [n for epoch in range(2) for n in put_pair(tmp_path / "in", epoch, larger=0)]
    run_and_die(job(), tmp_path, "decide.after")
    put_pair(tmp_path / "in", 0, larger=1)
    run(job(), tmp_path)
    told: list[Any] = list(MemorySink.rows("again"))
    assert sorted(row["window_number"] for row in told) == list(range(5))
    assert sorted(n for row in told for n in row["ns"]) == given


def test_early_results_and_deleted_sessions_in_a_table(rocks: SparkSession, tmp_path: Path) -> None:
    def row(number: int, minute: int, k: str = "a") -> list[dict[str, Any]]:
        at = MIDNIGHT + minute * MINUTE
        return [{"n": number, "k": k, "ts": datetime.fromtimestamp(at / 1e6, timezone.utc)}]

    def build(frame: DataFrame) -> Stream:
        sessions = windowed(
            frame, "ts", session_gap="10 minutes", by="k", watermark="0 seconds",
            allowed_lateness="10 hours", early="1 ms",
        ).agg(ns=sum_of("n"))  # fmt: skip
        table = SqliteSink(
            tmp_path / "o.db", "t", mode="upsert", key=("k", "window_start"), deleted="deleted"
        )
        return exactly_once(sessions, "early").to(table).to(MemorySink("early"), name="all")

    def minute_of(at: datetime) -> int:
        return ((us(at) or 0) - MIDNIGHT) // MINUTE

    MemorySink.clear("early")
    script: Script = [
        row(1, 0),
        row(2, 5),
        CRASH("decide.after"),
        row(4, -8),  # it begins earlier
        row(0, 100, "far"),  # it fires
        CRASH("decide.after"),
        row(8, -16),  # and again, earlier still
    ]
    run_epochs(rocks, build, script, tmp_path, schema=DDL)
    with closing(sqlite3.connect(tmp_path / "o.db")) as database:
        held = database.execute("SELECT window_start, ns, revision FROM t WHERE k = 'a'").fetchall()
    assert [(minute_of(datetime.fromisoformat(at)), *rest) for at, *rest in held] == [(-16, 15, 0)]
    found: list[Any] = [one for one in MemorySink.rows("early") if one["k"] == "a"]
    shown = [(minute_of(row["window_start"]), row["revision"], row["deleted"]) for row in found]
    assert sorted(shown) == [
        (-16, 0, False), (-8, 0, False), (-8, 1, False), (-8, 2, True), (0, 0, False), (0, 1, True),
    ]  # fmt: skip


def test_windows_by_the_time_at_which_rows_come(rocks: SparkSession, tmp_path: Path) -> None:
    """A window of the clock on the wall ends without another row."""
    queries = []
    clocks: list[Literal["ingestion", "processing"]] = ["ingestion", "processing"]
    for clock, watermark in zip(clocks, ("0 seconds", None), strict=True):
        MemorySink.clear(f"windows-{clock}")
        made = windowed(
            read(rocks, tmp_path / "in"),
            size="100 ms",
            by="k",
            clock=clock,
            early="1 hour",
            watermark=watermark,
        ).agg(ns=collect_of("n"))
        stream = exactly_once(made, clock).to(MemorySink(f"windows-{clock}"))
        queries.append(stream.start(str(tmp_path / clock), every="100 milliseconds"))
    try:
        for number in range(2):  # a later row, for the watermark of the first one
            put(tmp_path / "in", number, [{"n": number, "k": "a", "ts": None, "x": None}])
            while number not in found_in("processing"):
                assert not any(query.awaitTermination(0.1) for query in queries)
        while not found_in("ingestion"):
            assert not any(query.awaitTermination(0.1) for query in queries)
    finally:
        for query in queries:
            query.stop()
    assert found_in("processing") == [0, 1]
    assert found_in("ingestion") == [0]


def test_a_clock_that_goes_back_makes_rows_late_only_beyond_the_delay(
    rocks: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The rows say themselves what the clock showed when they came."""
    monkeypatch.setattr(F, "current_timestamp", lambda: F.col("ts"))
    MemorySink.clear("back")
    MemorySink.clear("back-late")

    def build(frame: DataFrame) -> Stream:
        made = windowed(frame, size="10 seconds", clock="ingestion", late="side")
        stream = exactly_once(made.agg(ns=collect_of("n")), "back").to(MemorySink("back"))
        return stream.to(MemorySink("back-late"), output="late", name="late")

    seconds = [12, 21, 18, 26, 13, 60]  # at 18 the watermark is 16 s, at 13 it is 21 s
    script: Script = [
        [{"n": n, "k": "a", "ts": datetime.fromtimestamp(1_700_000_000 + at, timezone.utc)}]
        for n, at in enumerate(seconds)
    ]
    run_epochs(rocks, build, script, tmp_path, schema=DDL)
    told: list[Any] = list(MemorySink.rows("back"))
    assert sorted(row["ns"] for row in told) == [[0, 2], [1, 3]]
    late: list[Any] = list(MemorySink.rows("back-late"))
    assert [row["n"] for row in late] == [4]


def test_windows_over_an_inner_join_are_those_of_nested_loops(
    rocks: SparkSession, tmp_path: Path, rng: random.Random
) -> None:
    """They use the join's watermark, so a pair that is found late is in time for its window."""

    def build(frame: DataFrame) -> Stream:
        left, right = (
            frame.where(f"x = {side}").selectExpr("k", f"n AS n{side}", f"ts AS ts{side}")
            for side in (0, 1)
        )
        pairs = interval_join(
            left, right, "k", left_time="ts0", right_time="ts1",
            between=("-2 minutes", "5 minutes"), watermark="1 minute",
        )  # fmt: skip
        made = windowed(pairs, "ts0", size="3 minutes", by="k", allowed_lateness="10 hours")
        sums = made.agg(pairs=count(), sum=sum_of("n1"))
        table = SqliteSink(tmp_path / "p.db", "t", mode="upsert", key=("k", "window_start"))
        return exactly_once(sums, "pairs").to(table)

    rows: list[list[dict[str, Any]]] = [
        [
            {
                "n": epoch * 100 + at,
                "k": rng.choice("ab"),
                "x": at % 2,
                # Each epoch begins a minute before the end of the last, as the watermark allows.
                "ts": MIDNIGHT + epoch * 4 * MINUTE + rng.randrange(5 * MINUTE),
            }
            for at in range(12)
        ]
        for epoch in range(4)
    ]
    found: dict[tuple[str, int], list[int]] = {}
    every = [row for epoch in rows for row in epoch]
    for one in every:
        for other in every:
            sides = (one["k"], one["x"], other["x"])
            if sides != (other["k"], 0, 1):
                continue
            if -2 * MINUTE <= other["ts"] - one["ts"] <= 5 * MINUTE:
                start = one["ts"] // (3 * MINUTE) * 3 * MINUTE
                found.setdefault((one["k"], start), []).append(other["n"])
    assert found
    far: list[dict[str, Any]] = [
        {"n": 0, "k": "far", "x": x, "ts": MIDNIGHT + 1000 * MINUTE} for x in (0, 1)
    ]
    further = [{**row, "ts": row["ts"] + 100 * MINUTE} for row in far]
    script: Script = [with_times(rows[0]), with_times(rows[1]), CRASH("decide.after")]
    script += [with_times(each) for each in (*rows[2:], far, further)]
    run_epochs(rocks, build, script, tmp_path, schema=DDL)
    with closing(sqlite3.connect(tmp_path / "p.db")) as database:
        told = database.execute("SELECT k, window_start, pairs, sum FROM t WHERE k <> 'far'")
        shown = {(k, us(datetime.fromisoformat(at))): (n, total) for k, at, n, total in told}
    assert shown == {place: (len(ns), sum(ns)) for place, ns in found.items()}


def with_times(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Rows with a time for their microseconds."""
    start = datetime(1970, 1, 1, tzinfo=timezone.utc)
    return [{**row, "ts": start + timedelta(microseconds=row["ts"])} for row in rows]


def found_in(name: str) -> list[int]:
    """The rows of all windows that were told."""
    told: list[Any] = list(MemorySink.rows(f"windows-{name}"))
    return [n for row in told for n in row["ns"]]


def test_the_example_of_the_docs(rocks: SparkSession, tmp_path: Path) -> None:
    text = (ROOT / "docs" / "windows.md").read_text("utf-8")
    (code,) = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
    names: dict[str, Any] = {"__name__": "docs_example"}
    exec(code, names)
    names["test_orders_that_come_late"](rocks, tmp_path)
