"""``PostgresSink`` in a whole query: three tables, dead letters, and a driver that keeps dying."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession

from beadline import Stream, exactly_once
from beadline.errors import WrongCheckpoint
from beadline.sinks import PostgresSink
from beadline.testing import CRASH, run_epochs
from beadline.testing.epochs import Crash
from beadline.testing.servers import PostgresServer
from tests.servers.postgres_target import Orders

CRASHES = (
    "decide.before",
    "decide.after",
    "prepare.between",
    "commit.between",
    "ledger.before",
    "ledger.after",
    "commit.after",
)


def test_a_driver_that_keeps_dying(
    spark: SparkSession, postgres_server: PostgresServer, tmp_path: Path
) -> None:
    log = Orders(postgres_server, "id bigint, word varchar(5), n integer")
    place = f'"{log.schema}"'
    log.run(f"CREATE TABLE {place}.totals (word text PRIMARY KEY, n bigint NOT NULL)")
    log.run(
        f"CREATE TABLE {place}.letters (query text, sink text, epoch bigint, part integer, "
        '"row" jsonb, reason text)'
    )
    letters = PostgresSink(postgres_server.dsn, "letters", log.schema)
    totals = PostgresSink(postgres_server.dsn, "totals", log.schema, mode="add", key="word")

    def build(frame: DataFrame) -> Stream:
        return (
            exactly_once(frame, log.schema.replace(" ", "-"))
            .to(log.sink, name="log", dead_letter=letters)
            .to(totals, rows=lambda df: df.selectExpr("substr(word, 1, 1) AS word", "n"))
        )

    script: list[list[dict[str, Any]] | Crash] = []
    sent: list[dict[str, Any]] = []
    for number, point in enumerate(CRASHES):
        rows = [{"id": number * 10 + n, "word": "abcdef"[: n + 1], "n": n} for n in range(6)]
        script += [CRASH(point), rows]
        sent += rows
    run_epochs(spark, build, script, tmp_path, schema="id long, word string, n int", parts=2)
    fits = [(row["id"], row["word"], row["n"]) for row in sent if len(row["word"]) <= 5]
    assert sorted(log.rows()) == fits
    assert log.run(f"TABLE {place}.totals") == [("a", 15 * len(CRASHES))]
    refused = log.run(f'SELECT "row", reason FROM {place}.letters')
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
