"""``PostgresSink``: which way it takes, and what upsert, add and deletes leave in the table."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pytest

from beadline.errors import BadSink, CommitFailed, PrepareFailed
from beadline.ids import PartId, QueryId
from beadline.sink import Outcome, Prepared
from beadline.sinks import PostgresSink
from beadline.sinks.postgres.part import (
    PREPARED,
    STAGED,
    PostgresPart,
    global_id,
    part_of,
)
from beadline.testing.servers import PostgresServer, postgres
from beadline.testing.servers.fixtures import serve
from tests.servers.postgres_target import Orders, part_id, table

KEYED = "id bigint PRIMARY KEY, total bigint"
ROWS = table(id=[1, 2], total=[10, 20])


@pytest.fixture(scope="module")
def plain_server() -> Iterator[PostgresServer]:
    """As it comes: without prepared transactions."""
    yield from serve(postgres(max_prepared_transactions=0))


def test_the_way_is_chosen_by_the_table_and_reported(postgres_server: PostgresServer) -> None:
    ways = {
        "id bigint, total bigint": PREPARED,
        "id bigint, total bigint CHECK (total > 0)": PREPARED,
        KEYED: STAGED,
        "id bigint, total bigint UNIQUE": STAGED,
        "id bigint, total bigint, EXCLUDE (total WITH =)": STAGED,
    }
    for columns, way in ways.items():
        orders = Orders(postgres_server, columns)
        found = orders.start(ROWS)
        assert found.atomic == (way == STAGED)
        assert ("staged, because" in found.sentence) == (way == STAGED), columns
        part = orders.prepare(ROWS, part_id(0))
        assert part.committable.how == way
        assert orders.commit(0, [part]) == {Outcome.COMMITTED}
        assert orders.rows() == [(1, 10), (2, 20)]
        assert orders.leftovers() == []


def test_triggers_and_foreign_keys_are_staged(postgres_server: PostgresServer) -> None:
    orders = Orders(postgres_server, "id bigint, total bigint")
    place = f'"{orders.schema}".'
    orders.run(f"CREATE TABLE {place}customers (id bigint PRIMARY KEY)")
    orders.run(f"ALTER TABLE {place}orders ADD FOREIGN KEY (id) REFERENCES {place}customers")
    assert "foreign key" in orders.start(ROWS).sentence
    with pytest.raises(BadSink, match="foreign key"):
        PostgresSink(postgres_server.dsn, "orders", orders.schema, how="prepared").check(
            ROWS.schema, QueryId("shop", "d" * 32, "file:/c")
        )


def test_a_server_without_prepared_transactions(plain_server: PostgresServer) -> None:
    orders = Orders(plain_server, "id bigint, total bigint")
    found = orders.start(ROWS)
    assert "max_prepared_transactions is 0" in found.sentence
    orders.epoch(0, ROWS)
    assert orders.rows() == [(1, 10), (2, 20)]
    forced = Orders(plain_server, "id bigint, total bigint", how="prepared")
    with pytest.raises(BadSink, match="max_prepared_transactions is 0"):
        forced.start(ROWS)


def test_when_the_slots_run_out_parts_are_staged() -> None:
    with postgres(max_prepared_transactions=5) as server:
        orders = Orders(server, "id bigint, total bigint")
        orders.start(ROWS)
        parts = [orders.prepare(ROWS, part_id(0, number)) for number in range(4)]
        assert [part.committable.how for part in parts] == [PREPARED] * 2 + [STAGED] * 2
        assert orders.rows() == []
        assert orders.commit(0, parts) == {Outcome.COMMITTED}
        assert orders.commit(0, parts) == {Outcome.ALREADY_COMMITTED}
        assert len(orders.rows()) == 8
        forced = Orders(server, "id bigint, total bigint", how="prepared")
        forced.start(ROWS)
        for number in range(5):
            forced.prepare(ROWS, part_id(1, number))
        with pytest.raises(PrepareFailed, match="max_prepared_transactions"):
            forced.prepare(ROWS, part_id(1, 5))
        forced.sweep()
        assert forced.leftovers() == []


def test_upsert_replaces_by_key(postgres_server: PostgresServer) -> None:
    orders = Orders(postgres_server, KEYED, mode="upsert", key="id")
    orders.start(ROWS)
    orders.epoch(0, ROWS)
    orders.epoch(1, table(id=[2, 3], total=[21, 30]), table(id=[4], total=[40]))
    assert orders.rows() == [(1, 10), (2, 21), (3, 30), (4, 40)]


def test_a_key_twice_in_a_part_fails_before_the_decision(postgres_server: PostgresServer) -> None:
    orders = Orders(postgres_server, KEYED, mode="upsert", key="id")
    orders.start(ROWS)
    with pytest.raises(PrepareFailed, match=r"epoch 3, part 1.*orders.*\(id\) twice.*order_by"):
        orders.prepare(table(id=[1, 7, 7], total=[1, 2, 3]), part_id(3, 1))
    assert orders.leftovers() == []


def test_a_key_twice_in_an_epoch_waits_for_an_order(postgres_server: PostgresServer) -> None:
    orders = Orders(postgres_server, KEYED, mode="upsert", key="id")
    orders.start(ROWS)
    shares = [table(id=[1, 7], total=[1, 2]), table(id=[7], total=[3])]
    parts = [orders.prepare(rows, part_id(0, number)) for number, rows in enumerate(shares)]
    with pytest.raises(CommitFailed, match=r"epoch 0.*\(id\) twice.*decided.*order_by") as caught:
        orders.commit(0, parts)
    assert 'Or start once with drop=["orders@0"]' in str(caught.value)
    assert "leave one" not in str(caught.value), "its rows are staged already"
    assert orders.rows() == []
    # As the error says: the next start has an order, and finishes the epoch.
    orders.sink = PostgresSink(
        postgres_server.dsn, "orders", orders.schema, "upsert", "id", order_by="total"
    )
    assert orders.commit(0, parts) == {Outcome.COMMITTED}
    assert orders.rows() == [(1, 1), (7, 3)]


def test_the_largest_wins_and_a_tie_is_an_error(postgres_server: PostgresServer) -> None:
    orders = Orders(postgres_server, KEYED, mode="upsert", key="id", order_by="version")
    rows = table(id=[1, 1, 2], total=[10, 11, 20], version=[2, 1, None])
    orders.start(rows)
    orders.epoch(0, rows, table(id=[1, 2], total=[9, 21], version=[0, 5]))
    assert orders.rows() == [(1, 10), (2, 21)]
    with pytest.raises(PrepareFailed, match="twice with the same 'version'"):
        orders.prepare(table(id=[1, 1], total=[1, 2], version=[3, 3]), part_id(1))
    shares = [table(id=[1], total=[n], version=[3]) for n in (1, 2)]
    parts = [orders.prepare(share, part_id(1, number)) for number, share in enumerate(shares)]
    with pytest.raises(CommitFailed, match="twice with the same 'version'"):
        orders.commit(1, parts)
    assert orders.rows() == [(1, 10), (2, 21)]
    orders.sweep()


def test_deletes(postgres_server: PostgresServer) -> None:
    columns = "id bigint PRIMARY KEY, total bigint NOT NULL"
    settings = {"mode": "upsert", "key": "id", "order_by": "at", "deleted": "gone"}
    orders = Orders(postgres_server, columns, **settings)
    rows = table(id=[1, 2, 3], total=[10, 20, 30], gone=[False, None, False], at=[1, 1, 1])
    orders.start(rows)
    orders.epoch(0, rows)
    assert orders.rows() == [(1, 10), (2, 20), (3, 30)]
    # A delete needs its key only; of two rows of a key the later counts, in any part.
    first = pa.table(
        {
            "id": [1, 2, 3],
            "total": pa.array([None, 22, None], pa.int64()),
            "gone": [True, False, True],
            "at": [2, 2, 2],
        }
    )
    orders.epoch(1, first, table(id=[2, 3], total=[0, 33], gone=[True, False], at=[1, 3]))
    assert orders.rows() == [(2, 22), (3, 33)]
    assert orders.refused.rows == []


def test_a_decided_epoch_is_not_finished_under_other_settings(
    postgres_server: PostgresServer,
) -> None:
    """A delete would be upserted as a row; an amount to be added would replace the total."""
    deletes = {"mode": "upsert", "key": "id", "deleted": "gone"}
    upsert: dict[str, Any] = {"mode": "upsert", "key": "id"}
    add: dict[str, Any] = {"mode": "add", "key": "id"}
    for first, others, rows, is_left in (
        (
            deletes,
            [(upsert, "deleted was 'gone' and is None"), (add, "mode was 'upsert' and is 'add'")],
            table(id=[1, 2], total=[5, 6], gone=[True, False]),
            [(2, 6)],
        ),
        (add, [(upsert, "mode was 'add' and is 'upsert'")], table(id=[1], total=[5]), [(1, 15)]),
        (upsert, [({**upsert, "key": "total"}, "key was")], table(id=[1], total=[5]), [(1, 5)]),
    ):
        orders = Orders(postgres_server, KEYED, **first)
        orders.start(rows)
        orders.run(f'INSERT INTO "{orders.schema}".orders VALUES (1, 10)')
        staged, part = orders.sink, orders.prepare(rows, part_id(0))
        for other, said in others:
            orders.sink = PostgresSink(postgres_server.dsn, "orders", orders.schema, **other)
            with pytest.raises(CommitFailed, match=rf"epoch 0.*other settings.*{said}") as caught:
                orders.commit(0, [part])
            assert "earlier settings" in str(caught.value)
            assert 'Or start once with drop=["orders@0"]' in str(caught.value)
            assert orders.rows() == [(1, 10)]
        orders.sink = staged
        assert orders.commit(0, [part]) == {Outcome.COMMITTED}
        assert orders.rows() == is_left
        orders.sink = PostgresSink(postgres_server.dsn, "orders", orders.schema, "add", "id")
        assert orders.commit(0, [part]) == {Outcome.ALREADY_COMMITTED}


def test_prepared_rows_are_committed_under_other_settings(postgres_server: PostgresServer) -> None:
    """They are in the table already: only that they show is left."""
    orders = Orders(postgres_server, "id bigint, total bigint")
    orders.start(ROWS)
    part = orders.prepare(ROWS, part_id(0))
    assert part.committable.how == PREPARED
    orders.sink = PostgresSink(postgres_server.dsn, "orders", orders.schema, "upsert", "id")
    assert orders.commit(0, [part]) == {Outcome.COMMITTED}
    assert orders.rows() == [(1, 10), (2, 20)]


def test_a_part_of_a_version_that_stored_no_settings_is_committed(
    postgres_server: PostgresServer,
) -> None:
    orders = Orders(postgres_server, KEYED, mode="upsert", key="id")
    orders.start(ROWS)
    part = orders.prepare(ROWS, part_id(0))
    stored = {"version": 1, "way": STAGED, "schema": orders.schema, "name": part.committable.name}
    older = Prepared(part.id, part.rows, PostgresPart.from_json(stored))
    assert older.committable.is_same(part.committable)
    assert orders.commit(0, [older]) == {Outcome.COMMITTED}
    assert orders.rows() == [(1, 10), (2, 20)]


def test_add_sums_and_null_adds_nothing(postgres_server: PostgresServer) -> None:
    columns = "id bigint PRIMARY KEY, n integer NOT NULL, amount numeric(12, 2)"
    orders = Orders(postgres_server, columns, mode="add", key="id")
    schema = pa.schema([("id", pa.int64()), ("n", pa.int32()), ("amount", pa.decimal128(10, 2))])

    def rows(*values: tuple[int, int | None, str | None]) -> pa.Table:
        from decimal import Decimal

        dictionaries = [
            {"id": i, "n": n, "amount": None if a is None else Decimal(a)} for i, n, a in values
        ]
        return pa.Table.from_pylist(dictionaries, schema=schema)

    first = rows((1, 1, "0.10"), (1, 2, "0.20"), (2, None, None))
    orders.start(first)
    orders.epoch(0, first, rows((1, 3, None), (3, 1, "1.00")))
    orders.epoch(1, rows((1, None, "0.70"), (2, 5, None)))
    shown = [tuple(map(str, row)) for row in orders.rows()]
    assert shown == [("1", "6", "1.00"), ("2", "5", "None"), ("3", "1", "1.00")]


def test_a_total_that_overflows_names_everything(postgres_server: PostgresServer) -> None:
    orders = Orders(postgres_server, "id bigint PRIMARY KEY, n smallint", mode="add", key="id")
    rows = table(id=[1], n=[30_000])
    orders.start(rows)
    orders.epoch(0, rows)
    part = orders.prepare(rows, part_id(1))
    with pytest.raises(CommitFailed, match=r"epoch 1, part 0.*orders.*out of range.*decided"):
        orders.commit(1, [part])
    orders.run(f'ALTER TABLE "{orders.schema}".orders ALTER n TYPE bigint')
    assert orders.commit(1, [part]) == {Outcome.COMMITTED}
    assert orders.rows() == [(1, 60_000)]


def test_the_longest_names_fit_and_are_found_again() -> None:
    query = QueryId("q" * 60, "a" * 32, "file:/c")
    most = 10**18
    id_ = PartId(query.name, query.incarnation, "s" * 60, most, most, most, most)
    for part in (id_, part_id(3)):
        gid = global_id(part, "0123abcd")
        assert len(gid) <= 199
        owner = QueryId(part.query, part.incarnation, "file:/c")
        assert part_of(gid, owner) == part
        assert part_of(gid, QueryId(part.query, "b" * 32, "file:/c")) is None
    assert part_of(global_id(id_, "0123abcd"), query) == id_
    for strange in ("", "mine", "a~b~c", "beadline~+~x", str(id_)):
        assert part_of(strange, query) is None
