"""``MySqlSink``: nothing is settled by chance, and nothing vanishes between decision and commit."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest

from beadline.errors import CommitFailed, PrepareFailed
from beadline.sink import Outcome, Prepared
from beadline.sinks import MySqlSink
from beadline.testing.servers import MariaDbServer
from tests.servers.mysql_tables import Table

COLUMNS = "id INT PRIMARY KEY, n INT, w VARCHAR(20)"
UPSERT: dict[str, Any] = {"mode": "upsert", "key": "id"}
Parts = list[Prepared[Any] | None]


def rows_of(*rows: tuple[Any, ...], **columns: Any) -> pa.Table:
    """Rows of id, n and w."""
    types = (pa.int32(), pa.int32(), pa.string())
    found = enumerate(zip(*rows, strict=True))
    arrays = [pa.array(values, types[place]) for place, values in found]
    table = pa.table(arrays, names=["id", "n", "w"][: len(arrays)])
    for name, values in columns.items():
        table = table.append_column(name, pa.array(values))
    return table


def prepared(table: Table, *shares: pa.Table) -> tuple[MySqlSink, Parts]:
    sink = table.opened(shares[0].schema)
    return sink, [table.prepare(sink, share, 0, i) for i, share in enumerate(shares)]


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


def test_a_delete_stays_one_when_the_setting_is_gone(mariadb_server: MariaDbServer) -> None:
    table = Table(mariadb_server, COLUMNS, **UPSERT, deleted="gone")
    sink, parts = prepared(table, rows_of((1, 1, "a"), (2, 2, "b"), gone=[False, True]))
    with pytest.raises(CommitFailed, match=r"staged with deleted='gone'.*now .*deleted=None"):
        table.commit(table.sink(deleted=None), parts)
    assert table.rows() == []
    assert table.commit(sink, parts) == {Outcome.COMMITTED}
    assert table.rows() == [(1, 1, "a")]


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
    with pytest.raises(CommitFailed, match=r"epoch 0.*Unknown column .*n.*the next start finishes"):
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
