"""``KeyedProcess`` on Spark: state over restarts, timers, outputs of one epoch, late rows."""

from __future__ import annotations

import json
import random
import re
import sqlite3
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import closing
from datetime import date, datetime, timedelta, timezone
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import Row

from beadline import Stream, exactly_once, sources
from beadline.errors import BadQuery, PrepareFailed
from beadline.event_time import KeyedContext, KeyedProcess, keyed_process
from beadline.event_time.columns import row_hash
from beadline.points import hooked
from beadline.sinks import FileSink, MemorySink, SqliteSink
from beadline.spark.facts import expressions
from beadline.spark.query import Query
from beadline.testing import CRASH, run_epochs
from examples.silence_alerts import job
from tests.spark.jobs import Died, die_at, run, session_conf, table
from tests.unit.test_keyed_process import Chain

ROOT = Path(__file__).parents[2]
NOON = datetime(2026, 1, 1, 12, tzinfo=timezone.utc)
FIVE = timedelta(minutes=5)
STATE_STORE = {
    "spark.sql.streaming.stateStore.providerClass": "org.apache.spark.sql.execution.streaming."
    "state.RocksDBStateStoreProvider",
    "spark.sql.streaming.stateStore.rocksdb.changelogCheckpointing.enabled": "true",
    "spark.sql.streaming.stateStore.checkpointFormatVersion": "2",
    # Where a day has 25 hours: times must be the same instants all the way.
    "spark.sql.session.timeZone": "Europe/Berlin",
}
ROWS = "user string, ts timestamp, x int"


@pytest.fixture(autouse=True)
def _state_store(spark: SparkSession) -> Iterator[None]:
    with session_conf(spark, STATE_STORE):
        yield


def at(minute: float) -> datetime:
    return NOON + timedelta(minutes=minute)


class Everything(KeyedProcess):
    """A count, the last three and how often each came; an alert after five silent minutes."""

    def open(self, state: Any) -> None:
        self.count = state.value("count", "n bigint, newest timestamp")
        self.last = state.list("last", "int")
        self.times = state.map("times", "int", "int")

    def process(self, row: Row, ctx: KeyedContext) -> Iterator[Any]:
        held = self.count.get()
        newest = row.ts if held is None else max(row.ts, held.newest)
        if held is not None:
            ctx.cancel_timer(held.newest + FIVE)
        ctx.timer(newest + FIVE)
        self.count.update((1 if held is None else held.n + 1, newest))
        if len(self.last.get()) == 3:
            self.last.update(self.last.get()[1:])
        self.last.add(row.x)
        if row.x is None:
            self.times.clear()
        else:
            self.times.put(row.x, self.times.get(row.x, 0) + 1)
        yield {
            "user": row.user,
            "n": self.count.get().n,
            "last": self.last.get(),
            "times": dict(self.times.items()),
        }

    def on_timer(self, time: datetime, ctx: KeyedContext) -> None:
        self.count.clear()
        ctx.emit_to("alerts", (ctx.key.user, time - FIVE))


def everything(folder: Path) -> Callable[[DataFrame], Stream]:
    def build(frame: DataFrame) -> Stream:
        outputs = keyed_process(
            frame,
            Everything(),
            by="user",
            outputs={
                "main": "user string, n bigint, last array<int>, times map<int, int>",
                "alerts": "user string, since timestamp",
            },
            time="ts",
            watermark="2 minutes",
            late="side",
            order=["ts", "x"],
        )
        return (
            exactly_once(outputs, "everything")
            .to(FileSink(str(folder / "main")))
            .to(SqliteSink(folder / "out.db", "alerts"), output="alerts")
            .to(MemorySink(f"late-{folder.name}"), output="late")
        )

    return build


Given = list[tuple[str | None, float, int | None]]


class Simulation:
    """What must come out, in plain Python."""

    def __init__(self) -> None:
        self.watermark, self.largest = -1e9, -1e9
        self.count: dict[Any, tuple[int, float]] = {}
        self.last: dict[Any, list[int | None]] = defaultdict(list)
        self.times: dict[Any, dict[int, int]] = defaultdict(dict)
        self.main: list[Any] = []
        self.alerts: list[Any] = []
        self.late: list[Any] = []

    def epoch(self, rows: Given) -> None:
        for user, minute, x in sorted(rows, key=lambda row: (row[1], row[2] is not None, row[2])):
            if minute < self.watermark:
                self.late.append((user, at(minute), x))
                continue
            n, newest = self.count.get(user, (0, minute))
            self.count[user] = (n + 1, max(newest, minute))
            self.last[user] = [*self.last[user], x][-3:]
            if x is None:
                self.times[user] = {}
            else:
                self.times[user][x] = self.times[user].get(x, 0) + 1
            self.main.append((user, n + 1, self.last[user], dict(self.times[user])))
        self.fire()
        self.largest = max([self.largest, *(minute for _, minute, _ in rows)])
        if self.largest - 2 > self.watermark:  # Spark runs one more epoch, without rows
            self.watermark = self.largest - 2
            self.fire()

    def fire(self) -> None:
        for user, (_, newest) in list(self.count.items()):
            if newest + 5 <= self.watermark:
                self.alerts.append((user, at(newest)))
                del self.count[user]


def test_everything_in_one_query_whatever_dies(
    spark: SparkSession, tmp_path: Path, rng: random.Random
) -> None:
    expected = Simulation()
    script: list[Any] = []
    crashes = [[], [CRASH("decide.before"), CRASH], []]
    for number, crash in enumerate(crashes):
        rows: Given = [
            (
                rng.choice(["a", "b", None]),
                number * 6 + rng.randint(-6, 6),
                rng.choice([1, 2, None]),
            )
            for _ in range(12)
        ]
        rows += rows[:1]  # the same again
        expected.epoch(rows)
        script += [*crash, [{"user": u, "ts": at(minute), "x": x} for u, minute, x in rows]]
    result = run_epochs(spark, everything(tmp_path), script, tmp_path, schema=ROWS, parts=2)
    assert result.restarts == 2
    main = [
        (row.user, row.n, row.last, row.times)
        for row in spark.read.parquet(str(tmp_path / "main")).collect()
    ]
    assert sorted(main, key=repr) == sorted(expected.main, key=repr)
    alerts = [(user, since) for user, since in table(tmp_path, "user, since", "alerts")]
    assert len(alerts) == len(expected.alerts)
    wanted = [(user, since.strftime("%H:%M")) for user, since in expected.alerts]
    assert sorted([(user, str(since)[11:16]) for user, since in alerts], key=repr) == sorted(
        wanted, key=repr
    )
    late = [(row["user"], row["ts"], row["x"]) for row in MemorySink.rows(f"late-{tmp_path.name}")]
    assert sorted(late, key=repr) == sorted(
        ((user, ts.astimezone(late[0][1].tzinfo), x) for user, ts, x in expected.late), key=repr
    )


class Keyed(KeyedProcess):
    """Its key, from rows and from timers."""

    def open(self, state: Any) -> None:
        self.kept = state.value(
            "kept",
            "at timestamp, day date, money decimal(10, 2), raw binary, inner struct<a: timestamp>, "
            "ats array<timestamp>, map map<string, double>, plain timestamp_ntz",
        )

    def process(self, row: Row, ctx: KeyedContext) -> Iterator[Any]:
        ctx.timer(row.k_at + timedelta(hours=1))
        assert row.k_at.utcoffset() == timedelta(0)
        assert row.nested.at == row.k_at
        assert row.nested.m == {"a": 1}
        held = {
            "at": row.k_at,
            "day": row.k_day,
            "money": row.k_money,
            "raw": row.k_raw,
            "inner": Row(a=row.k_at),
            "ats": [row.k_at],
            "map": {"a": 1},
            "plain": datetime(2026, 10, 25, 2, 30),
        }
        self.kept.update(held)
        assert self.kept.get() == Row(**held)
        yield ("row", repr(tuple(ctx.key)))

    def on_timer(self, time: datetime, ctx: KeyedContext) -> Iterator[Any]:
        kept = self.kept.get()
        assert kept.at == kept.inner.a == kept.ats[0] == ctx.key.k_at, kept
        assert kept.at.utcoffset() == timedelta(0)
        assert (kept.day, kept.money, kept.raw) == tuple(ctx.key)[1:4]
        assert (kept.map, kept.plain) == ({"a": 1.0}, datetime(2026, 10, 25, 2, 30))
        assert time == kept.at + timedelta(hours=1)
        yield ("timer", repr(tuple(ctx.key)))


def test_keys_and_states_of_many_types(spark: SparkSession, tmp_path: Path) -> None:
    schema = (
        "k_at timestamp, k_day date, k_money decimal(10, 2), k_raw binary, k_none string, "
        "nested struct<at: timestamp, m: map<string, int>>"
    )
    # The hour that Berlin has twice.
    first = datetime(2026, 10, 25, 0, 30, tzinfo=timezone.utc)
    rows = [
        {
            "k_at": moment,
            "k_day": date(2026, 10, 25),
            "k_money": Decimal("1.50"),
            "k_raw": b"\0\xff",
            "k_none": None,
            "nested": {"at": moment, "m": {"a": 1}},
        }
        for moment in (first, first + timedelta(hours=1), first + timedelta(hours=5))
    ]

    def build(frame: DataFrame) -> Stream:
        outputs = keyed_process(
            frame,
            Keyed(),
            by=["k_at", "k_day", "k_money", "k_raw", "k_none"],
            outputs="what string, key string",
            time="k_at",
            watermark="1 hour",
        )
        return exactly_once(outputs, "keyed").to(MemorySink(f"keyed-{tmp_path.name}"))

    partitions = spark.conf.get("spark.sql.shuffle.partitions")
    spark.conf.set("spark.sql.shuffle.partitions", "1")  # the keys come one after the other
    try:
        run_epochs(spark, build, [rows], tmp_path, schema=schema)
    finally:
        spark.conf.set("spark.sql.shuffle.partitions", str(partitions))
    found = MemorySink.rows(f"keyed-{tmp_path.name}")
    keys = [repr((row["k_at"], *list(row.values())[1:5])) for row in rows]
    assert sorted((row["what"], row["key"]) for row in found) == sorted(
        [("row", key) for key in keys] + [("timer", key) for key in keys[:2]]
    )


def test_timers_that_set_and_cancel_others(spark: SparkSession, tmp_path: Path) -> None:
    """Spark has read on when a timer fires: what it offers then may be cancelled, or done."""
    schema = "k string, ts timestamp, timers array<int>"
    first = [{"k": "a", "ts": at(0), "timers": [1, 2, 4, 1]}]
    first += [{"k": f"k{n}", "ts": at(0), "timers": [1, 2, 4]} for n in range(50)]
    second = [{"k": "b", "ts": at(10), "timers": [5, 9]}]

    def build(frame: DataFrame) -> Stream:
        given: Any = {"by": "k", "time": "ts", "watermark": "0 s"}
        outputs = keyed_process(frame, Chain(), outputs="k string, minute int", **given)
        return exactly_once(outputs, "chain").to(MemorySink(f"chain-{tmp_path.name}"))

    run_epochs(spark, build, [first, second], tmp_path, schema=schema)
    found = defaultdict(list)
    for row in MemorySink.rows(f"chain-{tmp_path.name}"):
        found[row["k"]].append(row["minute"])
    assert found.pop("b") == [5, 9]
    assert dict(found) == {row["k"]: [1, 3, 4] for row in first}


class Later(KeyedProcess):
    """By processing time: what came, a moment later; and a state that expires."""

    def open(self, state: Any) -> None:
        self.last = state.value("last", "int", ttl="1 hour")

    def process(self, row: Row, ctx: KeyedContext) -> None:
        assert ctx.watermark is None
        assert ctx.now is not None
        self.last.update(row.x)
        ctx.timer(ctx.now + timedelta(milliseconds=1))
        ctx.timer(ctx.now + timedelta(hours=1))

    def on_timer(self, time: datetime, ctx: KeyedContext) -> Iterator[Any]:
        assert ctx.now is not None
        assert time <= ctx.now
        yield ctx.key.user, self.last.get()


def test_timers_by_processing_time(spark: SparkSession, tmp_path: Path) -> None:
    rows = spark.createDataFrame([("a", NOON, 1), ("a", NOON, 2), ("b", NOON, None)], ROWS)
    rows.write.parquet(str(tmp_path / "in"))
    frame = spark.readStream.schema(ROWS).parquet(str(tmp_path / "in"))
    outputs = keyed_process(
        frame, Later(), by=["user"], outputs="user string, x int", clock="processing", order="x"
    )
    stream = exactly_once(outputs, "later").to(MemorySink(f"later-{tmp_path.name}"))
    with pytest.raises(BadQuery, match="available_now=True would never finish"):
        stream.start(str(tmp_path / "checkpoint"), available_now=True)
    assert not (tmp_path / "checkpoint").exists()
    query = stream.start(str(tmp_path / "checkpoint"), every="100 milliseconds")
    deadline_s = time.monotonic() + 60
    while len(MemorySink.rows(f"later-{tmp_path.name}")) < 2 and time.monotonic() < deadline_s:
        time.sleep(0.05)
    query.stop()
    found = MemorySink.rows(f"later-{tmp_path.name}")
    assert sorted(found, key=repr) == [{"user": "a", "x": 2}, {"user": "b", "x": None}]


class Expiring(KeyedProcess):
    """By processing time: tells what its states hold; all but two of them expire after a second."""

    def open(self, state: Any) -> None:
        self.since = state.value("since", "timestamp")
        self.hour = state.value("hour", "int", ttl="1 hour")
        self.value = state.value("value", "int", ttl="1 second")
        self.list = state.list("list", "int", ttl="1 second")
        self.map = state.map("map", "int", "int", ttl="1 second")

    def process(self, row: Row, ctx: KeyedContext) -> Iterator[Any]:
        held = (self.value.get(), self.list.get(), dict(self.map.items()))
        yield row.x, ctx.now, self.since.get(), self.hour.get(), *held
        self.since.update(ctx.now)
        self.hour.update(row.x)
        self.value.update(row.x)
        self.list.add(row.x)
        self.map.put(row.x, row.x)


def test_state_expires_and_a_redelivered_epoch_has_its_old_time(
    spark: SparkSession, tmp_path: Path
) -> None:
    def give(number: int, *xs: int) -> None:
        lines = (json.dumps({"user": "a", "x": x}) for x in xs)
        (tmp_path / "in" / f".{number}").write_text("\n".join(lines))
        (tmp_path / "in" / f".{number}").rename(tmp_path / "in" / f"{number}.json")

    def start() -> Query:
        frame = spark.readStream.schema(ROWS).json(str(tmp_path / "in"))
        shown = "x int, now timestamp, since timestamp, hour int, value int, list array<int>"
        outputs = keyed_process(
            frame, Expiring(), by="user", outputs=f"{shown}, map map<int, int>",
            clock="processing", order="x",
        )  # fmt: skip
        stream = exactly_once(outputs, "expiring").to(MemorySink(name))
        return stream.start(str(tmp_path / "checkpoint"), every="100 milliseconds")

    name = f"expiring-{tmp_path.name}"
    (tmp_path / "in").mkdir()
    give(0, 1, 2)
    # Decided, so that these rows show; the state comes of the epoch that is redelivered.
    for point in ("decide.before", "decide.after"):
        with hooked(die_at(point)), pytest.raises(Died):
            start().awaitTermination(120)
    query = start()
    try:
        deadline_s = time.monotonic() + 120
        while not MemorySink.rows(name) and time.monotonic() < deadline_s:
            time.sleep(0.05)
        first = MemorySink.rows(name)[0]["now"]
        while datetime.now(timezone.utc) <= first + timedelta(seconds=1.1):
            time.sleep(0.05)
        give(1, 3)
        while len(MemorySink.rows(name)) < 3 and time.monotonic() < deadline_s:
            time.sleep(0.05)
    finally:
        query.stop()
    one, two, three = sorted(map(tuple, (row.values() for row in MemorySink.rows(name))))
    assert one == (1, first, None, None, None, [], [])
    assert two == (2, first, first, 1, 1, [1], [(1, 1)])
    assert three == (3, three[1], first, 2, None, [], [])


def test_rows_that_differ_only_in_where_they_are_null_have_an_order(spark: SparkSession) -> None:
    """Spark's hash skips nulls, and rows with the same hash would come as the shuffle brings them.

    So would they if they differ in how a list is divided, or in microseconds inside of a struct.
    """
    columns = "debit int, credit int, lists array<array<int>>, inner struct<at: timestamp>"
    rows = [
        (5, None, [[1], [2, 3]], (NOON,)),
        (None, 5, [[1], [2, 3]], (NOON,)),
        (5, None, [[1, 2], [3]], (NOON,)),
        (5, None, [[1], [2, 3]], (NOON + timedelta(microseconds=1),)),
        (5, None, None, (NOON,)),
        (5, None, [], (NOON,)),
        (5, None, [[1], [2, 3]], None),
        (5, None, [[1], [2, 3]], (None,)),
    ]
    frame = spark.createDataFrame(rows, columns)
    assert frame.select(row_hash(frame)).distinct().count() == len(rows)


class Wrong(KeyedProcess):
    """Emits a text where a number belongs."""

    def process(self, row: Row, ctx: KeyedContext) -> Iterator[Any]:
        yield {"user": row.user, "n": "secret"}


def test_a_row_that_does_not_fit_stops_the_query(spark: SparkSession, tmp_path: Path) -> None:
    def build(frame: DataFrame) -> Stream:
        outputs = keyed_process(
            frame,
            Wrong(),
            by="user",
            outputs="user string, n bigint",
            time="ts",
            watermark="1 s",
        )
        return exactly_once(outputs, "wrong").to(MemorySink(f"wrong-{tmp_path.name}"))

    rows = [{"user": "ann", "ts": NOON, "x": 1}]
    with pytest.raises(PrepareFailed) as raised:
        run_epochs(spark, build, [rows], tmp_path, schema=ROWS)
    said = str(raised.value)
    assert "output 'main' of Wrong, column 'n' (bigint): a value of type str does not fit" in said
    assert "secret" not in said
    assert "ann" not in said


def test_mistakes_are_refused_before_anything_runs(spark: SparkSession) -> None:
    frame = sources.rate(spark).select(
        F.col("value").cast("string").alias("user"),
        F.col("timestamp").alias("ts"),
        F.col("value").cast("double").alias("f"),
        F.array("value").alias("list"),
    )
    good: dict[str, Any] = {"by": "user", "outputs": "n int", "time": "ts", "watermark": "1 s"}

    def refused(**change: Any) -> str:
        with pytest.raises(BadQuery) as raised:
            keyed_process(change.pop("frame", frame), Wrong(), **{**good, **change})
        assert str(raised.value).endswith("Nothing was written.")
        return str(raised.value)

    assert "cannot be parsed as columns" in refused(outputs={"main": "n in t, ("})
    assert "cannot be parsed as columns" in refused(outputs={"main": "n nonsense"})
    assert "two columns named 'n'" in refused(outputs={"main": "n int, n int"})
    assert "by='who': there is no such column; there are user, ts" in refused(by="who")
    assert "by='list' is of type array<bigint>: it must be a plain value" in refused(by="list")
    assert "in which equal values may have different bytes" in refused(by="f")
    any_case = frame.withColumn("user", F.col("user").cast("string collate UTF8_LCASE"))
    assert "equal in their collation would be different keys" in refused(frame=any_case)
    assert "order='who': there is no such column" in refused(order="who")
    assert "time='who': there is no such column" in refused(time="who")
    assert "a timestamp is needed; cast it" in refused(time="user", order="ts")
    assert "needs a watermark, or no timer would ever fire" in refused(watermark=None)
    assert "has a watermark already" in refused(frame=frame.withWatermark("ts", "1 minute"))
    assert "by= names no column" in refused(by=())
    twice = frame.select("user", "ts", F.lit(1).alias("user"))
    assert "two columns of the same name" in refused(frame=twice)


class Dice(KeyedProcess):
    """Uses a clock and random numbers, in what it calls and what it holds."""

    def __init__(self) -> None:
        self.draw = random.random

    def process(self, row: Row, ctx: KeyedContext) -> Iterator[Any]:
        yield (self.drawn(),)

    def drawn(self) -> float:
        return self.draw()

    def on_timer(self, time: datetime, ctx: KeyedContext) -> Iterator[Any]:
        yield (datetime.now().timestamp(),)


def test_clocks_and_random_numbers_are_found_in_a_process(spark: SparkSession) -> None:
    rate = sources.rate(spark)

    def chance(process: KeyedProcess) -> set[str]:
        given: Any = {"by": "value", "time": "timestamp", "watermark": "1 s"}
        found = keyed_process(rate, process, outputs="n double", **given)
        facts = [one for one in expressions(found.frame) if one.name == "PythonUDF"]
        assert facts
        assert not any(one.unreadable for one in facts)
        return {name for one in facts for name in one.chance}

    assert chance(Dice()) == {"random.random", "datetime.datetime.now"}
    assert chance(Wrong()) == set()


def readings(folder: Path, minutes: dict[str, list[int]], number: int) -> None:
    folder.mkdir(exist_ok=True)
    lines = [
        json.dumps({"sensor": sensor, "ts": at(minute).isoformat()})
        for sensor, found in minutes.items()
        for minute in found
    ]
    (folder / f"{number}.json").write_text("\n".join(lines))


def test_the_example(spark: SparkSession, tmp_path: Path) -> None:
    for number, minutes in enumerate([{"a": [0, 2], "b": [1]}, {"a": [6, 10]}]):
        readings(tmp_path / "in", minutes, number)
    stream = job(spark, str(tmp_path / "in"), str(tmp_path / "out"), str(tmp_path / "out.db"))
    run(stream, tmp_path)
    ((sensor, since, count),) = table(tmp_path, "*", "alerts")
    assert (sensor, since[:19], count) == ("b", "2026-01-01T12:01:00", 1)
    assert spark.read.parquet(str(tmp_path / "out")).count() == 5


def test_the_examples_of_the_docs(spark: SparkSession, tmp_path: Path) -> None:
    """As they are, with folders that are there."""
    text = (ROOT / "docs" / "keyed-process.md").read_text("utf-8")
    whole, _, tested = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
    readings(tmp_path / "in", {"a": [0], "b": [7]}, 0)
    names: dict[str, Any] = {"__name__": "docs_example", "noon": NOON}
    names["readings"] = spark.readStream.schema("sensor string, ts timestamp").json(
        str(tmp_path / "in")
    )
    exec(whole.replace("/data", str(tmp_path)), names)
    names["query"].processAllAvailable()
    names["query"].stop()
    with closing(sqlite3.connect(tmp_path / "alerts.db")) as database:
        assert [one[0] for one in database.execute("SELECT sensor FROM alerts")] == ["a"]
    columns = re.search(r"outputs=(\{.*?\}),\n", whole, re.DOTALL)
    assert columns is not None
    exec(f"OUTPUTS = {columns[1]}\n{tested}", names)
