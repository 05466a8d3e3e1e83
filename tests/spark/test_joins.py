"""Joins, duplicates and top-N on Spark, against nested loops over everything that came."""

from __future__ import annotations

import datetime
import functools
import json
import os
import random
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import Any, Literal, TypeVar

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.datasource import DataSource

from beadline import Stream, exactly_once, sources
from beadline.errors import StateChanged, UsageError
from beadline.event_time import (
    KeyedProcess,
    count,
    deduplicated,
    interval_join,
    keyed_process,
    lookup_join,
    temporal_join,
    window_join,
    windowed,
)
from beadline.sinks import MemorySink, SqliteSink
from beadline.spark.facts import expressions
from beadline.state.backend import HDFS_BACKED, PROVIDER, ROCKSDB_STORE, session_settings
from beadline.testing import CRASH, run_epochs
from beadline.testing.epochs import Script
from tests.spark.jobs import read, rows_sink, session_conf, table, write_input

SCHEMA = "side string, k string, ts timestamp, x bigint"
DELAY_S = 60
LOWER_S, UPPER_S = -20, 30
SIZE_S, SLIDE_S = 40, 20
HOWS: tuple[Literal["inner", "left", "right", "full"], ...] = ("inner", "left", "right", "full")
SLIDES_S = {"inner": SLIDE_S, "left": SIZE_S, "right": SLIDE_S, "full": SIZE_S}
CASES, EPOCHS = 150, 3
END = "the end"  # a key of rows that only move the watermark
T = TypeVar("T")
Row = tuple[str, str | None, float | None, int]  # side, key, seconds, number
Result = tuple[str, str | None, int | None, int | None, int | None]


@pytest.fixture(autouse=True)
def one_task(spark: SparkSession) -> Iterator[None]:
    """Few tasks: what is asked is the same with more of them."""
    with session_conf(spark, {"spark.sql.shuffle.partitions": "1"}):
        yield


@pytest.fixture
def rocksdb(spark: SparkSession) -> Iterator[None]:
    """What transformWithState needs."""
    with session_conf(spark, ROCKSDB_STORE):
        yield


@pytest.fixture
def in_memory(spark: SparkSession) -> Iterator[None]:
    """The quicker store, for many small states; Spark's own joins do the same on both."""
    with session_conf(spark, {PROVIDER: HDFS_BACKED}):
        yield


def dicts(rows: list[Row]) -> list[dict[str, Any]]:
    return [
        {"side": side, "k": key, "ts": None if at is None else time(at), "x": number}
        for side, key, at, number in rows
    ]


def time(seconds: float) -> datetime.datetime:
    return datetime.datetime.fromtimestamp(seconds, tz=datetime.timezone.utc)


def end(at: float = 100_000) -> list[Row]:
    """Rows that move the watermark past everything."""
    return [("l", END, at, -1), ("r", END, at, -2)]


def both(frame: DataFrame) -> tuple[DataFrame, DataFrame]:
    left = frame.where("side = 'l'").selectExpr("k", "ts AS lts", "x AS lx")
    right = frame.where("side = 'r'").selectExpr("k", "ts AS rts", "x AS rx")
    return left, right


def some_rows(rng: random.Random, epoch: int, first: int) -> list[Row]:
    """Return an epoch's rows; some belong to the time of the epoch before it."""
    at = 100.0 * epoch
    rows: list[Row] = [
        (side, rng.choice(["a", "b", None]), at + rng.randint(-90, 50), first + number)
        for number, side in enumerate("lrlrlrlrlrlr")
    ]
    edge: list[tuple[str, float]] = [("l", 0), ("r", LOWER_S), ("r", UPPER_S), ("r", 0)]
    edge += [("r", LOWER_S - 0.001), ("r", UPPER_S + 0.001), ("l", SIZE_S), ("l", 0)]
    rows += [(side, "edge", at + gap, first + 20 + n) for n, (side, gap) in enumerate(edge)]
    # Both sides reach the same time, which is the watermark's.
    rows += [("l", "c", at + 50, first + 40), ("r", "d", at + 50, first + 41)]
    return [*rows, ("l", "a", None, first + 50), ("r", "a", None, first + 51)]


def columns(frame: DataFrame, case: str) -> DataFrame:
    """Return the rows of a case in columns that all cases have."""
    there = set(frame.columns)
    shown = {"k": "string", "lx": "bigint", "rx": "bigint", "window_start": "timestamp"}
    found = [
        (F.col(name) if name in there else F.lit(None)).cast(type_).alias(name)
        for name, type_ in shown.items()
    ]
    return frame.select(F.lit(case).alias("case"), *found)


@dataclass(frozen=True)
class Given:
    """A row, and the watermark of the epoch in which it comes."""

    side: str
    key: str | None
    at: float | None
    number: int
    watermark: float = 0

    def is_late(self, at: float | None) -> bool:
        return at is not None and at <= self.watermark


def random_cases(rng: random.Random) -> list[Given]:
    """Return rows of many keys, each a case of its own, in the order in which they come."""
    rows = []
    gaps = [0, 0, LOWER_S, UPPER_S, LOWER_S - 0.001, UPPER_S + 0.001, SIZE_S, SLIDE_S]
    for number in range(CASES):
        base = 1000 + rng.randrange(0, 30) * SLIDE_S
        for side in "l" * rng.randint(0, 4) + "r" * rng.randint(0, 4):
            key = f"k{number}" if rng.randrange(20) else None
            gap = rng.choice([*gaps, rng.randint(-90, 150)])
            rows.append((side, key, base + gap if rng.randrange(30) else None))
    # Some come later than the watermark allows; which ones depends on the cuts.
    rows.sort(key=lambda row: (row[2] or rng.randint(1000, 1600)) + rng.uniform(0, 2 * DELAY_S))
    return [Given(*row, number) for number, row in enumerate(rows)]


def cut(rows: list[Given], rng: random.Random) -> list[list[Given]]:
    """Cut rows into epochs, and tell each of them the watermark of its epoch."""
    bounds = [0, *sorted(rng.sample(range(20, len(rows) - 20), EPOCHS - 1)), len(rows)]
    epochs: list[list[Given]] = []
    newest = {"l": 0.0, "r": 0.0}
    for start, end in pairwise(bounds):
        watermark = max(0, min(newest.values()) - DELAY_S)
        epochs.append([replace(row, watermark=watermark) for row in rows[start:end]])
        for row in epochs[-1]:
            newest[row.side] = max(newest[row.side], row.at or 0)
    return epochs


def native_cases(frame: DataFrame) -> DataFrame:
    """Return all kinds of joins of the same streams, as one stream."""
    delay = f"{DELAY_S} seconds"
    on: dict[str, Any] = {"on": "k", "left_time": "lts", "right_time": "rts", "watermark": delay}
    near = (f"{LOWER_S} seconds", f"{UPPER_S} seconds")
    cases = [columns(deduplicated(frame, "k", "ts", within=delay).withColumnRenamed("x", "lx"), "")]
    for how in HOWS:
        by_interval = interval_join(*both(frame), between=near, how=how, **on)
        cases.append(columns(by_interval, f"interval {how}"))
        slide = f"{SLIDES_S[how]} seconds"
        by_window = window_join(*both(frame), size=f"{SIZE_S} seconds", slide=slide, how=how, **on)
        cases.append(columns(by_window, f"window {how}"))
    return functools.reduce(DataFrame.union, cases)


def native_oracle(rows: list[Given]) -> list[Result]:
    """Try each left row with each right row, in every way."""
    found: list[Result] = []
    in_time = [row for row in rows if not row.is_late(row.at)]
    lefts = [row for row in in_time if row.side == "l"]
    rights = [row for row in in_time if row.side == "r"]
    for how in HOWS:
        pairs = [(one, other) for one in lefts for other in rights if is_near(one, other)]
        for one, other in joined(how, lefts, rights, pairs):
            found.append((f"interval {how}", *shown(one, other), None))
        first, second = (in_windows(rows, side, SLIDES_S[how]) for side in "lr")
        both_in = [
            (one, other)
            for one in first
            for other in second
            if one[0] == other[0] and one[1].key == other[1].key is not None
        ]
        for left, right in joined(how, first, second, both_in):
            start, _ = left or right or (None, None)
            found.append((f"window {how}", *shown(left and left[1], right and right[1]), start))
    return sorted(found, key=repr)


def is_near(left: Given, right: Given) -> bool:
    if left.key is None or left.key != right.key or left.at is None or right.at is None:
        return False
    return LOWER_S <= round(right.at - left.at, 3) <= UPPER_S


def in_windows(rows: list[Given], side: str, slide_s: int) -> list[tuple[int, Given]]:
    """Return rows once for each window that is not over."""
    return [
        (start, row)
        for row in rows
        if row.side == side and row.at is not None
        for start in range(0, 3000, slide_s)
        if start <= row.at < start + SIZE_S and not row.is_late(start + SIZE_S)
    ]


def joined(
    how: str, lefts: list[T], rights: list[T], pairs: list[tuple[T, T]]
) -> Iterator[tuple[T | None, T | None]]:
    """Yield the pairs, and what has no partner."""
    yield from pairs
    with_partner = {one for pair in pairs for one in pair}
    if how in ("left", "full"):
        yield from ((one, None) for one in lefts if one not in with_partner)
    if how in ("right", "full"):
        yield from ((None, other) for other in rights if other not in with_partner)


def shown(left: Given | None, right: Given | None) -> tuple[str | None, int | None, int | None]:
    key = left.key if left is not None else right.key if right is not None else None
    numbers = [None if one is None else one.number for one in (left, right)]
    return key, numbers[0], numbers[1]


def check_duplicates(epochs: list[list[Given]], once: set[int]) -> None:
    """Of the rows of a key that is not known, one shows; a key is known until it is over."""
    known: dict[str | None, float] = {}
    for rows in epochs:
        for key in {row.key for row in rows}:
            mine = [row for row in rows if row.key == key and not row.is_late(row.at)]
            showing = [row for row in mine if row.number in once]
            is_known = known.get(key, 0) > rows[0].watermark
            assert len(showing) == (1 if mine and not is_known else 0), (key, mine, known.get(key))
            for row in showing:
                known[key] = (row.at or 0) + DELAY_S
    assert once <= {row.number for rows in epochs for row in rows if not row.is_late(row.at)}


def results(name: str) -> list[Result]:
    rows = [row for row in MemorySink.rows(name) if row["k"] != END]
    starts = [row["window_start"] for row in rows]
    return sorted(
        (
            (row["case"], row["k"], row["lx"], row["rx"], start and round(start.timestamp()))
            for row, start in zip(rows, starts, strict=True)
        ),
        key=repr,
    )


@pytest.mark.usefixtures("in_memory")
def test_joins_and_duplicates_of_many_random_cases(
    spark: SparkSession, tmp_path: Path, rng: random.Random
) -> None:
    """Every key is a case; the cuts into epochs are random too, and one of them is redelivered."""
    name = uuid.uuid4().hex
    epochs = cut(random_cases(rng), rng)
    rows = [row for epoch in epochs for row in epoch]
    assert 0 < sum(row.is_late(row.at) for row in rows) < len(rows) / 2
    given = [[(row.side, row.key, row.at, row.number) for row in epoch] for epoch in epochs]
    given[-1] += end()
    script: list[Any] = [dicts(epoch) for epoch in given]
    script.insert(rng.randint(1, EPOCHS - 1), CRASH("decide.after"))

    def build(frame: DataFrame) -> Stream:
        return exactly_once(native_cases(frame), "joins").to(MemorySink(name))

    run_epochs(spark, build, script, tmp_path, schema=SCHEMA)
    found = results(name)
    assert [row for row in found if row[0]] == native_oracle(rows)
    once = [row[2] for row in found if not row[0]]
    assert len(once) == len(set(once))
    check_duplicates(epochs, {number for number in once if number is not None})


def test_an_outer_row_that_cannot_match_shows_at_once(spark: SparkSession, tmp_path: Path) -> None:
    name = uuid.uuid4().hex
    rows: list[Row] = [("l", None, 100, 1), ("l", "a", None, 2), ("l", "a", 100, 3)]
    rows += [("r", "a", 100, 4), ("l", "b", 100, 5)]

    def build(frame: DataFrame) -> Stream:
        near: dict[str, Any] = {
            "left_time": "lts",
            "right_time": "rts",
            "between": ("0 seconds", "1 second"),
        }
        joined = interval_join(*both(frame), "k", how="left", watermark="1 minute", **near)
        return exactly_once(joined, "outer").to(MemorySink(name))

    run_epochs(spark, build, [dicts(rows)], tmp_path, schema=SCHEMA)
    shown = sorted((row["lx"], row["rx"]) for row in MemorySink.rows(name))
    assert shown == [(1, None), (2, None), (3, 4)]


def test_duplicates_show_once(spark: SparkSession, tmp_path: Path) -> None:
    name = uuid.uuid4().hex
    script: Script = [
        dicts([("l", "a", 100, 1), ("l", "a", 100, 1), ("l", "a", 130, 1), ("l", None, 100, 2)]),
        CRASH("decide.after"),
        dicts([("l", "a", 160, 1), ("l", "b", 101, 1), ("l", None, 159, 2)]),
        dicts([("l", "c", 500, 1)]),
        dicts([("l", "a", 501, 1), ("l", "b", 50, 1), ("l", "a", None, 3)]),
    ]

    def build(frame: DataFrame) -> Stream:
        once = deduplicated(frame, by=("k", "x"), time="ts", within="1 minute")
        return exactly_once(once, "once").to(MemorySink(name))

    run_epochs(spark, build, script, tmp_path, schema=SCHEMA)
    shown = [(row["k"], row["x"]) for row in MemorySink.rows(name)]
    assert sorted(shown, key=repr) == [
        ("a", 1),
        ("a", 1),
        ("a", 3),
        ("b", 1),
        ("c", 1),
        (None, 2),
    ]


@pytest.mark.usefixtures("rocksdb")
def test_temporal_join(spark: SparkSession, tmp_path: Path, rng: random.Random) -> None:
    name = uuid.uuid4().hex
    epochs = [some_rows(rng, epoch, 1000 * epoch) for epoch in (1, 2)]
    known = [row for epoch in epochs for row in epoch if row[2] is not None]
    late: list[Row] = [("l", "a", 5, 9001)]
    script: Script = [
        dicts(epochs[0]),
        CRASH("decide.after"),
        dicts([*epochs[1], *late]),
        CRASH("commit.after"),
        dicts(end()),
    ]

    def build(frame: DataFrame, type_: str = "bigint") -> Stream:
        left, right = both(frame)
        joined = temporal_join(
            left,
            right.withColumn("rx", F.col("rx").cast(type_)),
            on="k",
            left_time="lts",
            right_time="rts",
            how="left",
            watermark=f"{DELAY_S} seconds",
            late="side",
        )
        stream = exactly_once(joined, "versions").to(MemorySink(name))
        return stream.to(MemorySink(f"{name}-late"), output="late")

    run_epochs(spark, build, script, tmp_path, schema=SCHEMA)
    shown = [(row["k"], row["lx"], row["rx"]) for row in MemorySink.rows(name)]
    expected = []
    for _, key, at, number in (row for row in known if row[0] == "l"):
        versions = [
            (since or 0, other)
            for side, k, since, other in known
            if side == "r" and k == key is not None and (since or 0) <= (at or 0)
        ]
        expected.append((key, number, max(versions)[1] if versions else None))
    assert sorted(shown, key=repr) == sorted(expected, key=repr)
    without_time = [row[3] for epoch in epochs for row in epoch if row[0] == "l" and not row[2]]
    lates = [row["lx"] for row in MemorySink.rows(f"{name}-late")]
    assert sorted(lates) == sorted([9001, *without_time])
    # Rows of other types do not fit into the state.
    with pytest.raises(StateChanged, match=r"variable 'versions'"):
        run_epochs(spark, lambda f: build(f, "string"), [dicts(end())], tmp_path, schema=SCHEMA)


@pytest.mark.usefixtures("rocksdb")
def test_ranks_in_a_table_are_right_when_a_late_row_changes_them(
    spark: SparkSession, tmp_path: Path
) -> None:
    def build(frame: DataFrame) -> Stream:
        best = windowed(
            frame.drop("side"),
            "ts",
            size="100 seconds",
            by="k",
            watermark="10 seconds",
            allowed_lateness="500 seconds",
            late="side",
        ).top(2, order_by="x", columns=["x", "ts"])
        sink = SqliteSink(tmp_path / "o.db", "best", mode="upsert", key=KEY)
        return exactly_once(best, "top").to(sink).to(MemorySink(name), output="late")

    KEY = ("k", "window_start", "rank")  # noqa: N806
    name = uuid.uuid4().hex
    script: Script = [
        dicts([("l", "a", 1, 5), ("l", "a", 2, 4), ("l", "a", 3, 3), ("l", "b", 4, 1)]),
        dicts([("l", "a", 250, 7)]),
        CRASH("decide.after"),
        dicts([("l", "a", 9, 6), ("l", "b", 8, 1)]),
        dicts([("l", "c", 5000, 0)]),
        dicts([("l", "a", 10, 8)]),
    ]
    run_epochs(spark, build, script, tmp_path, schema=SCHEMA)
    assert _table(tmp_path / "o.db", "k, rank, x, revision", "best") == [
        ("a", 1, 6, 1),
        ("a", 1, 7, 0),
        ("a", 2, 5, 1),
        ("b", 1, 1, 1),
        ("b", 2, 1, 1),
    ]
    assert [row["x"] for row in MemorySink.rows(name)] == [8]


def _table(path: Path, shown: str, name: str) -> list[Any]:
    import sqlite3
    from contextlib import closing

    with closing(sqlite3.connect(path)) as database:
        return sorted(database.execute(f"SELECT {shown} FROM {name}").fetchall())


# -- lookups


def loads(path: Path) -> Callable[[], list[dict[str, Any]]]:
    """Return what loads a table from a file, which a test may change."""
    place = str(path)

    def load_names() -> list[dict[str, Any]]:
        with open(place, encoding="utf-8") as file:
            found: list[dict[str, Any]] = json.load(file)
        return found

    return load_names


def test_a_lookup_sees_the_table_as_it_is_then(spark: SparkSession, tmp_path: Path) -> None:
    names = tmp_path / "names.json"
    names.write_text(json.dumps([{"k": "k0", "name": "old"}, {"k": "k0", "name": "two"}]))
    static = spark.createDataFrame([("k0", 1), (None, 3)], "k string, n int").coalesce(1)
    static.write.parquet(str(tmp_path / "static"))
    write_input(tmp_path / "in", files=1, rows=3)
    joined = lookup_join(read(spark, tmp_path / "in"), loads(names), "k", refresh="1 millisecond")
    files = spark.read.parquet(str(tmp_path / "static"))
    joined = lookup_join(joined, files, "k", how="left")
    query = exactly_once(joined, "job").to(rows_sink(tmp_path)).start(str(tmp_path / "checkpoint"))
    try:
        query.processAllAvailable()
        assert table(tmp_path, "id, name, n") == [(0, "old", 1), (0, "two", 1)]
        names.write_text(json.dumps([{"k": "k2", "name": "new"}, {"k": "k1", "name": None}]))
        later = spark.createDataFrame([("k2", 2)], "k string, n int").coalesce(1)
        later.write.mode("append").parquet(str(tmp_path / "static"))  # not listed any more
        write_input(tmp_path / "in", files=1, rows=3, first=1)
        query.processAllAvailable()
        assert table(tmp_path, "id, name, n")[2:] == [(4, None, None), (5, "new", None)]
        os.remove(names)
        write_input(tmp_path / "in", files=1, rows=3, first=2)
        with pytest.raises(Exception, match="load_names could not be loaded: FileNotFoundError"):
            query.processAllAvailable()
    finally:
        query.stop()
    assert len(table(tmp_path)) == 4


def test_the_analyzer_says_that_a_lookup_may_answer_differently(
    spark: SparkSession, tmp_path: Path
) -> None:
    (tmp_path / "names.json").write_text('[{"k": "k0", "name": "x"}]')
    (tmp_path / "in").mkdir()
    joined = lookup_join(read(spark, tmp_path / "in"), loads(tmp_path / "names.json"), "k")
    (found,) = [seen for seen in expressions(joined) if seen.chance]
    assert [name.rpartition(".")[2] for name in found.chance] == ["load_names"]
    report = str(exactly_once(joined, "job").to(rows_sink(tmp_path)).guarantee())
    assert "load_names()" in report


class NamesSource(DataSource):
    """A table of a system outside, as a Python data source."""

    @classmethod
    def name(cls) -> str:
        return "names_outside"

    def schema(self) -> str:
        return "k string, name string"

    def reader(self, schema: Any) -> Any:
        raise NotImplementedError  # the plan alone is looked at


def test_the_analyzer_names_tables_that_others_may_change(
    spark: SparkSession, tmp_path: Path
) -> None:
    spark.dataSource.register(NamesSource)
    (tmp_path / "in").mkdir()
    outside = spark.read.format("names_outside").load()
    here = spark.createDataFrame([("k0", "x")], "k string, name string")
    here.write.parquet(str(tmp_path / "files"))
    files = spark.read.parquet(str(tmp_path / "files"))
    for other, named in ((outside, ["Table"]), (here, []), (files, [])):
        joined = lookup_join(read(spark, tmp_path / "in"), other, "k")
        assert [seen.name for seen in expressions(joined) if not seen.deterministic] == named
    joined = lookup_join(read(spark, tmp_path / "in"), outside, "k")
    report = str(exactly_once(joined, "job").to(rows_sink(tmp_path)).guarantee())
    assert "a replay gives different values for table names_outside" in report


# -- what is refused before anything is written


class Nothing(KeyedProcess):
    def process(self, row: Any, ctx: Any) -> None:
        pass


BadCall = Callable[[DataFrame, DataFrame], Any]
ON: dict[str, Any] = {"on": "k", "left_time": "lts", "right_time": "rts"}
NEAR: dict[str, Any] = {**ON, "between": ("0 seconds", "1 minute"), "watermark": "1 minute"}
VERSIONS: dict[str, Any] = {**ON, "watermark": "1 minute"}
DAY: dict[str, Any] = {**ON, "size": "1 day", "watermark": "1 minute"}
REFUSED: dict[str, tuple[BadCall, str]] = {
    "no such key": (
        lambda a, b: interval_join(a, b, **{**NEAR, "on": "kk"}),
        "the left side: on='kk': there is no such column",
    ),
    "no keys": (lambda a, b: interval_join(a, b, **{**NEAR, "on": []}), "name the key columns"),
    "keys of two types": (
        lambda a, b: interval_join(a.withColumn("k", F.lit(1)), b, **NEAR),
        "is int on the left and string on the right",
    ),
    "a nested key": (
        lambda a, b: window_join(a.withColumn("k", F.array("k")), b, **DAY),
        "it must be a plain value",
    ),
    "no such time": (
        lambda a, b: interval_join(a, b, **{**NEAR, "left_time": "ts"}),
        "left_time='ts': there is no such column",
    ),
    "a time that is a text": (
        lambda a, b: temporal_join(a, b.withColumn("rts", F.lit("x")), **VERSIONS),
        "right_time='rts' is of type string",
    ),
    "a time without a zone": (
        lambda a, b: temporal_join(
            a.withColumn("lts", F.col("lts").cast("timestamp_ntz")), b, **VERSIONS
        ),
        "its time zone is not known",
    ),
    "bounds turned round": (
        lambda a, b: interval_join(a, b, **{**NEAR, "between": ("1 minute", "-1 minute")}),
        "the lower bound is above the upper one",
    ),
    "one bound": (
        lambda a, b: interval_join(a, b, **{**NEAR, "between": "1 minute"}),
        "two durations",
    ),
    "an odd duration": (
        lambda a, b: interval_join(a, b, **{**NEAR, "between": ("-1 fortnight", "1 minute")}),
        "is not a duration",
    ),
    "an odd join": (
        lambda a, b: interval_join(a, b, how="outer", **NEAR),  # type: ignore[arg-type]
        "'inner', 'left'",
    ),
    "a right temporal join": (
        lambda a, b: temporal_join(a, b, how="right", **VERSIONS),  # type: ignore[arg-type]
        "one of 'inner', 'left'",
    ),
    "no watermark": (lambda a, b: temporal_join(a, b, **ON), "has no watermark"),
    "two watermarks": (
        lambda a, b: interval_join(a.withWatermark("lts", "1 hour"), b, **NEAR),
        "has a watermark already",
    ),
    "three watermarks": (
        lambda a, b: interval_join(a, b, **{**NEAR, "watermark": ("1 s", "1 s", "1 s")}),
        "one duration for both sides",
    ),
    "names of both sides": (
        lambda a, b: interval_join(a, b.withColumn("LX", F.lit(1)), **NEAR),
        "both sides have 'lx'",
    ),
    "one suffix": (
        lambda a, b: interval_join(a, b, suffixes="_r", **NEAR),  # type: ignore[arg-type]
        "two strings",
    ),
    "suffixes that clash": (
        lambda a, b: interval_join(
            a.withColumn("lx_r", F.lit(1)),
            b.withColumn("lx", F.lit(1)),
            suffixes=("", "_r"),
            **NEAR,
        ),
        "more than one column 'lx_r'",
    ),
    "a column named as the window": (
        lambda a, b: window_join(a.withColumn("window_start", F.lit(1)), b, **DAY),
        "more than one column 'window_start'",
    ),
    "a slide that does not divide": (
        lambda a, b: window_join(a, b, slide="7 hours", **DAY),
        "does not divide",
    ),
    "a table for a stream": (
        lambda a, b: interval_join(a, b.sparkSession.createDataFrame([], b.schema), **NEAR),
        "the right side is not a streaming DataFrame",
    ),
    "a late= that is not known": (
        lambda a, b: temporal_join(a, b, late="keep", **VERSIONS),  # type: ignore[arg-type]
        "late='keep'",
    ),
    "a deleted= that is not boolean": (
        lambda a, b: temporal_join(a, b, deleted="rx", **VERSIONS),
        "must be a boolean column",
    ),
    "a stream as a table": (lambda a, b: lookup_join(a, b, "k"), "table= is a stream"),
    "a table that is a list": (
        lambda a, b: lookup_join(a, [], "k"),  # type: ignore[arg-type]
        "not list",
    ),
    "a table that cannot be loaded": (
        lambda a, b: lookup_join(a, lambda: 1 / 0, "k"),
        "ZeroDivisionError",
    ),
    "an empty table": (lambda a, b: lookup_join(a, list, "k"), "schema='product string"),
    "a refresh of nothing": (
        lambda a, b: lookup_join(a, lambda: [{"k": "x"}], "k", refresh="0 s"),
        "more than zero",
    ),
    "duplicates within no time": (
        lambda a, b: deduplicated(a, "k", "lts", within="soon"),
        "is not a duration",
    ),
    "duplicates by nothing": (
        lambda a, b: deduplicated(a, (), "lts", within="1 s"),
        "names the columns",
    ),
    "duplicates by what is not there": (
        lambda a, b: deduplicated(a, "key", "lts", within="1 s"),
        "there is no such column",
    ),
    "duplicates in a shorter watermark": (
        lambda a, b: deduplicated(a.withWatermark("lts", "1 minute"), "k", "lts", within="1 hour"),
        "Spark knows a key for no longer",
    ),
    "windows with lateness behind an outer join": (
        lambda a, b: windowed(
            interval_join(a, b, how="left", **NEAR),
            "lts",
            size="1 hour",
            allowed_lateness="1 hour",
        ).agg(n=count()),
        "these rows come from an outer join of two streams",
    ),
    "late rows of a process behind windows": (
        lambda a, b: keyed_process(
            a.withWatermark("lts", "1 minute")
            .groupBy(F.window("lts", "1 hour"), "k")
            .count()
            .select("k", F.window_time("window").alias("lts")),
            Nothing(),
            by="k",
            outputs="k string",
            time="lts",
            late="side",
        ),
        "these rows come from an aggregation",
    ),
    "an as-of join behind an outer join": (
        lambda a, b: temporal_join(
            interval_join(a, b, how="full", **NEAR),
            b.select("k", F.col("rts").alias("since")),
            **{**VERSIONS, "right_time": "since", "watermark": (None, "1 s")},
        ),
        "these rows come from an outer join of two streams",
    ),
    "no rows of each window": (lambda a, b: hours(a).top(0, "lx"), "at least 1"),
    "ranks by what is not there": (lambda a, b: hours(a).top(1, "x"), "no column 'x'"),
    "ranks of what has no order": (
        lambda a, b: hours(a.withColumn("tags", F.array("k"))).top(1, "lx"),
        "values have no order and cannot break a tie",
    ),
    "ranks by a key named so": (
        lambda a, b: windowed(
            a.withColumnRenamed("k", "rank"), "lts", size="1 hour", by="rank", watermark="1 minute"
        ).top(1, "lx"),
        "already have a column 'rank'",
    ),
    "ranks of a column named so in capitals": (
        lambda a, b: hours(a.withColumn("Revision", F.lit(1))).top(1, "lx"),
        "already have a column 'Revision'",
    ),
    "an as-of join by strings of a collation": (
        lambda a, b: temporal_join(
            collated(a),
            collated(b.select("k", F.col("rts").alias("since"))),
            **{**VERSIONS, "right_time": "since"},
        ),
        "equal in their collation would be different keys",
    ),
    "ranks of a column named so": (
        lambda a, b: hours(a.withColumn("rank", F.lit(1))).top(1, "lx"),
        "already have a column 'rank'",
    ),
}


def collated(frame: DataFrame) -> DataFrame:
    return frame.withColumn("k", F.col("k").cast("string collate UTF8_LCASE"))


def hours(frame: DataFrame) -> Any:
    return windowed(frame, "lts", size="1 hour", by="k", watermark="1 minute")


@pytest.mark.parametrize("case", REFUSED)
def test_refused(spark: SparkSession, case: str) -> None:
    call, words = REFUSED[case]
    rate = sources.rate(spark)
    left = rate.selectExpr("string(value) AS k", "timestamp AS lts", "value AS lx")
    right = rate.selectExpr("string(value) AS k", "timestamp AS rts", "value AS rx")
    with pytest.raises(UsageError) as refused:
        call(left, right)
    assert words in str(refused.value)


def test_a_second_watermark_is_refused_before_the_claim(
    spark: SparkSession, tmp_path: Path
) -> None:
    rows = sources.rate(spark).selectExpr("string(value) AS k", "timestamp AS lts")
    named = lookup_join(rows.withWatermark("lts", "1 minute"), lambda: [{"k": "1", "n": 1}], "k")
    counts = windowed(named, "lts", size="1 minute").agg(n=count())  # the watermark is still there
    again = windowed(counts.frame, "window_end", size="1 hour", watermark="1 minute")
    stream = exactly_once(again.agg(hours=count()), "job").to(rows_sink(tmp_path))
    with pytest.raises(UsageError, match="rows pass two watermarks"):
        stream.start(str(tmp_path / "checkpoint"))
    assert not (tmp_path / "checkpoint" / "beadline").exists()


def test_a_second_watermark_where_spark_allows_it(spark: SparkSession, tmp_path: Path) -> None:
    """By the setting that Spark's own refusal names; such a query ran before it was looked at."""
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "1.json").write_text('{"k": "a", "lts": "2026-01-01T00:00:00Z"}\n')
    rows = spark.readStream.schema("k string, lts timestamp").json(str(tmp_path / "in"))
    twice = rows.withWatermark("lts", "1 minute").withColumn("again", F.col("lts"))
    stream = exactly_once(twice.withWatermark("again", "1 minute"), "job").to(rows_sink(tmp_path))
    with pytest.raises(UsageError, match="rows pass two watermarks"):
        stream.start(str(tmp_path / "checkpoint"))
    with session_settings(spark, {"spark.sql.streaming.statefulOperator.allowMultiple": "false"}):
        query = stream.start(str(tmp_path / "checkpoint"), available_now=True)
        assert query.awaitTermination(120)
