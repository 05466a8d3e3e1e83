"""``dead_letter=`` on Spark: refused rows show once in the other sink, whatever dies."""

from __future__ import annotations

import json
import re
import sqlite3
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession

from beadline import Stream, at_least_once, exactly_once
from beadline.errors import BadQuery, BadSink, GuaranteeRefused, PrepareFailed
from beadline.observe.history import read_history
from beadline.sink import AnySink, Part
from beadline.sinks import ConsoleSink, FileSink, MemorySink, SqliteSink
from beadline.testing import CRASH, run_epochs
from beadline.testing.epochs import Script
from tests.spark.jobs import run, run_and_die

ROOT = Path(__file__).parents[2]
SCHEMA = "id long, k string"
# An epoch with refused rows, one without any, and one with nothing else.
A: list[dict[str, Any]] = [{"id": 1, "k": "a"}, {"id": 2, "k": None}, {"id": 3, "k": "c"}]
B: list[dict[str, Any]] = [{"id": 4, "k": "d"}]
C: list[dict[str, Any]] = [{"id": 5, "k": None}, {"id": 6, "k": None}]
TAKEN, REFUSED = [1, 3, 4], [2, 5, 6]
WHY = "null in column 'k', which is part of the key or NOT NULL"

Records = Sequence[dict[str, Any]]


@dataclass(frozen=True)
class Target:
    """A dead-letter sink, and how its rows are read."""

    sink: AnySink
    read: Callable[[], Records]


@pytest.fixture
def out(tmp_path: Path) -> SqliteSink:
    """A table that takes no null in ``k``."""
    with closing(sqlite3.connect(tmp_path / "out.db")) as database:
        database.execute("CREATE TABLE t (id INTEGER, k TEXT NOT NULL)")
    return SqliteSink(tmp_path / "out.db", "t")


def select(path: Path, sql: str) -> list[Any]:
    with closing(sqlite3.connect(path)) as database:
        database.row_factory = sqlite3.Row
        return [dict(row) for row in database.execute(sql)]


def taken(folder: Path) -> list[int]:
    return [row["id"] for row in select(folder / "out.db", "SELECT id FROM t ORDER BY id")]


def ids(records: Records) -> list[int]:
    return sorted(json.loads(record["row"])["id"] for record in records)


@pytest.fixture(params=["files", "sqlite", "memory"])
def target(request: pytest.FixtureRequest, spark: SparkSession, tmp_path: Path) -> Target:
    if request.param == "files":
        folder = str(tmp_path / "letters")
        return Target(FileSink(folder), lambda: files(spark, folder))
    if request.param == "sqlite":
        path = tmp_path / "letters.db"
        sink = SqliteSink(path, "letters")
        return Target(sink, lambda: select(path, "SELECT * FROM letters"))
    name = re.sub(r"\W", "-", request.node.name)[:50]
    MemorySink.clear(name)
    return Target(MemorySink(name), lambda: MemorySink.rows(name))


def files(spark: SparkSession, folder: str) -> Records:
    return [row.asDict() for row in spark.read.parquet(folder).collect()]


def job(out: AnySink, letters: AnySink) -> Callable[[DataFrame], Stream]:
    return lambda frame: exactly_once(frame, "job").to(out, dead_letter=letters)


def test_refused_rows_go_to_the_other_sink(
    spark: SparkSession, tmp_path: Path, out: SqliteSink, target: Target
) -> None:
    script: Script = [A, B, C]
    result = run_epochs(spark, job(out, target.sink), script, tmp_path, schema=SCHEMA)
    assert taken(tmp_path) == TAKEN
    found = sorted(target.read(), key=lambda letter: str(letter["row"]))
    assert list(found[0]) == ["query", "sink", "epoch", "part", "reason", "row"]
    common = {"query": "job", "sink": "out-t", "part": 0, "reason": WHY}
    assert [{**letter, "row": json.loads(letter["row"])} for letter in found] == [
        {**common, "epoch": epoch, "row": {"id": id_, "k": None}}
        for epoch, id_ in ((0, 2), (2, 5), (2, 6))
    ]
    rows = [event.details["rows"] for event in result.events if event.kind == "committed"]
    assert rows == [
        {"out-t": 2, "out-t-dead-letter": 1},
        {"out-t": 1, "out-t-dead-letter": 0},
        {"out-t": 0, "out-t-dead-letter": 2},
    ]


@pytest.mark.parametrize("point", ["prepare.between", "prepare.after", "decide.before"])
def test_a_death_between_prepare_and_decide(
    spark: SparkSession, tmp_path: Path, out: SqliteSink, target: Target, point: str
) -> None:
    script: Script = [CRASH(point), A, CRASH(point), B, CRASH(point), C]
    result = run_epochs(spark, job(out, target.sink), script, tmp_path, schema=SCHEMA, parts=2)
    assert result.restarts == 3
    assert taken(tmp_path) == TAKEN
    assert ids(target.read()) == REFUSED


def test_a_death_after_the_decision(
    spark: SparkSession, tmp_path: Path, out: SqliteSink, target: Target
) -> None:
    script: Script = [
        CRASH, CRASH("commit.between"), A, CRASH("commit.after"), B,
        CRASH, CRASH("recover.before"), C,
    ]  # fmt: skip
    run_epochs(spark, job(out, target.sink), script, tmp_path, schema=SCHEMA, parts=2)
    assert taken(tmp_path) == TAKEN
    assert ids(target.read()) == REFUSED


def test_at_least_once(
    spark: SparkSession, tmp_path: Path, out: SqliteSink, target: Target
) -> None:
    def build(frame: DataFrame) -> Stream:
        return at_least_once(frame, "job").to(out, dead_letter=target.sink)

    script: Script = [A, B, CRASH("prepare.before"), C]
    result = run_epochs(spark, build, script, tmp_path, schema=SCHEMA)
    assert taken(tmp_path) == TAKEN
    assert ids(target.read()) == REFUSED
    last = result.events[-1].details["rows"]
    assert last == {"out-t": 0, "out-t-dead-letter": 2}


def test_at_least_once_loses_nothing_between_the_two_sinks(
    spark: SparkSession, tmp_path: Path, out: SqliteSink
) -> None:
    """The rows show, the dead-letter records are not yet prepared: the epoch is redelivered."""
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "0.json").write_text("\n".join(json.dumps(row) for row in [*A, *B, *C]))
    frame = spark.readStream.schema(SCHEMA).json(str(tmp_path / "in"))
    MemorySink.clear("between")
    stream = at_least_once(frame, "job").to(out, dead_letter=MemorySink("between"))
    run_and_die(stream, tmp_path, "prepare.before", times=2)
    assert taken(tmp_path) == TAKEN
    assert MemorySink.rows("between") == []
    run(stream, tmp_path)
    assert taken(tmp_path) == TAKEN
    assert ids(MemorySink.rows("between")) == REFUSED


def test_without_a_dead_letter_sink_the_query_stops(
    spark: SparkSession, tmp_path: Path, out: SqliteSink
) -> None:
    with pytest.raises(PrepareFailed, match=r"epoch 1, sink 'out-t'.*1 row.*null in column 'k'"):
        run_epochs(
            spark, lambda frame: exactly_once(frame, "job").to(out), [B, A], tmp_path, schema=SCHEMA
        )
    assert taken(tmp_path) == [4]
    # With one, the epoch is redelivered and continues.
    letters = MemorySink("later")
    MemorySink.clear("later")
    run_epochs(spark, job(out, letters), [C], tmp_path, schema=SCHEMA)
    assert taken(tmp_path) == TAKEN
    assert ids(MemorySink.rows("later")) == REFUSED


def test_two_sinks_may_share_a_dead_letter_sink(
    spark: SparkSession, tmp_path: Path, out: SqliteSink
) -> None:
    upsert = SqliteSink(tmp_path / "out.db", "keyed", mode="upsert", key="k")
    letters = SqliteSink(tmp_path / "letters.db", "letters")

    def build(frame: DataFrame) -> Stream:
        stream = exactly_once(frame, "job").to(out, dead_letter=letters)
        return stream.to(upsert, dead_letter=letters).to(MemorySink("all"))

    MemorySink.clear("all")
    script: Script = [CRASH("decide.before"), A, CRASH, C]
    run_epochs(spark, build, script, tmp_path, schema=SCHEMA, parts=2)
    assert len(MemorySink.rows("all")) == 5
    found = select(tmp_path / "letters.db", "SELECT * FROM letters")
    for name in ("out-t", "out-keyed"):
        assert ids([letter for letter in found if letter["sink"] == name]) == REFUSED


def test_the_log_holds_the_dead_letter_sink_too(
    spark: SparkSession, tmp_path: Path, out: SqliteSink
) -> None:
    MemorySink.clear("log")
    run_epochs(spark, job(out, MemorySink("log")), [B, A], tmp_path, schema=SCHEMA)
    history = read_history(str(tmp_path / "checkpoint"))
    assert history.newest.sinks["out-t-dead-letter"] == "memory:log"
    decisions = [epoch.decision for epoch in history.epochs]
    assert [len(d.sinks["out-t-dead-letter"]) for d in decisions if d is not None] == [0, 1]


def test_nothing_is_run_for_an_epoch_without_refused_rows(
    spark: SparkSession, tmp_path: Path, out: SqliteSink
) -> None:
    scheduler = spark.sparkContext._jsc.sc().dagScheduler()

    def jobs(rows: list[dict[str, Any]], dead_letter: AnySink | None, folder: str) -> int:
        def build(frame: DataFrame) -> Stream:
            return exactly_once(frame, folder).to(out, dead_letter=dead_letter)

        before = int(scheduler.numTotalJobs())
        assert run_epochs(spark, build, [B, rows], tmp_path / folder, schema=SCHEMA).epochs == 2
        return int(scheduler.numTotalJobs()) - before

    MemorySink.clear("jobs")
    without = jobs(B, None, "without")
    assert jobs(B, MemorySink("jobs"), "with") == without
    assert jobs(A, MemorySink("jobs"), "refused") > without, "the count counts nothing"


def test_a_dead_letter_sink_that_refuses_stops_the_query(
    spark: SparkSession, tmp_path: Path, out: SqliteSink
) -> None:
    with closing(sqlite3.connect(tmp_path / "letters.db")) as database:
        columns = "query TEXT, sink TEXT, epoch INTEGER, part INTEGER, reason TEXT, row TEXT"
        database.execute(f"CREATE TABLE letters ({columns})")
    letters = Picky(tmp_path / "letters.db", "letters")
    with pytest.raises(PrepareFailed, match=r"'out-t-dead-letter'.*cannot take 1 refused.*either"):
        run_epochs(spark, job(out, letters), [A], tmp_path, schema=SCHEMA)
    assert taken(tmp_path) == []
    assert select(tmp_path / "letters.db", "SELECT * FROM letters") == []
    assert list(out.in_doubt(read_history(str(tmp_path / "checkpoint")).newest.query, "out")) == []


@dataclass(frozen=True)
class Picky(SqliteSink):
    """Takes nothing."""

    def prepare(self, rows: Any, part: Part) -> Any:
        for batch in rows:
            part.refuse(batch, "not today")


def test_what_is_refused_at_start(spark: SparkSession, tmp_path: Path, out: SqliteSink) -> None:
    frame = spark.readStream.schema(SCHEMA).json(str(tmp_path))
    checkpoint = str(tmp_path / "checkpoint")
    stream = exactly_once(frame, "job")
    with pytest.raises(GuaranteeRefused, match="sink 'out-t-dead-letter' is at-least-once"):
        stream.to(out, dead_letter=ConsoleSink()).start(checkpoint)
    with closing(sqlite3.connect(tmp_path / "letters.db")) as database:
        database.execute("CREATE TABLE letters (row TEXT)")
    narrow = SqliteSink(tmp_path / "letters.db", "letters")
    with pytest.raises(BadSink, match="no column 'query'"):
        stream.to(out, dead_letter=narrow).start(checkpoint)
    files = FileSink(str(tmp_path / "files"))
    with pytest.raises(BadQuery, match="sink 'files-files' cannot hand rows over to dead_letter="):
        stream.to(files, dead_letter=out).start(checkpoint)
    assert not Path(checkpoint).exists()
    allowed = stream.to(out, dead_letter=ConsoleSink(), allow="at-least-once")
    allowed.start(checkpoint, available_now=True).awaitTermination(60)


def test_the_example_of_the_docs(spark: SparkSession, tmp_path: Path) -> None:
    text = (ROOT / "docs" / "dead-letter.md").read_text("utf-8")
    (code,) = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
    names: dict[str, Any] = {"__name__": "docs_example"}
    exec(code, names)
    names["test_an_order_without_an_id_is_a_dead_letter_record"](spark, tmp_path)
