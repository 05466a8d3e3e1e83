"""Databases beside what people write today: ``make bench-databases``.

Real servers on the same machine. Each figure compares epochs of the same rows in one run, in
interleaved pairs after a warm-up, of queries that run all the while: ours, exactly once, against
Spark's JDBC writer in a plain ``foreachBatch`` as it comes and with its driver's batches rewritten,
against psycopg's ``executemany``, and against a bare pipeline of redis-py. Tables are emptied
between epochs.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, SparkSession

from beadline.sinks import MySqlSink, PostgresSink, RedisSink
from beadline.testing.servers import mariadb, postgres, redis
from beadline.testing.servers.ports import LOOPBACK
from bench._common import report, spread
from bench._databases import (
    COLUMNS,
    Columns,
    Side,
    Start,
    Write,
    database_session,
    ours,
    theirs,
    write_rows,
)

ROWS = int(os.environ.get("BENCH_ROWS", "1000000"))
UPSERTS = ROWS // 5
SETS = ROWS // 4
PAIRS = int(os.environ.get("BENCH_PAIRS", "7"))
WARM_UP = 2
ONLY = os.environ.get("BENCH_ONLY", "").split()  # names of functions here; all unless given

Seconds = dict[str, list[float]]


def rounds(
    starts: Mapping[str, Start],
    folder: Path,
    empty: Callable[[], object] = lambda: None,
    columns: Columns = (),
) -> Seconds:
    """Let running queries take turns with an epoch each; return the seconds of their epochs."""
    sides = [Side(name, start, folder / "in", folder, columns) for name, start in starts.items()]
    seconds: Seconds = {side.name: [] for side in sides}
    for number in range(-WARM_UP, PAIRS):
        for place in range(len(sides)):
            side = sides[(number + place) % len(sides)]
            empty()
            took = side.epoch()
            if number >= 0:
                seconds[side.name].append(took)
        found = (f"{name} {of_one[-1]:.2f} s" for name, of_one in seconds.items() if of_one)
        print(f"round {number}:", ", ".join(found), flush=True)
    for side in sides:
        side.stop()
    return seconds


def ratio(seconds: Seconds, them: str, us: str) -> dict[str, float]:
    """How many times faster we are, pair by pair."""
    return spread([t / u for t, u in zip(seconds[them], seconds[us], strict=True)])


def asked(server: Any, *statements: str) -> Any:
    """Run statements with a client of our own; return what the last one says, if anything."""
    with closing(server.connect()) as connection, connection.cursor() as cursor:
        for statement in statements:
            cursor.execute(statement)
        found = cursor.fetchall() if cursor.description else None
        connection.commit()
    return found


def jdbc(url: str, table: str, driver: str, user: str, password: str) -> Write:
    """Spark's own writer, as the documentation shows it."""
    properties = {"driver": driver, "user": user, "password": password}

    def write(frame: DataFrame, _: int) -> None:
        frame.write.jdbc(url, table, mode="append", properties=properties)

    return write


def postgres_append(spark: SparkSession, folder: Path) -> dict[str, Any]:
    """Appends against JDBC, as it comes and tuned."""
    write_rows(spark, folder / "in", ROWS)
    with postgres() as server:
        columns = ", ".join(f"{name} {kind}" for name, kind in COLUMNS.items())
        asked(server, f"CREATE TABLE orders ({columns})")
        url = f"jdbc:postgresql://{LOOPBACK}:{server.port}/postgres"
        login = ("org.postgresql.Driver", "postgres", server.password)
        plain = jdbc(url, "orders", *login)
        tuned = jdbc(f"{url}?reWriteBatchedInserts=true", "orders", *login)
        sink = PostgresSink(server.dsn, table="orders")
        seconds = rounds(
            {"jdbc": theirs(plain), "tuned_jdbc": theirs(tuned), "beadline": ours(sink)},
            folder,
            lambda: asked(server, "TRUNCATE orders"),
        )
        assert list(asked(server, "SELECT count(*) FROM orders")) == [(ROWS,)]
    return {
        "postgres_append_vs_jdbc": ratio(seconds, "jdbc", "beadline")["p50"],
        "postgres_append_vs_tuned_jdbc": ratio(seconds, "tuned_jdbc", "beadline")["p50"],
        "postgres_append_s": {name: spread(found) for name, found in seconds.items()},
    }


def postgres_upsert(spark: SparkSession, folder: Path) -> dict[str, Any]:
    """Upserts against ``executemany`` of INSERT … ON CONFLICT.

    Once in the function of ``foreachBatch`` itself, which makes an epoch one transaction as ours
    is, and once on the executors, where each part is a transaction of its own.
    """
    write_rows(spark, folder / "in", UPSERTS)
    names = list(COLUMNS)
    marks = ", ".join(["%s"] * len(names))
    changes = ", ".join(f"{name} = excluded.{name}" for name in names if name != "id")
    statement = f"INSERT INTO orders ({', '.join(names)}) VALUES ({marks}) ON CONFLICT (id) DO "
    statement += f"UPDATE SET {changes}"
    with postgres() as server:
        columns = ", ".join(f"{name} {kind}" for name, kind in COLUMNS.items())
        asked(server, f"CREATE TABLE orders ({columns}, PRIMARY KEY (id))")
        dsn = server.dsn

        def many(rows: Iterator[Any]) -> None:
            import psycopg

            with psycopg.connect(dsn) as connection, connection.cursor() as cursor:
                cursor.executemany(statement, [tuple(row) for row in rows])

        def one_transaction(frame: DataFrame, _: int) -> None:
            many(iter(frame.collect()))

        sink = PostgresSink(dsn, table="orders", mode="upsert", key="id")
        seconds = rounds(
            {
                "executemany": theirs(one_transaction),
                "executemany_by_parts": theirs(lambda frame, _: frame.foreachPartition(many)),
                "beadline": ours(sink),
            },
            folder,
            # Half of the rows are there already, so that both kinds of upsert happen.
            lambda: asked(
                server,
                "TRUNCATE orders",
                f"INSERT INTO orders (id) SELECT n FROM generate_series(0, {UPSERTS}, 2) AS n",
            ),
        )
    return {
        "postgres_upsert_vs_executemany": ratio(seconds, "executemany", "beadline")["p50"],
        "postgres_upsert_vs_executemany_by_parts": ratio(
            seconds, "executemany_by_parts", "beadline"
        )["p50"],
        "postgres_upsert_s": {name: spread(found) for name, found in seconds.items()},
    }


def mysql_append(spark: SparkSession, folder: Path) -> dict[str, Any]:
    """Appends against JDBC with its batches rewritten."""
    write_rows(spark, folder / "in", ROWS)
    with mariadb() as server:
        kinds = {name: kind.replace("timestamptz", "datetime(6)") for name, kind in COLUMNS.items()}
        columns = ", ".join(f"{name} {kind}" for name, kind in kinds.items())
        asked(server, f"CREATE TABLE orders ({columns})")
        url = f"jdbc:mysql://{server.host}:{server.port}/{server.database}"
        url += "?rewriteBatchedStatements=true&connectionTimeZone=UTC"
        tuned = jdbc(url, "orders", "com.mysql.cj.jdbc.Driver", server.user, server.password)
        sink = MySqlSink(server.dsn, table="orders")
        seconds = rounds(
            {"tuned_jdbc": theirs(tuned), "beadline": ours(sink)},
            folder,
            lambda: asked(server, "TRUNCATE orders"),
        )
        assert list(asked(server, "SELECT count(*) FROM orders")) == [(ROWS,)]
    return {
        "mysql_vs_tuned_jdbc": ratio(seconds, "tuned_jdbc", "beadline")["p50"],
        "mysql_append_s": {name: spread(found) for name, found in seconds.items()},
    }


def redis_set(spark: SparkSession, folder: Path) -> dict[str, Any]:
    """SETs against a bare pipeline of the same."""
    write_rows(spark, folder / "in", SETS)
    with redis() as server:
        url = server.url

        def pipeline(rows: Iterator[Any]) -> None:
            import redis as library

            with library.Redis.from_url(url) as client:
                batch = client.pipeline(transaction=False)
                for number, row in enumerate(rows, 1):
                    batch.set(row.key, row.value)
                    if number % 1_000 == 0:
                        batch.execute()
                batch.execute()

        sink = RedisSink(url, staging=str(folder / "staging"))
        seconds = rounds(
            {
                "pipeline": theirs(lambda frame, _: frame.foreachPartition(pipeline)),
                "beadline": ours(sink),
            },
            folder,
            columns=("'k' || id AS key", "note AS value"),
        )
    return {
        "redis_vs_pipeline": ratio(seconds, "pipeline", "beadline")["p50"],
        "redis_set_s": {name: spread(found) for name, found in seconds.items()},
    }


def main() -> None:
    """Run everything, or what BENCH_ONLY names."""
    spark = database_session()
    found: dict[str, Any] = {}
    for part in (postgres_append, postgres_upsert, mysql_append, redis_set):
        if ONLY and part.__name__ not in ONLY:
            continue
        with tempfile.TemporaryDirectory(prefix="beadline-bench-") as folder:
            found |= part(spark, Path(folder))
    report(benchmark="databases", rows=ROWS, pairs=PAIRS, **found)


if __name__ == "__main__":
    main()
