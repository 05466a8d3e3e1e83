"""The stores of the kill tests: what the job writes to each, and how a stranger reads it back."""

from __future__ import annotations

import uuid
from collections import Counter
from collections.abc import Callable, Iterable
from contextlib import closing
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from beadline.demo.workload import DemoRow, Total
from tests.harness.targets import Judge, Target

PROTOCOL_POINTS = (
    "prepare.part",
    "prepare.acked",
    "prepare.between",
    "prepare.after",
    "decide.before",
    "decide.after",
    "commit.between",
    "commit.after",
    "recover.before",
    "recover.after",
    "epoch.again",
    "epoch.return",
    "staging.written",
    "ledger.before",
    "ledger.after",
)
_TABLE = "id bigint, `key` varchar(16), amount bigint"
_POSTGRES_LEFT = """SELECT gid FROM pg_prepared_xacts UNION ALL SELECT tablename FROM pg_tables
    WHERE tablename LIKE '%beadline\\_stage\\_%' AND schemaname = '{schema}'"""
_TOTALS = "`key` varchar(16) PRIMARY KEY, `rows` bigint, amount bigint"


class Store(NamedTuple):
    """One store, ready for a run of its own."""

    targets: list[Target]
    judge: Judge


def postgres(request: pytest.FixtureRequest, folder: Path) -> Store:
    """Appends by prepared transactions; totals added, staged."""
    server = request.getfixturevalue("postgres_server")
    schema = _fresh()

    def ask(question: str) -> list[Any]:
        with closing(server.connect()) as connection:
            return list(connection.execute(question.replace("`", '"')).fetchall())

    with closing(server.connect()) as connection:
        connection.execute(f"CREATE SCHEMA {schema}")
        for name, columns in (("rows", _TABLE), ("totals", _TOTALS)):
            connection.execute(f"CREATE TABLE {schema}.{name} ({columns})".replace("`", '"'))
        connection.commit()
    place = {"dsn": server.dsn, "schema": schema}
    totals = {**place, "table": "totals", "mode": "add", "key": ["key"]}
    return Store(
        [
            Target("rows", "PostgresSink", {**place, "table": "rows", "how": "prepared"}),
            Target("totals", "PostgresSink", totals, totals=True),
        ],
        Judge(
            {"rows": _rows(lambda: ask(f"SELECT id, `key`, amount FROM {schema}.rows"))},
            {"totals": _totals(lambda: ask(f"SELECT `key`, rows, amount FROM {schema}.totals"))},
            lambda: [name for (name,) in ask(_POSTGRES_LEFT.format(schema=schema))],
        ),
    )


def mysql(request: pytest.FixtureRequest, folder: Path) -> Store:
    """Appends and totals, staged, in a database of their own."""
    server = request.getfixturevalue("mariadb_server")
    database = _fresh()

    def ask(question: str) -> list[Any]:
        with closing(server.connect()) as connection, connection.cursor() as cursor:
            cursor.execute(question)
            return list(cursor.fetchall())

    for statement in (
        f"CREATE DATABASE {database}",
        f"CREATE TABLE {database}.`rows` ({_TABLE})",
        f"CREATE TABLE {database}.totals ({_TOTALS})",
    ):
        ask(statement)
    dsn = server.dsn_of(database)
    totals = {"dsn": dsn, "table": "totals", "mode": "add", "key": ["key"]}
    return Store(
        [
            Target("rows", "MySqlSink", {"dsn": dsn, "table": "rows"}),
            Target("totals", "MySqlSink", totals, totals=True),
        ],
        Judge(
            {"rows": _rows(lambda: ask(f"SELECT id, `key`, amount FROM {database}.`rows`"))},
            {
                "totals": _totals(
                    lambda: ask(f"SELECT `key`, `rows`, amount FROM {database}.totals")
                )
            },
            lambda: [
                name
                for (name,) in ask(
                    "SELECT table_name FROM information_schema.tables WHERE table_schema = "
                    f"'{database}' AND table_name LIKE '\\_beadline\\_stage\\_%'"
                )
            ],
        ),
    )


def redis(request: pytest.FixtureRequest, folder: Path) -> Store:
    """Rows pushed to a list; rows and amounts per key counted up: none of it is idempotent."""
    server = request.getfixturevalue("redis_server")
    prefix = f"{_fresh()}:"

    def pushed() -> list[Any]:
        with closing(server.client()) as client:
            found = [text.decode().split("|") for text in client.lrange(f"{prefix}rows", 0, -1)]
        return [(int(id_), key, int(amount)) for id_, key, amount in found]

    def counted() -> list[Any]:
        with closing(server.client()) as client:
            keys = [name.decode() for name in client.keys(f"{prefix}n:*")]
            names = [name.removeprefix(f"{prefix}n:") for name in keys]
            return [
                (n, int(client.get(f"{prefix}n:{n}")), int(client.get(f"{prefix}a:{n}") or 0))
                for n in names
            ]

    place = {"url": server.url, "prefix": prefix, "staging": str(folder / "staging")}
    count = {**place, "command": "INCRBY"}
    row = "concat_ws('|', id, key, amount) AS value"
    return Store(
        [
            Target(
                "rows", "RedisSink", {**place, "command": "RPUSH", "into": "rows"}, select=(row,)
            ),
            Target("n", "RedisSink", count, True, ("'n:' || key AS key", "rows AS value")),
            Target("a", "RedisSink", count, True, ("'a:' || key AS key", "amount AS value")),
        ],
        Judge({"rows": _rows(pushed)}, {"n": _totals(counted)}, _staged(folder)),
    )


def hbase(request: pytest.FixtureRequest, folder: Path) -> Store:
    """Puts by id; a row that is there twice in the input shows once."""
    server = request.getfixturevalue("hbase_server")
    table = _fresh()
    server.create_table(table, "f")

    def put() -> list[Any]:
        return [
            (int(key), cells["f:key"].decode(), int(cells["f:amount"]))
            for key, cells in server.rows(table).items()
        ]

    place = {"host": server.host, "port": server.port, "staging": str(folder / "staging")}
    sink = {**place, "table": table, "row_key": "id", "family": "f"}
    judge = Judge({"rows": _rows(put)}, {}, _staged(folder), frozenset({"rows"}))
    return Store([Target("rows", "HBaseSink", sink)], judge)


STORES: dict[str, Callable[[pytest.FixtureRequest, Path], Store]] = {
    "postgres": postgres,
    "mysql": mysql,
    "redis": redis,
    "hbase": hbase,
}


def _fresh() -> str:
    """A name that no other run on the shared servers has."""
    return f"kills_{uuid.uuid4().hex[:12]}"


def points_of(name: str) -> list[str]:
    """What a child of this store reaches: with one sink, never between two."""
    alone = ("prepare.between", "commit.between") if name == "hbase" else ()
    return [point for point in PROTOCOL_POINTS if point not in alone]


def _rows(read: Callable[[], Iterable[Any]]) -> Callable[[], Counter[DemoRow]]:
    return lambda: Counter(DemoRow(*found) for found in read())


def _totals(read: Callable[[], Iterable[Any]]) -> Callable[[], dict[str, Total]]:
    return lambda: {key: Total(int(rows), int(amount)) for key, rows, amount in read()}


def _staged(folder: Path) -> Callable[[], list[str]]:
    return lambda: [path.name for path in (folder / "staging").rglob("beadline~*")]
