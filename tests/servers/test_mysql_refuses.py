"""``MySqlSink`` that cannot be right says so before the first row, and tells no secret."""

from __future__ import annotations

import traceback
from contextlib import closing
from dataclasses import replace
from typing import Any

import pyarrow as pa
import pytest

from beadline.errors import BadSink, BeadlineError, CommitBlocked
from beadline.sink import Outcome
from beadline.sinks import MySqlSink
from beadline.testing.servers import MariaDbServer
from tests.servers.mysql_tables import Table

INT = pa.schema([("id", pa.int32())])
PAIR = pa.schema([("id", pa.int32()), ("n", pa.int32())])
DSN = "mysql://me:s3cret%2F@db.example:3307/shop"
SETTINGS: list[tuple[dict[str, Any], str]] = [
    ({"mode": "replace"}, "not append, upsert or add"),
    ({"how": "copy"}, "not auto, staged or xa"),
    ({"key": "id"}, "takes no key"),
    ({"mode": "upsert"}, "needs the columns of a key"),
    ({"order_by": "n"}, "are for mode='upsert'"),
    ({"mode": "add", "key": "id", "deleted": "n"}, "are for mode='upsert'"),
    ({"mode": "upsert", "key": "id", "order_by": "id"}, "must be different columns"),
    ({"mode": "upsert", "key": "id", "how": "xa"}, "how='xa' is for mode='append'"),
    ({"timeout_s": 0}, "timeout_s must be above 0"),
    ({"timeout_s": float("inf")}, "timeout_s must be above 0"),
    ({"table": "_beadline_ledger"}, "cannot name the table"),
    ({"table": "_Beadline_stage_x"}, "cannot name the table"),
    ({"table": ""}, "cannot name the table"),
    ({"dsn": "s3cret"}, "does not begin with mysql://"),
    ({"dsn": "mysql://me:s3cret@db:port/shop"}, "it is not a URL"),
    ({"dsn": "mysql://me:s3cret@db"}, "name of the database is missing"),
    ({"dsn": "mysql://:s3cret@db/shop"}, "host or user is missing"),
    ({"dsn": "mysql://me:s3cret@db/shop?charset=latin1"}, "'charset' is not one of ssl_ca"),
]


@pytest.mark.parametrize(("settings", "reason"), SETTINGS)
def test_settings_that_cannot_be_right(settings: dict[str, Any], reason: str) -> None:
    with pytest.raises(BadSink, match="Nothing was written") as caught:
        MySqlSink(**{"dsn": DSN, "table": "t", **settings})
    assert reason in str(caught.value)
    assert "s3cret" not in "".join(traceback.format_exception(caught.value))


def test_the_password_shows_nowhere() -> None:
    sink = MySqlSink(DSN, "orders")
    assert repr(sink) == "MySqlSink(shop-orders)"
    assert sink._server.address.password == "s3cret/"
    assert "s3cret" not in repr(sink._server)


TABLES: list[tuple[str, dict[str, Any], pa.Schema, str]] = [
    ("id INT", {}, PAIR, "the table has no column 'n'. Add it"),
    ("id INT, n INT NOT NULL", {}, INT, "requires a value in column 'n'"),
    ("id INT, n INT AS (id + 1)", {}, PAIR, "'n' is generated"),
    ("id TEXT", {}, INT, "'id' is declared text, but the rows hold int32"),
    ("id FLOAT", {}, INT, "it would be rounded. Declare it INT"),
    ("id DECIMAL(5,1)", {}, pa.schema([("id", pa.decimal128(9, 2))]), "Declare it DECIMAL(9,2)"),
    ("id FLOAT", {}, pa.schema([("id", pa.float64())]), "Declare it DOUBLE"),
    ("id DOUBLE(9,2)", {}, pa.schema([("id", pa.float64())]), "it would be rounded"),
    ("id TIMESTAMP", {}, pa.schema([("id", pa.timestamp("us"))]), "without time zone"),
    ("id INT", {}, pa.schema([("id", pa.list_(pa.int32()))]), "to_json"),
    (
        "id INT",
        {},
        pa.schema([("id", pa.int32()), ("ID", pa.int32())]),
        "two columns are called 'ID'",
    ),
    ("id INT", {}, pa.schema([("_beadline_row", pa.int32())]), "a name that Beadline uses"),
    ("id INT", {}, pa.schema([]), "no columns"),
    ("id INT", {"mode": "upsert", "key": "id"}, INT, "Run CREATE UNIQUE INDEX `t_key` ON `t`"),
    ("id VARCHAR(9) UNIQUE", {"mode": "upsert", "key": "k"}, INT, "'k' of key= is not in the rows"),
    (
        "id DOUBLE PRIMARY KEY",
        {"mode": "upsert", "key": "id"},
        pa.schema([("id", pa.float64())]),
        "cannot be a key",
    ),
    (
        "id INT PRIMARY KEY, n INT UNIQUE",
        {"mode": "upsert", "key": "id"},
        PAIR,
        "another unique index besides the key, 'n'",
    ),
    (
        "id VARCHAR(99), UNIQUE (id(5))",
        {"mode": "upsert", "key": "id"},
        pa.schema([("id", pa.string())]),
        "nothing makes the key unique",
    ),
    ("id INT PRIMARY KEY", {"mode": "add", "key": "id"}, INT, "there is no column to add besides"),
    (
        "id INT PRIMARY KEY, w TEXT",
        {"mode": "add", "key": "id"},
        pa.schema([("id", pa.int32()), ("w", pa.string())]),
        "cannot be added",
    ),
    (
        "id INT PRIMARY KEY, w TEXT",
        {"mode": "upsert", "key": "id", "order_by": "w"},
        pa.schema([("id", pa.int32()), ("w", pa.string())]),
        "must hold numbers, dates or timestamps",
    ),
    (
        "id INT PRIMARY KEY, n INT",
        {"mode": "upsert", "key": "id", "deleted": "n"},
        PAIR,
        "must be boolean",
    ),
]


@pytest.mark.parametrize(("columns", "settings", "schema", "reason"), TABLES)
def test_tables_that_do_not_fit(
    mariadb_server: MariaDbServer,
    columns: str,
    settings: dict[str, Any],
    schema: pa.Schema,
    reason: str,
) -> None:
    table = Table(mariadb_server, columns, **settings)
    with pytest.raises(BadSink, match="Nothing was written") as caught:
        table.sink().check(schema, table.query)
    assert reason in str(caught.value)
    assert "table 't'" in str(caught.value)
    assert table.run(f"SHOW TABLES FROM {table.database}") == [("t",)], "nothing is made"


def test_another_unique_key_that_the_server_numbers_is_fine(mariadb_server: MariaDbServer) -> None:
    columns = "serial INT AUTO_INCREMENT PRIMARY KEY, id INT UNIQUE, n INT"
    table = Table(mariadb_server, columns, mode="upsert", key="id")
    rows = pa.table({"id": pa.array([5, 6], pa.int32()), "n": pa.array([1, 2], pa.int32())})
    table.write(rows)
    table.write(rows.slice(1), epoch=1)
    assert table.rows("id, n") == [(5, 1), (6, 2)]


@pytest.mark.parametrize("engine", ["MyISAM", "Aria"])
def test_a_table_without_transactions(mariadb_server: MariaDbServer, engine: str) -> None:
    table = Table(mariadb_server, "id INT")
    table.run(f"ALTER TABLE {table.database}.t ENGINE = {engine}")
    with pytest.raises(BadSink, match=f"kept by {engine}.*ALTER TABLE `t` ENGINE = InnoDB"):
        table.sink().check(INT, table.query)


def test_the_error_of_a_missing_table_says_how_to_create_it(mariadb_server: MariaDbServer) -> None:
    settings: dict[str, Any] = {"mode": "upsert", "key": "id", "deleted": "gone"}
    table = Table(mariadb_server, "x INT", **settings)
    types = (
        ("id", pa.string()), ("d", pa.decimal128(9, 2)), ("at", pa.timestamp("us", "UTC")),
        ("b", pa.binary()), ("u", pa.uint8()), ("f", pa.float32()), ("gone", pa.bool_()),
    )  # fmt: skip
    schema = pa.schema(types)
    table.run(f"DROP TABLE {table.database}.t")
    with pytest.raises(BadSink, match="there is no such table") as caught:
        table.sink().check(schema, table.query)
    statement = str(caught.value).partition("Run ")[2].partition(". Nothing")[0]
    table.run(statement.replace("`t`", f"{table.database}.t"))
    table.sink().check(schema, table.query)


def test_a_view_is_no_table(mariadb_server: MariaDbServer) -> None:
    table = Table(mariadb_server, "id INT")
    table.run(f"RENAME TABLE {table.database}.t TO {table.database}.u")
    table.run(f"CREATE VIEW {table.database}.t AS SELECT * FROM {table.database}.u")
    with pytest.raises(BadSink, match="it is a view"):
        table.sink().check(INT, table.query)


def test_a_wrong_password_after_the_decision_is_raised_at_once(
    mariadb_server: MariaDbServer,
) -> None:
    """What is unknown is asked for without end; this is known, and needs a person."""
    table = Table(mariadb_server, "id INT")
    rows = pa.table({"id": pa.array([1], pa.int32())})
    sink = table.opened(rows.schema)
    part = table.prepare(sink, rows)
    assert part is not None
    wrong = replace(sink, dsn=mariadb_server.dsn_of(table.database, password="dont-tell-me"))
    with pytest.raises(CommitBlocked, match=r"epoch 0.*is decided; the next start") as caught:
        wrong.commit(table.epoch(), [part])
    assert "dont-tell-me" not in str(caught.value)
    assert table.commit(sink, [part]) == {Outcome.COMMITTED}


def test_a_wrong_password_is_not_repeated(mariadb_server: MariaDbServer) -> None:
    table = Table(mariadb_server, "id INT")
    secret = "beadline"  # also the user's name, which an error of the server does tell
    for user in (None, "nobody"):
        dsn = mariadb_server.dsn_of(table.database, user, secret)
        with pytest.raises(BadSink, match="User or password is wrong") as caught:
            MySqlSink(dsn, "t").check(INT, table.query)
        text = "".join(traceback.format_exception(caught.value))
        assert secret not in text.partition("BadSink: ")[2]
        assert "pymysql.err" not in text, "the library's error is not chained"


def test_a_database_or_a_server_that_is_not_there(mariadb_server: MariaDbServer) -> None:
    table = Table(mariadb_server, "id INT")
    with pytest.raises(BadSink, match="There is no such database"):
        MySqlSink(mariadb_server.dsn_of("nowhere"), "t").check(INT, table.query)
    dsn = f"mysql://me:s3cret@127.0.0.1:{mariadb_server.port + 1}/shop"
    with pytest.raises(BadSink, match="Is the server running") as caught:
        MySqlSink(dsn, "t", timeout_s=2).check(INT, table.query)
    assert "s3cret" not in str(caught.value)


@pytest.mark.parametrize(
    ("rights", "when"),
    [("SELECT", "check"), ("SELECT, INSERT", "check"), ("SELECT, INSERT, UPDATE, DELETE", "open")],
)
def test_rights_that_are_missing_are_found_before_the_first_row(
    mariadb_server: MariaDbServer, rights: str, when: str
) -> None:
    table = Table(mariadb_server, "id INT PRIMARY KEY, n INT", mode="upsert", key="id")
    table.run("CREATE OR REPLACE USER 'small'@'%' IDENTIFIED BY 'pw'")
    table.run(f"GRANT {rights} ON {table.database}.* TO 'small'@'%'")
    sink = MySqlSink(mariadb_server.dsn_of(table.database, "small", "pw"), "t", "upsert", "id")
    if when == "open":
        sink.check(PAIR, table.query)
    with pytest.raises(BadSink, match="denied"):
        sink.check(PAIR, table.query) if when == "check" else sink.open(table.query, "mine")
    assert table.run(f"SHOW TABLES FROM {table.database}") == [("t",)], when


def test_a_table_that_was_altered_is_noticed_at_prepare(mariadb_server: MariaDbServer) -> None:
    table = Table(mariadb_server, "id INT")
    sink = table.opened(INT)
    with closing(mariadb_server.connect()) as connection, connection.cursor() as cursor:
        cursor.execute(f"ALTER TABLE {table.database}.t CHANGE id number INT")
    with pytest.raises(BeadlineError, match="no column 'id'"):
        table.prepare(sink, pa.table({"id": pa.array([1], pa.int32())}))
