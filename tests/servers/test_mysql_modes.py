"""``MySqlSink``: what upsert, add and deletes leave in the table; no row counts by chance."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest

from beadline.errors import CommitFailed, PrepareFailed
from beadline.sink import Outcome, Prepared, Seen
from beadline.sinks import MySqlSink
from beadline.sinks.mysql.part import MySqlPart
from beadline.testing.servers import MariaDbServer
from tests.servers.mysql_tables import COLUMNS, UPSERT, Table, rows_of

Parts = list[Prepared[Any] | None]


def prepared(table: Table, *shares: pa.Table) -> tuple[MySqlSink, Parts]:
    sink = table.opened(shares[0].schema)
    return sink, [table.prepare(sink, share, 0, i) for i, share in enumerate(shares)]


def test_upsert_replaces_by_key(mariadb_server: MariaDbServer) -> None:
    table = Table(mariadb_server, COLUMNS, **UPSERT)
    table.write(rows_of((1, 1, "a"), (2, 2, "b")))
    table.write(rows_of((2, None, "new"), (3, 3, "c")), epoch=1)
    assert table.rows() == [(1, 1, "a"), (2, None, "new"), (3, 3, "c")]


def test_the_largest_order_counts_over_all_parts(mariadb_server: MariaDbServer) -> None:
    table = Table(mariadb_server, COLUMNS, **UPSERT, order_by="n")
    first = rows_of((1, 5, "mid"), (1, 9, "last"), (2, 3, "alone"), (3, None, "null loses"))
    second = rows_of((1, 7, "no"), (3, 0, "zero"), (4, None, "null alone"))
    table.write(first, second)
    assert table.rows() == [
        (1, 9, "last"),
        (2, 3, "alone"),
        (3, 0, "zero"),
        (4, None, "null alone"),
    ]


def test_an_order_need_not_be_in_the_table(mariadb_server: MariaDbServer) -> None:
    table = Table(mariadb_server, "id INT PRIMARY KEY, n INT", **UPSERT, order_by="version")
    table.write(rows_of((1, 1), (1, 2), (1, 3), version=[2, 9, 5]))
    assert table.rows() == [(1, 2)]


def test_deletes_by_a_mark(mariadb_server: MariaDbServer) -> None:
    table = Table(
        mariadb_server,
        "id INT PRIMARY KEY, n INT NOT NULL, w VARCHAR(20)",
        **UPSERT,
        deleted="gone",
        order_by="at",
    )
    table.write(rows_of((1, 1, "a"), (2, 2, "b"), (3, 3, "c"), gone=[False] * 3, at=[1, 1, 1]))
    # A delete needs nothing but its key: n is NOT NULL, and the word is too long.
    changes = rows_of(
        (1, None, "x" * 50), (2, None, None), (2, 22, "back"), (4, 4, "d"), (4, None, None),
        gone=[True, True, False, False, True], at=[1, 1, 2, 1, 2],
    )  # fmt: skip
    table.write(changes.slice(0, 2), changes.slice(2), epoch=1)
    assert table.rows() == [(2, 22, "back"), (3, 3, "c")]
    sink = table.opened(changes.schema)
    bad = rows_of((1, 1, "a"), (None, 1, "b"), gone=[None, True], at=[1, 1])
    bad = bad.set_column(3, "gone", pa.array([None, True], pa.bool_()))
    assert table.prepare(sink, bad, 2, dead_letters=True) is None
    assert len(table.refused) == 2


def test_a_key_twice_is_an_error_before_the_decision(mariadb_server: MariaDbServer) -> None:
    table = Table(mariadb_server, COLUMNS, **UPSERT)
    with pytest.raises(PrepareFailed, match=r"epoch 0, part 0: .* a key \(id\) twice.*order_"):
        table.write(rows_of((7, 1, "a"), (7, 2, "b")))
    assert (table.rows(), table.stages()) == ([], [])


def test_a_key_in_two_parts_waits_for_an_order(mariadb_server: MariaDbServer) -> None:
    table = Table(mariadb_server, COLUMNS, **UPSERT)
    shares = [rows_of((7, 1, "a")), rows_of((7, 2, "b"))]
    sink = table.opened(shares[0].schema)
    parts = [table.prepare(sink, share, 0, i) for i, share in enumerate(shares)]
    with pytest.raises(CommitFailed, match=r"epoch 0.*key \(id\).*order_by.*finishes the epoch"):
        table.commit(sink, parts)
    assert table.rows() == []
    assert table.commit(table.sink(order_by="n"), parts) == {Outcome.COMMITTED}
    assert table.rows() == [(7, 2, "b")]


def test_keys_are_compared_as_the_table_does(mariadb_server: MariaDbServer) -> None:
    columns = "id VARCHAR(9) CHARACTER SET utf8mb4 COLLATE utf8mb4_general_ci PRIMARY KEY, n INT"
    table = Table(mariadb_server, columns, **UPSERT, order_by="n")
    table.write(pa.table({"id": ["a", "A", "b"], "n": pa.array([1, 2, 3], pa.int32())}))
    assert table.rows("n") == [(2,), (3,)]


def test_add_sums_by_key_and_null_adds_nothing(mariadb_server: MariaDbServer) -> None:
    table = Table(
        mariadb_server, "id INT PRIMARY KEY, n INT, d DECIMAL(9,2)", mode="add", key=("id",)
    )

    def rows(*found: tuple[int, int | None, Any]) -> pa.Table:
        ids, ns, ds = zip(*found, strict=True)
        types = (pa.int32(), pa.int32(), pa.decimal128(9, 2))
        arrays = [pa.array(each, type_) for each, type_ in zip((ids, ns, ds), types, strict=True)]
        return pa.table(arrays, names=["id", "n", "d"])

    table.write(rows((1, 1, None), (1, 2, 5), (2, None, None)), rows((1, 3, 1), (3, None, 2)))
    table.write(rows((1, None, 1), (2, 4, None)), epoch=1)
    assert table.rows("id, n, CAST(d AS CHAR)") == [
        (1, 6, "7.00"),
        (2, 4, None),
        (3, None, "2.00"),
    ]


def test_only_a_key_is_upserted_too(mariadb_server: MariaDbServer) -> None:
    table = Table(mariadb_server, "id INT PRIMARY KEY", **UPSERT)
    table.write(rows_of((1,), (2,)))
    table.write(rows_of((2,), (3,)), epoch=1)
    assert table.rows() == [(1,), (2,), (3,)]


def test_odd_names_everywhere(mariadb_server: MariaDbServer) -> None:
    name = "we`ird %s {stage} name; --"
    quoted = "`" + name.replace("`", "``") + "`"
    table = Table(
        mariadb_server, f"{quoted} INT PRIMARY KEY, `a%b` INT", mode="upsert", key=(name,)
    )
    table.run(f"RENAME TABLE {table.database}.t TO {table.database}.{quoted}")
    rows = pa.table({name: pa.array([1], pa.int32()), "a%b": pa.array([2], pa.int32())})
    for sink in (table.sink(), table.sink(order_by="a%b"), table.sink(mode="add")):
        moved = type(sink)(sink.dsn, name, sink.mode, sink.key, sink.order_by)
        moved.check(rows.schema, table.query)
        moved.open(table.query, "mine")
        epoch = table.epoch((moved.last_seen(table.query, "mine") or Seen("", -1)).epoch + 1).number
        table.commit(moved, [table.prepare(moved, rows, epoch)], epoch)
    assert table.run(f"SELECT * FROM {table.database}.{quoted}") == [(1, 4)]


@pytest.mark.parametrize("order", [5, None])
def test_a_tie_within_a_part_is_an_error_before_the_decision(
    mariadb_server: MariaDbServer, order: int | None
) -> None:
    table = Table(mariadb_server, COLUMNS, **UPSERT, order_by="n")
    table.write(rows_of((7, 1, "a"), (7, 2, "b"), (8, None, "c"), (8, 1, "d")))
    with pytest.raises(
        PrepareFailed, match=r"part 0: .*table 't'.* a key \(id\) twice with the same 'n'.*Order"
    ):
        table.write(rows_of((7, order, "a"), (1, 1, "x"), (7, order, "b")), epoch=1)
    assert table.rows() == [(7, 2, "b"), (8, 1, "d")]
    assert table.stages() == []


def test_a_tie_below_the_largest_is_none(mariadb_server: MariaDbServer) -> None:
    table = Table(mariadb_server, COLUMNS, **UPSERT, order_by="n")
    table.write(rows_of((7, 1, "a"), (7, 1, "b"), (7, 2, "c")), rows_of((7, 0, "d")))
    assert table.rows() == [(7, 2, "c")]


def test_a_tie_across_parts_waits_for_another_order(mariadb_server: MariaDbServer) -> None:
    table = Table(mariadb_server, f"{COLUMNS}, at BIGINT", **UPSERT, order_by="n")
    first = rows_of((7, 1, "a"), (8, 1, "x"), at=[1, 1])
    second = rows_of((7, 1, "b"), (9, 1, "y"), at=[0, 0])
    sink, parts = prepared(table, first, second)
    for _ in range(2):
        with pytest.raises(CommitFailed, match=r"epoch 0.*key \(id\).*same 'n'.*finishes"):
            table.commit(sink, parts)
        assert table.rows() == []
        assert len(table.stages()) == 2
    assert table.commit(table.sink(order_by="at"), parts) == {Outcome.COMMITTED}
    assert table.rows() == [(7, 1, "a", 1), (8, 1, "x", 1), (9, 1, "y", 0)]


def test_a_delete_and_a_row_that_tie_are_an_error(mariadb_server: MariaDbServer) -> None:
    table = Table(mariadb_server, COLUMNS, **UPSERT, order_by="n", deleted="gone")
    with pytest.raises(PrepareFailed, match=r"epoch 0.* a key \(id\) twice with the same 'n'"):
        table.write(rows_of((7, 1, "a"), (7, 1, "b"), gone=[True, False]))


def test_one_part_staged_with_an_order_that_is_no_more_wanted(
    mariadb_server: MariaDbServer,
) -> None:
    table = Table(mariadb_server, COLUMNS, **UPSERT, order_by="n")
    sink, parts = prepared(table, rows_of((7, 1, "a"), (7, 2, "b")))
    with pytest.raises(CommitFailed, match=r"epoch 0.* a key \(id\) twice in one epoch.*order_by="):
        table.commit(table.sink(order_by=None), parts)
    assert table.commit(sink, parts) == {Outcome.COMMITTED}
    assert table.rows() == [(7, 2, "b")]


def test_a_decided_epoch_is_not_finished_under_other_settings(
    mariadb_server: MariaDbServer,
) -> None:
    """A delete would be upserted as a row; an amount to be added would replace the total."""
    add, gone = {"mode": "add", "key": "id"}, {"deleted": "gone"}
    deletes = rows_of((1, 1), (2, 2), gone=[True, False])
    for first, others, rows, is_left in (
        ({**UPSERT, **gone}, [({"deleted": None}, r"deleted was 'gone' and is None")], deletes, 2),
        (UPSERT, [(gone, "deleted was None and is 'gone'"), (add, "mode was")], rows_of((1, 5)), 5),
        (add, [(UPSERT, "mode was 'add' and is 'upsert'")], rows_of((1, 5)), 15),
        (add, [({"key": "n"}, r"key was \['id'\] and is \['n'\]")], rows_of((1, 5)), 15),
    ):
        table = Table(mariadb_server, "id INT PRIMARY KEY, n INT", **first)
        sink, parts = prepared(table, rows)
        table.run(f"INSERT INTO {table.database}.t VALUES (1, 10)")
        for other, said in others:
            with pytest.raises(CommitFailed, match=rf"epoch 0.*other settings.*{said}") as caught:
                table.commit(table.sink(**other), parts)
            assert "earlier settings" in str(caught.value)
            assert 'Or start once with drop=["mine@0"]' in str(caught.value)
            assert table.rows() == [(1, 10)]
        assert table.commit(sink, parts) == {Outcome.COMMITTED}
        assert [n for _, n in table.rows()] == [is_left]
        other, _ = others[0]
        assert table.commit(table.sink(**other), parts) == {Outcome.ALREADY_COMMITTED}


def test_a_part_of_a_version_that_stored_no_settings_is_committed(
    mariadb_server: MariaDbServer,
) -> None:
    table = Table(mariadb_server, "id INT PRIMARY KEY, n INT", **UPSERT)
    sink, (part,) = prepared(table, rows_of((1, 5)))
    assert part is not None
    stored = {"version": 1, "how": "staged", "name": part.committable.name, "rows": 1}
    older = Prepared(part.id, part.rows, MySqlPart.from_json(stored))
    assert table.commit(sink, [older]) == {Outcome.COMMITTED}
    assert table.rows() == [(1, 5)]


@pytest.mark.parametrize("change", ["RENAME COLUMN n TO m", "DROP COLUMN n"])
@pytest.mark.parametrize(
    "settings",
    [{}, UPSERT, {**UPSERT, "order_by": "n"}, {"mode": "add", "key": ("id",)}],
    ids=["append", "upsert", "the order", "add"],
)
def test_values_of_a_column_that_is_gone_do_not_vanish(
    mariadb_server: MariaDbServer, change: str, settings: dict[str, Any]
) -> None:
    table = Table(mariadb_server, "id INT PRIMARY KEY, n INT", **settings)
    sink, parts = prepared(table, rows_of((1, 5)))
    table.run(f"ALTER TABLE {table.database}.t {change}")
    says = r'epoch 0.*Unknown column .*n.*the next start finishes.*drop=\["mine@0"\]'
    with pytest.raises(CommitFailed, match=says):
        table.commit(sink, parts)
    assert table.rows() == []
    back = "ADD COLUMN n INT" if "DROP" in change else "RENAME COLUMN m TO n"
    table.run(f"ALTER TABLE {table.database}.t {back}")
    assert table.commit(sink, parts) == {Outcome.COMMITTED}
    assert table.rows("id, n") == [(1, 5)]


def test_an_order_that_was_never_written_needs_no_column(mariadb_server: MariaDbServer) -> None:
    table = Table(mariadb_server, "id INT PRIMARY KEY, w VARCHAR(9)", **UPSERT, order_by="n")
    rows = rows_of((1, 5, "a"), (1, 6, "b"))
    sink, parts = prepared(table, rows)
    table.run(f"ALTER TABLE {table.database}.t ADD COLUMN n INT")
    assert table.commit(sink, parts) == {Outcome.COMMITTED}
    assert table.rows("id, w") == [(1, "b")]


def test_a_null_adds_nothing_where_the_table_takes_none(mariadb_server: MariaDbServer) -> None:
    columns = "id INT PRIMARY KEY, n INT NOT NULL DEFAULT 0, m INT"
    table = Table(mariadb_server, columns, mode="add", key="id")

    def rows(*found: tuple[int | None, int | None, int | None]) -> pa.Table:
        arrays = [pa.array(values, pa.int32()) for values in zip(*found, strict=True)]
        return pa.table(arrays, names=["id", "n", "m"])

    table.write(rows((1, None, None), (1, 3, None), (2, None, None)), rows((3, None, 1)))
    assert table.rows() == [(1, 3, None), (2, 0, None), (3, 0, 1)]
    table.write(rows((1, None, 2), (2, 5, None)), epoch=1)
    assert table.rows() == [(1, 3, 2), (2, 5, None), (3, 0, 1)]
    sink = table.opened(rows((1, 1, 1)).schema)
    table.prepare(sink, rows((None, 1, 1), (4, None, 1)), 2, dead_letters=True)
    assert [first for first, _ in table.refused] == [None], "a key is never null"
