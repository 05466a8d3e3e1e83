"""``PostgresSink`` in a whole query: three tables, a dead-letter table, a driver that dies."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import DataFrame, SparkSession

from beadline import Stream, exactly_once
from beadline.errors import CheckpointProblem, TargetRestored, WrongCheckpoint
from beadline.ids import PartId
from beadline.points import hooked
from beadline.sink import Part
from beadline.sinks import PostgresSink
from beadline.testing import CRASH, run_epochs
from beadline.testing.epochs import CrashStep
from beadline.testing.servers import PostgresServer
from tests.servers.postgres_target import Orders
from tests.spark.jobs import read, run, write_input

CRASHES = (
    "decide.before",
    "decide.after",
    "prepare.between",
    "commit.between",
    "ledger.before",
    "ledger.after",
    "commit.after",
)


@pytest.fixture(params=["prepared", "staged"])
def both_ways(
    request: pytest.FixtureRequest, postgres_server: PostgresServer
) -> tuple[Orders, PostgresSink]:
    """An empty table, and a sink that commits to it in the one way and in the other."""
    log = Orders(postgres_server, "id bigint, k text, v bigint")
    return log, PostgresSink(postgres_server.dsn, "orders", log.schema, how=request.param)


def test_a_driver_that_keeps_dying(
    spark: SparkSession, postgres_server: PostgresServer, tmp_path: Path
) -> None:
    log = Orders(postgres_server, "id bigint, word varchar(5), n integer")
    place = f'"{log.schema}"'
    log.run(f"CREATE TABLE {place}.totals (word text PRIMARY KEY, n bigint NOT NULL)")
    log.run(
        f"CREATE TABLE {place}.refused (query text, sink text, epoch bigint, part integer, "
        '"row" jsonb, reason text)'
    )
    dead_letter = PostgresSink(postgres_server.dsn, "refused", log.schema)
    totals = PostgresSink(postgres_server.dsn, "totals", log.schema, mode="add", key="word")

    def build(frame: DataFrame) -> Stream:
        return (
            exactly_once(frame, log.schema.replace(" ", "-"))
            .to(log.sink, name="log", dead_letter=dead_letter)
            .to(totals, rows=lambda df: df.selectExpr("substr(word, 1, 1) AS word", "n"))
        )

    script: list[list[dict[str, Any]] | CrashStep] = []
    sent: list[dict[str, Any]] = []
    for number, point in enumerate(CRASHES):
        rows = [{"id": number * 10 + n, "word": "abcdef"[: n + 1], "n": n} for n in range(6)]
        script += [CRASH(point), rows]
        sent += rows
    run_epochs(spark, build, script, tmp_path, schema="id long, word string, n int", parts=2)
    fits = [(row["id"], row["word"], row["n"]) for row in sent if len(row["word"]) <= 5]
    assert sorted(log.rows()) == fits
    assert log.run(f"TABLE {place}.totals") == [("a", 15 * len(CRASHES))]
    refused = log.run(f'SELECT "row", reason FROM {place}.refused')
    ids = [(json.loads(row) if isinstance(row, str) else row)["id"] for row, _ in refused]
    assert sorted(ids) == [row["id"] for row in sent if len(row["word"]) > 5]
    assert {reason for _, reason in refused} == {"column 'word': longer than character varying(5)"}
    assert log.leftovers() == []
    name = log.schema.replace(" ", "-")
    assert log.run(f"SELECT gid FROM pg_prepared_xacts WHERE gid ~ '~{name}~'") == []
    # The checkpoint is deleted: the database remembers.
    with pytest.raises(WrongCheckpoint, match="DELETE FROM"):
        run_epochs(
            spark, build, script[1:2], tmp_path / "again", schema="id long, word string, n int"
        )


def test_a_server_that_was_restored_is_refused(
    spark: SparkSession, both_ways: tuple[Orders, PostgresSink], tmp_path: Path
) -> None:
    """As if an old backup had been restored: two epochs are gone that it had acknowledged."""
    log, sink = both_ways
    place = f'"{log.schema}"'
    kept = ("orders", "_beadline_ledger", "_beadline_parts")

    def start(**settings: Any) -> None:
        stream = exactly_once(read(spark, tmp_path / "in"), log.schema.replace(" ", "-"))
        run(stream.to(sink, name="orders"), tmp_path, **settings)

    first = write_input(tmp_path / "in", 2)
    start()
    for name in kept:
        log.run(f'CREATE TABLE {place}."backup_{name}" AS TABLE {place}."{name}"')
    write_input(tmp_path / "in", 2, first=2)
    start()
    for name in kept:
        log.run(f'DELETE FROM {place}."{name}"; INSERT INTO {place}."{name}" '
                f'TABLE {place}."backup_{name}"')  # fmt: skip
    last = write_input(tmp_path / "in", 1, first=4)
    with pytest.raises(CheckpointProblem, match=r"acknowledged epoch 3 .* now holds epoch 1"):
        start()
    assert sorted(row[0] for row in log.rows()) == first
    start(drop=["orders"])  # the loss is taken, once
    assert sorted(row[0] for row in log.rows()) == first + last


def test_a_standby_that_lags_takes_over_between_two_epochs(
    spark: SparkSession, both_ways: tuple[Orders, PostgresSink], tmp_path: Path
) -> None:
    """No start is in between: the commit itself finds that an epoch is missing."""
    log, sink = both_ways
    place = f'"{log.schema}"'
    decided: list[str] = []

    def take_over(point: str) -> None:
        decided.extend([point] if point == "decide.after" else [])
        if point == "decide.after" and len(decided) == 3:  # epoch 1 had not reached the standby
            log.run(f"DELETE FROM {place}.orders WHERE id >= 10")
            back = "epoch = 0, rows = 0" if sink.how == "staged" else "epoch = -1, rows = -1"
            log.run(f"UPDATE {place}._beadline_ledger SET {back}")
            log.run(f"UPDATE {place}._beadline_parts SET epoch = 0")

    first = write_input(tmp_path / "in", 1)
    write_input(tmp_path / "in", 2, first=1)
    stream = exactly_once(read(spark, tmp_path / "in"), log.schema.replace(" ", "-"))
    stream = stream.to(sink, name="orders")
    with hooked(take_over), pytest.raises(TargetRestored, match=r"acknowledged epoch 1.*epoch 0"):
        run(stream, tmp_path)
    assert sorted(row[0] for row in log.rows()) == first


def test_orphans_of_a_sink_that_was_renamed_are_rolled_back(
    spark: SparkSession, postgres_server: PostgresServer, tmp_path: Path
) -> None:
    """They would hold locks until an operator finds them."""
    log = Orders(postgres_server, "id bigint, k text, v bigint")
    sink = PostgresSink(postgres_server.dsn, "orders", log.schema, how="prepared")
    query = log.schema.replace(" ", "-")
    ids = write_input(tmp_path / "in", 1)

    def stream(name: str) -> Stream:
        return exactly_once(read(spark, tmp_path / "in"), query).to(sink, name=name)

    def prepared() -> int:
        return len(log.run(f"SELECT gid FROM pg_prepared_xacts WHERE gid ~ '~{query}~'"))

    run(stream("warehouse"), tmp_path)
    ((incarnation,),) = log.run(f'SELECT incarnation FROM "{log.schema}"._beadline_ledger')
    # As a driver leaves it that is killed before it decides.
    orphan = PartId(query, incarnation, "warehouse", 1, 1, 0, 0)
    rows = pa.table({"id": [99], "k": ["k"], "v": [99]})
    assert sink.prepare(iter(rows.to_batches()), Part(orphan)) is not None
    assert prepared() == 1
    ids += write_input(tmp_path / "in", 1, first=1)
    run(stream("orders"), tmp_path)
    assert prepared() == 0
    assert sorted(row[0] for row in log.rows()) == ids
    log.run(f'ALTER TABLE "{log.schema}".orders ADD COLUMN more int')
