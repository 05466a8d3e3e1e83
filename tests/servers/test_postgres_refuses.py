"""``PostgresSink``: what a start refuses, in words that help, and without secrets."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from beadline.errors import BadSink, CommitFailed, PrepareFailed, WrongCheckpoint
from beadline.ids import QueryId
from beadline.sink import Outcome
from beadline.sinks import PostgresSink
from beadline.testing.servers import PostgresServer
from beadline.testing.servers.ports import free_ports
from tests.servers.postgres_target import QUERY, Orders, epoch_id, part_id, table

ROWS = table(id=[1, 2], total=[10, 20])
KEYED = "id bigint PRIMARY KEY, total bigint"


def test_a_wrong_password_is_not_echoed(postgres_server: PostgresServer) -> None:
    dsn = postgres_server.dsn_of("postgres", password="my-secret-word")
    sink = PostgresSink(dsn, "orders")
    with pytest.raises(BadSink, match="password") as refusal:
        sink.check(ROWS.schema, QUERY)
    told = f"{refusal.value!r} {refusal.value.__cause__} {refusal.value.__context__} {sink!r}"
    assert "my-secret-word" not in told
    assert "Nothing was written" in told


def test_what_is_no_address_is_not_echoed() -> None:
    for dsn in (
        "my-secret-word",
        "postgresql://a:my-secret-word@b:c/d",
        "password=my-secret-word x",
        "postgresql://a:my-secret-word@[b/d",
    ):
        with pytest.raises(BadSink, match="address") as refusal:
            PostgresSink(dsn, "orders").check(ROWS.schema, QUERY)
        assert "my-secret-word" not in f"{refusal.value} {refusal.value.__cause__}"


def test_a_server_that_is_not_there() -> None:
    (port,) = free_ports(1)
    sink = PostgresSink(f"postgresql://u:my-secret-word@127.0.0.1:{port}/d", "orders", timeout_s=2)
    with pytest.raises(BadSink, match="Is the server up") as refusal:
        sink.check(ROWS.schema, QUERY)
    assert "my-secret-word" not in str(refusal.value)
    with pytest.raises(PrepareFailed, match=r"epoch 0, part 0.*refused") as failure:
        sink.prepare(iter(ROWS.to_batches()), _part())
    assert "my-secret-word" not in str(failure.value)


def _part() -> Any:
    from beadline.sink import Part

    return Part(part_id(0))


def test_a_missing_table_names_the_statement(postgres_server: PostgresServer) -> None:
    orders = Orders(postgres_server, "", mode="upsert", key="id", deleted="gone")
    rows = table(id=[1], total=[1], gone=[True])
    with pytest.raises(BadSink, match="CREATE TABLE") as refusal:
        orders.start(rows)
    statement = str(refusal.value).partition("Create it: ")[2].partition(". Nothing")[0]
    orders.run(statement)
    orders.start(rows)


# The table's columns, the sink's settings, and what the refusal says.
WRONG: list[tuple[str, dict[str, Any], str]] = [
    ("id bigint", {}, "no column 'total'"),
    ("id bigint, \"Total\" bigint", {}, "no column 'total', only 'Total'"),
    ("id bigint, total text", {}, "'total' is declared text.*int64.*bigint"),
    ("id bigint, total real", {}, "'total' is declared real"),
    ("id bigint, total double precision", {}, "'total' is declared double precision"),
    ("id bigint, total bigint, x int NOT NULL", {}, "requires a value in column 'x'"),
    ("id bigint, total bigint GENERATED ALWAYS AS IDENTITY", {}, "'total' is generated"),
    ("id bigint, total bigint", {"mode": "upsert", "key": "id"}, "CREATE UNIQUE INDEX"),
    (
        "id bigint, total bigint, UNIQUE (id) DEFERRABLE",
        {"mode": "upsert", "key": "id"},
        "CREATE UNIQUE INDEX",
    ),
    ("id bigint UNIQUE, total bigint", {"mode": "upsert", "key": "x"}, "'x' of key="),
    (
        "id bigint UNIQUE, total bigint",
        {"mode": "upsert", "key": "id", "deleted": "total"},
        "must be boolean",
    ),
    (
        "id bigint UNIQUE, total bigint",
        {"mode": "upsert", "key": "id", "order_by": "x"},
        "order_by=",
    ),
]  # fmt: skip


@pytest.mark.parametrize(("columns", "settings", "said"), WRONG)
def test_a_table_that_does_not_fit(
    postgres_server: PostgresServer, columns: str, settings: dict[str, Any], said: str
) -> None:
    orders = Orders(postgres_server, columns, **settings)
    with pytest.raises(BadSink, match=f"orders.*{said}.*Nothing was written"):
        orders.start(ROWS)


def test_what_is_no_table_for_rows(postgres_server: PostgresServer) -> None:
    orders = Orders(postgres_server, "id bigint, total bigint")
    place = f'"{orders.schema}"'
    orders.run(f"ALTER TABLE {place}.orders SET UNLOGGED")
    with pytest.raises(BadSink, match="UNLOGGED"):
        orders.start(ROWS)
    orders.run(f"DROP TABLE {place}.orders; CREATE VIEW {place}.orders AS SELECT 1 AS id")
    with pytest.raises(BadSink, match="view"):
        orders.start(ROWS)


def test_settings_that_cannot_be_right() -> None:
    wrong: list[dict[str, Any]] = [
        {"table": ""},
        {"table": "_beadline_ledger"},
        {"table": "x" * 64},
        {"mode": "replace"},
        {"how": "somehow"},
        {"mode": "upsert"},
        {"key": "id"},
        {"deleted": "gone"},
        {"mode": "add", "key": "id", "order_by": "at"},
        {"mode": "upsert", "key": "id", "deleted": "id"},
    ]
    for settings in wrong:
        with pytest.raises(BadSink, match="Nothing was written"):
            PostgresSink(**{"dsn": "", "table": "orders", **settings})


def test_a_user_without_rights_reads_what_to_grant(postgres_server: PostgresServer) -> None:
    orders = Orders(postgres_server, "id bigint PRIMARY KEY, total bigint")
    place = f'"{orders.schema}"'
    orders.run("CREATE ROLE clerk LOGIN PASSWORD 'w'; GRANT CREATE ON DATABASE postgres TO clerk")
    orders.run(f"GRANT USAGE ON SCHEMA {place} TO clerk")
    dsn = postgres_server.dsn_of("postgres", "clerk", "w")
    orders.sink = PostgresSink(dsn, "orders", orders.schema)
    for right in ("INSERT ON", "CREATE ON SCHEMA"):
        with pytest.raises(BadSink, match=f"GRANT {right}") as refusal:
            orders.start(ROWS)
        orders.run(str(refusal.value).partition("Run ")[2].partition(". Nothing")[0])
    orders.start(ROWS)
    orders.epoch(0, ROWS)
    assert orders.rows() == [(1, 10), (2, 20)]


def test_staging_needs_rights_also_where_it_is_the_exception(
    postgres_server: PostgresServer,
) -> None:
    """Where slots for prepared transactions run out, a part makes a table; or it must not want."""
    orders = Orders(postgres_server, "id bigint, total bigint")
    orders.start(ROWS)
    place = f'"{orders.schema}"'
    orders.run("CREATE ROLE reader LOGIN PASSWORD 'w'")
    orders.run(f"GRANT USAGE ON SCHEMA {place} TO reader")
    orders.run(f"GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA {place} TO reader")
    dsn = postgres_server.dsn_of("postgres", "reader", "w")
    with pytest.raises(BadSink, match="GRANT CREATE ON SCHEMA"):
        PostgresSink(dsn, "orders", orders.schema).check(ROWS.schema, QUERY)
    orders.sink = PostgresSink(dsn, "orders", orders.schema, how="prepared")
    orders.start(ROWS)
    orders.epoch(0, ROWS)
    assert orders.rows() == [(1, 10), (2, 20)]


def test_how_to_start_over(postgres_server: PostgresServer) -> None:
    """As the error says: what is prepared is rolled back, and the query forgotten."""
    orders = Orders(postgres_server, "id bigint, total bigint")
    words = orders.start(ROWS).start_over
    orders.epoch(0, ROWS)
    orders.prepare(ROWS, part_id(1))
    select = words.partition("lists: ")[2].partition("; empty")[0]
    for (statement,) in orders.run(select):
        orders.run(statement)
    assert orders.leftovers() == []
    orders.run(words.partition("and run ")[2])
    assert orders.sink.last_seen(QUERY, "orders") is None


def test_a_duplicate_row_names_table_epoch_and_part(postgres_server: PostgresServer) -> None:
    orders = Orders(postgres_server, "id bigint PRIMARY KEY, total bigint")
    orders.start(ROWS)
    parts = [orders.prepare(table(id=[n], total=[n]), part_id(4, n)) for n in (1, 2)]
    orders.run(f'INSERT INTO "{orders.schema}".orders VALUES (2, 0)')
    words = r"epoch 4, part 2.*orders'.*duplicate key.*decided.*drop=\[\"orders@4\"\]"
    with pytest.raises(CommitFailed, match=words):
        orders.commit(4, parts)
    assert orders.rows() == [(2, 0)]
    orders.run(f'DELETE FROM "{orders.schema}".orders')
    assert orders.commit(4, parts) == {Outcome.COMMITTED}
    assert orders.rows() == [(1, 1), (2, 2)]


def test_a_table_that_changes_while_the_query_runs(postgres_server: PostgresServer) -> None:
    orders = Orders(postgres_server, "id bigint, total bigint")
    orders.start(ROWS)
    orders.run(f'ALTER TABLE "{orders.schema}".orders DROP total')
    with pytest.raises(BadSink, match="no column 'total'"):
        orders.prepare(ROWS, part_id(0))
    assert orders.leftovers() == []


@pytest.mark.parametrize("way", ["prepared", "staged"])
def test_another_incarnation_is_reported(postgres_server: PostgresServer, way: str) -> None:
    """Even after the very first epoch, of which the ledger may not yet know."""
    orders = Orders(postgres_server, "id bigint, total bigint", how=way)
    orders.start(ROWS)
    orders.epoch(0, ROWS)
    born_again = QueryId(QUERY.name, "e" * 32, QUERY.checkpoint)
    seen = orders.sink.last_seen(born_again, "orders")
    assert seen is not None
    assert (seen.incarnation, seen.epoch) == (QUERY.incarnation, 0)
    part = orders.prepare(ROWS, part_id(0, query=born_again))
    with pytest.raises(WrongCheckpoint, match="another checkpoint"):
        orders.sink.commit(epoch_id(0, born_again), [part])
    assert len(orders.rows()) == 2
    orders.sink.abort([part])


@pytest.mark.parametrize("word", ["hun@ter2", "hun/ter2@", "hun@ter/2", "h@un?ter2"])
def test_no_part_of_a_password_with_odd_characters_is_shown(word: str) -> None:
    sink = PostgresSink(f"postgresql://me:{word}@127.0.0.1:1/shop", "orders", timeout_s=1.0)
    with pytest.raises(BadSink, match=r"%40.*Nothing was written") as told:
        sink.check(ROWS.schema, QUERY)
    for piece in ("hun", "ter2", word):
        assert piece not in str(told.value)
    assert told.value.__cause__ is None


def test_a_password_that_is_escaped_is_fine(postgres_server: PostgresServer) -> None:
    orders = Orders(postgres_server, KEYED)
    orders.run("CREATE ROLE odd LOGIN SUPERUSER PASSWORD 'a@b/c:d'")
    dsn = postgres_server.dsn_of("postgres", "odd", "a%40b%2Fc%3Ad")
    replace(orders.sink, dsn=dsn).check(ROWS.schema, QUERY)


@pytest.mark.parametrize("mode", ["append", "upsert"])
def test_values_of_rows_are_not_in_the_error(postgres_server: PostgresServer, mode: str) -> None:
    """The key in the way, and the row that a check refuses; the staging table is named instead."""
    key = {"key": "id"} if mode == "upsert" else {}
    orders = Orders(postgres_server, KEYED, mode=mode, **key)
    orders.start(ROWS)
    parts = [orders.prepare(table(id=[7777], total=[8888]), part_id(0))]
    place = f'"{orders.schema}".orders'
    orders.run(f"INSERT INTO {place} VALUES (7777, 1)")
    orders.run(f"ALTER TABLE {place} ADD CONSTRAINT small CHECK (total < 10)")
    with pytest.raises(CommitFailed, match=r"refuses a row: .*(small|orders_pkey)") as told:
        orders.commit(0, parts)
    for value in ("7777", "8888", "DETAIL"):
        assert value not in str(told.value)
    assert parts[0].committable.name in str(told.value)
    orders.sweep()


def test_a_schema_before_the_table_is_suggested(postgres_server: PostgresServer) -> None:
    sink = PostgresSink(postgres_server.dsn, table="sales.orders")
    with pytest.raises(BadSink, match=r"write schema='sales', table='orders'"):
        sink.check(ROWS.schema, QUERY)
