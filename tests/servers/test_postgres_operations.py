"""``PostgresSink`` beside all else on a server: publications, dumps, limits, altered tables."""

from __future__ import annotations

import re
from contextlib import closing
from typing import Any, Literal

import pytest

from beadline.errors import BadSink, CommitFailed
from beadline.points import hooked
from beadline.sink import Outcome, Prepared
from beadline.sinks import PostgresSink
from beadline.sinks.postgres.connect import PostgresAddress
from beadline.sinks.postgres.part import STAGED, PostgresPart
from beadline.sinks.shared.sql.dialect import quoted
from beadline.testing.servers import PostgresServer, postgres
from tests.servers.postgres_target import QUERY, Orders, database, epoch_id, part_id, table

KEYED = "id bigint PRIMARY KEY, total bigint"
ROWS = table(id=[1, 2], total=[10, 20])


class Killed(BaseException):
    """The driver ends here."""


@pytest.fixture(scope="module")
def published(postgres_server: PostgresServer) -> str:
    """A database in which all tables are published, to nobody."""
    name = database(postgres_server, "published")
    Orders(postgres_server, "", name).run("CREATE PUBLICATION everything FOR ALL TABLES")
    return name


@pytest.mark.parametrize("way", ["prepared", "staged"])
def test_appends_where_all_tables_are_published(
    postgres_server: PostgresServer, published: str, way: str
) -> None:
    """Beadline's own tables have an identity: markers go, and staged rows with their tables."""
    orders = Orders(postgres_server, "id bigint, total bigint", published, how=way)
    assert "'everything' publishes all tables" in orders.start(ROWS).sentence
    for number in range(3):
        orders.epoch(number, ROWS)
    assert len(orders.rows()) == 6
    assert orders.leftovers() == []


def test_changes_where_all_tables_are_published(
    postgres_server: PostgresServer, published: str
) -> None:
    """A start is refused whose changes the server would refuse, with what to run."""
    settings: dict[str, Any] = {"mode": "upsert", "key": "id", "deleted": "gone"}
    rows = table(id=[1, 2], total=[10, 20], gone=[False, True])
    orders = Orders(postgres_server, "id bigint UNIQUE, total bigint", published, **settings)
    with pytest.raises(BadSink, match=r"'everything'.*REPLICA IDENTITY FULL") as refusal:
        orders.start(rows)
    orders.run(str(refusal.value).partition("or run ")[2].partition(". Nothing")[0])
    orders.start(rows)
    orders.epoch(0, rows)
    orders.epoch(1, rows)
    assert orders.rows() == [(1, 10)]
    keyed = Orders(postgres_server, KEYED, published, **settings)
    keyed.start(rows)
    keyed.epoch(0, rows)
    # Taken away while the query runs: an error that says so, not a wait for ever.
    part = keyed.prepare(rows, part_id(1))
    place = f"ALTER TABLE {quoted(keyed.schema, 'orders')} REPLICA IDENTITY"
    keyed.run(f"{place} NOTHING")
    with pytest.raises(CommitFailed, match=r"epoch 1.*replica identity"):
        keyed.commit(1, [part])
    keyed.run(f"{place} DEFAULT")
    assert keyed.commit(1, [part]) == {Outcome.COMMITTED}


def test_a_partition_without_identity(postgres_server: PostgresServer, published: str) -> None:
    orders = Orders(postgres_server, "", published, mode="upsert", key="id")
    place = quoted(orders.schema, "orders")
    orders.run(f"CREATE TABLE {place} (id bigint PRIMARY KEY, total bigint) PARTITION BY HASH (id)")
    orders.run(f"CREATE TABLE {place[:-1]}_0\" PARTITION OF {place} FOR VALUES WITH "
               "(MODULUS 1, REMAINDER 0)")  # fmt: skip
    orders.start(ROWS)
    orders.run(f'ALTER TABLE {place[:-1]}_0" REPLICA IDENTITY NOTHING')
    with pytest.raises(BadSink, match=r"orders_0.*no identity"):
        orders.start(ROWS)


def test_an_unlogged_partition(postgres_server: PostgresServer) -> None:
    orders = Orders(postgres_server, "")
    place = quoted(orders.schema, "orders")
    orders.run(f"CREATE TABLE {place} (id bigint, total bigint) PARTITION BY HASH (id)")
    orders.run(f"CREATE UNLOGGED TABLE {place[:-1]}_0\" PARTITION OF {place} FOR VALUES WITH "
               "(MODULUS 1, REMAINDER 0)")  # fmt: skip
    with pytest.raises(BadSink, match=r"UNLOGGED.*ALTER TABLE .*orders_0 SET LOGGED") as refusal:
        orders.start(ROWS)
    orders.run(str(refusal.value).partition("Run ")[2].partition(". Nothing")[0])
    orders.start(ROWS)
    orders.epoch(0, ROWS)
    assert orders.rows() == [(1, 10), (2, 20)]


def test_a_column_that_is_renamed_before_the_commit(postgres_server: PostgresServer) -> None:
    """Its values are not dropped in silence."""
    for settings in ({}, {"mode": "upsert", "key": "id", "order_by": "total"}):
        orders = Orders(postgres_server, KEYED, how="staged", **settings)
        place = quoted(orders.schema, "orders")
        orders.start(ROWS)
        part = orders.prepare(ROWS, part_id(0))
        orders.run(f"ALTER TABLE {place} RENAME total TO sum")
        with pytest.raises(CommitFailed, match=r"epoch 0.*no longer has column 'total'"):
            orders.commit(0, [part])
        assert orders.rows() == []
        orders.run(f"ALTER TABLE {place} RENAME sum TO total")
        assert orders.commit(0, [part]) == {Outcome.COMMITTED}
        assert orders.rows() == [(1, 10), (2, 20)]


def test_columns_that_were_never_kept_may_change_their_role(
    postgres_server: PostgresServer,
) -> None:
    """An epoch is finished with another order: the old one's column is still not the table's."""
    settings: dict[str, Any] = {"mode": "upsert", "key": "id"}
    orders = Orders(postgres_server, KEYED, order_by="version", **settings)
    shares = [table(id=[1], total=[n], version=[3], at=[n]) for n in (1, 2)]
    orders.run(f"ALTER TABLE {quoted(orders.schema, 'orders')} ADD at bigint")
    orders.start(shares[0])
    parts = [orders.prepare(share, part_id(0, number)) for number, share in enumerate(shares)]
    with pytest.raises(CommitFailed, match="twice with the same 'version'"):
        orders.commit(0, parts)
    orders.sink = PostgresSink(orders.dsn, "orders", orders.schema, order_by="at", **settings)
    assert orders.commit(0, parts) == {Outcome.COMMITTED}
    assert orders.rows() == [(1, 2, 2)]


def test_a_dump_blocks_no_commit(postgres_server: PostgresServer) -> None:
    """It reads every table that it saw at its start, staging tables too, until its end."""
    orders = Orders(postgres_server, "id bigint, total bigint", how="staged")
    orders.start(ROWS)
    parts = [orders.prepare(ROWS, part_id(0, number)) for number in range(3)]
    loser = orders.prepare(ROWS, part_id(0, 0, attempt=1))
    with closing(orders.connect()) as dump:
        dump.execute("BEGIN")
        for part in (parts[1], loser):
            name = quoted(orders.schema, part.committable.name)
            dump.execute(f"LOCK TABLE {name} IN ACCESS SHARE MODE".encode())
        assert orders.commit(0, parts) == {Outcome.COMMITTED}
        assert len(orders.rows()) == 6
        # The few of an epoch go together, or all stay; a sweep takes one by one.
        assert len(orders.leftovers()) == 4
        orders.sweep()
        assert len(orders.leftovers()) == 2
    assert orders.commit(0, parts) == {Outcome.ALREADY_COMMITTED}
    assert orders.leftovers() == [loser.committable.name]
    orders.sweep()
    assert orders.leftovers() == []
    assert len(orders.rows()) == 6


def staged_parts(orders: Orders, count: int, epoch: int = 0) -> list[Prepared[Any]]:
    """Many parts of one row each, made by hand because that is quicker."""
    parts = []
    with closing(orders.connect()) as connection:
        connection.execute("SET synchronous_commit = off")
        for number in range(count):
            name = f"_beadline_stage_{number}"
            place = quoted(orders.schema, name)
            connection.execute(
                f"CREATE TABLE {place} (id bigint, total bigint); "
                f"INSERT INTO {place} VALUES ({number}, {number}); "
                f"COMMENT ON TABLE {place} IS '{part_id(epoch, number)}'".encode()
            )
            parts.append(
                Prepared(part_id(epoch, number), 1, PostgresPart(STAGED, orders.schema, name))
            )
    return parts


def test_a_driver_that_dies_before_it_drops(postgres_server: PostgresServer) -> None:
    """Tables of a committed epoch are left over: finishing it again drops them, or a sweep."""
    orders = Orders(postgres_server, "id bigint, total bigint", how="staged")
    orders.start(ROWS)

    def die(point: str) -> None:
        if point == "ledger.after":
            raise Killed

    for number in range(2):
        parts = staged_parts(orders, 60, number)
        with hooked(die), pytest.raises(Killed):
            orders.commit(number, parts)
        assert len(orders.leftovers()) == 60
        if number:
            assert {part.id for part in orders.sink.in_doubt(QUERY, "orders")} == {
                p.id for p in parts
            }
            orders.sweep()
        assert orders.commit(number, parts) == {Outcome.ALREADY_COMMITTED}
        assert orders.leftovers() == []
    assert len(orders.rows()) == 120


def test_more_parts_than_the_server_has_locks() -> None:
    with postgres(
        max_locks_per_transaction=10,
        max_connections=10,
        max_prepared_transactions=0,
        max_wal_senders=0,
    ) as server:
        orders = Orders(server, KEYED, mode="upsert", key="id")
        orders.start(ROWS)
        parts = staged_parts(orders, 1500)
        with pytest.raises(CommitFailed, match=r"epoch 0.*1500 parts.*max_locks_per_transaction"):
            orders.sink.commit(epoch_id(0), parts)
        assert orders.rows() == []
        # To read them is one lock each, to drop them six: a few at a time.
        assert orders.commit(0, parts[:300]) == {Outcome.COMMITTED}
        assert len(orders.rows()) == 300
        assert len(orders.leftovers()) == 1200
        orders.sink.abort(parts)
        assert orders.leftovers() == []


SLOWLY = (
    "CREATE FUNCTION {0}.slowly() RETURNS trigger LANGUAGE plpgsql AS "
    "$$ BEGIN PERFORM pg_sleep(0.2); RETURN NEW; END $$; "
    "CREATE TRIGGER slowly BEFORE INSERT ON {0}.orders FOR EACH ROW EXECUTE FUNCTION {0}.slowly()"
)


@pytest.mark.parametrize("way", ["prepared", "staged"])
def test_a_limit_on_statements_does_not_stop_a_large_epoch(
    postgres_server: PostgresServer, way: Literal["prepared", "staged"]
) -> None:
    """The commit of a staged epoch is one statement: it would fail at every start."""
    orders = Orders(postgres_server, "id bigint, total bigint")
    place = f'"{orders.schema}"'
    role = f"limited_{way}"
    orders.run(f"CREATE ROLE {role} LOGIN PASSWORD 'pw'")
    orders.run(f"ALTER ROLE {role} SET statement_timeout = '100ms'")
    orders.run(f"GRANT ALL ON SCHEMA {place} TO {role}; GRANT ALL ON {place}.orders TO {role}")
    if way == "staged":
        orders.run(SLOWLY.format(place))
    ((major,),) = orders.run("SELECT current_setting('server_version_num')::int / 10000")
    if major >= 17:
        orders.run(f"ALTER ROLE {role} SET transaction_timeout = '100ms'")
    dsn = postgres_server.dsn_of("postgres", role, "pw")
    orders.sink = PostgresSink(dsn, "orders", orders.schema, how=way, timeout_s=20.0)
    orders.start(ROWS)
    orders.epoch(0, ROWS)
    assert orders.rows() == [(1, 10), (2, 20)]
    with PostgresAddress(dsn, 20.0).connected() as run:
        run("BEGIN; SELECT pg_sleep(0.3); SELECT pg_sleep(0.3); COMMIT")


@pytest.mark.parametrize("way", ["prepared", "staged"])
def test_orphans_of_another_database_user(
    postgres_server: PostgresServer,
    way: Literal["prepared", "staged"],
    caplog: pytest.LogCaptureFixture,
) -> None:
    """A staging table holds nothing up and is left; who can end a transaction is said."""
    orders = Orders(postgres_server, "id bigint, total bigint", how=way)
    place = f'"{orders.schema}"'
    role = f"newcomer_{way}"
    orders.run(f"CREATE ROLE {role} LOGIN PASSWORD 'pw'")
    orders.run(f"GRANT ALL ON SCHEMA {place} TO {role}; GRANT ALL ON {place}.orders TO {role}")
    orders.start(ROWS)
    orders.prepare(ROWS, part_id(0))
    dsn = postgres_server.dsn_of("postgres", role, "pw")
    newcomer = PostgresSink(dsn, "orders", orders.schema, how=way, timeout_s=20.0)
    found = list(newcomer.in_doubt(QUERY, "orders"))
    assert len(found) == 1
    if way == "staged":
        newcomer.abort(found)
        assert "is left: this user may not drop it" in caplog.text
    else:
        with pytest.raises(CommitFailed, match=f"another user than '{role}'.*hold locks") as caught:
            newcomer.abort(found)
        said = str(caught.value)
        (statement,) = re.findall(r"run (ROLLBACK PREPARED '[^']+') as 'postgres'", said)
        orders.run(statement)
        newcomer.abort(found)
        assert list(newcomer.in_doubt(QUERY, "orders")) == []
    orders.sink.abort(found)
    assert list(orders.sink.in_doubt(QUERY, "orders")) == []
