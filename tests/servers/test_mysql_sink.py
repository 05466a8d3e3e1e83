"""``MySqlSink``: what each mode does, in one epoch and over several, and by two drivers at once."""

from __future__ import annotations

import threading
from typing import Any

import pyarrow as pa
import pytest

from beadline.errors import CommitFailed, PrepareFailed, WrongCheckpoint
from beadline.ids import QueryId
from beadline.sink import Outcome, Prepared, Seen
from beadline.sinks.mysql.part import MySqlPart
from beadline.testing.servers import MariaDbServer
from tests.servers.mysql_tables import Table

COLUMNS = "id INT PRIMARY KEY, n INT, w VARCHAR(20)"
UPSERT: dict[str, Any] = {"mode": "upsert", "key": "id"}


def rows_of(*rows: tuple[Any, ...], **columns: Any) -> pa.Table:
    names = ("id", "n", "w")
    types = (pa.int32(), pa.int32(), pa.string())
    table = pa.table(
        {
            name: pa.array([row[i] for row in rows], types[i])
            for i, name in enumerate(names[: len(rows[0])])
        }
    )
    for name, values in columns.items():
        table = table.append_column(name, pa.array(values))
    return table


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


def test_a_late_commit_after_newer_epochs_does_nothing(mariadb_server: MariaDbServer) -> None:
    table = Table(mariadb_server, "id INT PRIMARY KEY, n INT", mode="add", key="id")
    rows = rows_of((1, 1))
    sink = table.opened(rows.schema)
    old = table.prepare(sink, rows, 0)
    table.commit(sink, [old], 0)
    table.commit(sink, [table.prepare(sink, rows, 1)], 1)
    # Even if what was staged were there again, the ledger is what counts.
    again = table.prepare(sink, rows, 0)
    assert table.commit(table.sink(), [again], 0) == {Outcome.ALREADY_COMMITTED}
    assert table.rows() == [(1, 2)]
    assert table.stages() == []


def test_many_parts_and_two_drivers(mariadb_server: MariaDbServer) -> None:
    table = Table(mariadb_server, COLUMNS, **UPSERT, order_by="n")
    shares = [rows_of((i % 5, i, str(i))) for i in range(80)]
    sink = table.opened(shares[0].schema)
    parts = [table.prepare(sink, share, 0, i) for i, share in enumerate(shares)]
    outcomes: list[set[Outcome]] = []
    threads = [
        threading.Thread(target=lambda: outcomes.append(table.commit(table.sink(), parts)))
        for _ in range(3)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert sorted(str(one) for each in outcomes for one in each) == [
        "Outcome.ALREADY_COMMITTED",
        "Outcome.ALREADY_COMMITTED",
        "Outcome.COMMITTED",
    ]
    assert table.rows() == [(i, 75 + i, str(75 + i)) for i in range(5)]


def test_another_query_of_the_name_is_told_apart(mariadb_server: MariaDbServer) -> None:
    table = Table(mariadb_server, COLUMNS)
    table.write(rows_of((1, 1, "a")))
    old, table.query = table.query, QueryId("orders", "f" * 32, "file:/other")
    sink = table.opened(rows_of((1, 1, "a")).schema)
    assert sink.last_seen(table.query, "mine") == Seen(old.incarnation, 0, "nonce-0")
    part = table.prepare(sink, rows_of((2, 2, "b")), 5)
    with pytest.raises(WrongCheckpoint, match="another query of that name"):
        table.commit(sink, [part], 5)
    assert table.rows("id") == [(1,)]


@pytest.mark.parametrize("mode", ["append", "upsert"])
def test_a_staged_part_that_is_gone_or_short_is_lost(
    mariadb_server: MariaDbServer, mode: str
) -> None:
    settings = UPSERT if mode == "upsert" else {}
    table = Table(mariadb_server, COLUMNS, **settings)
    shares = [rows_of((1, 1, "a")), rows_of((2, 2, "b"))]
    sink = table.opened(shares[0].schema)
    parts = [table.prepare(sink, share, 0, i) for i, share in enumerate(shares)]
    assert parts[1] is not None
    table.run(f"DELETE FROM {table.database}.{parts[1].committable.name}")
    assert table.commit(sink, parts) == {Outcome.LOST}
    table.run(f"DROP TABLE {table.database}.{parts[1].committable.name}")
    result = sink.commit(table.epoch(), [part for part in parts if part])
    assert set(result.outcomes.values()) == {Outcome.LOST}
    assert "part 1: staging table" in result.detail
    assert table.rows() == []
    assert len(table.stages()) == 1, "what is left of a lost epoch is kept"


def test_a_row_that_breaks_a_key_stops_with_nothing_visible(mariadb_server: MariaDbServer) -> None:
    table = Table(mariadb_server, COLUMNS)
    table.write(rows_of((1, 1, "a")))
    sink = table.opened(rows_of((1, 1, "a")).schema)
    parts = [table.prepare(sink, rows_of((i, 9, "x")), 1, i) for i in (0, 1)]
    with pytest.raises(
        CommitFailed,
        match=r"epoch 1, part 1: .*Duplicate entry \(not shown\) for key.*_stage",
    ):
        table.commit(sink, parts, 1)
    assert table.rows("id") == [(1,)]
    table.run(f"DELETE FROM {table.database}.t WHERE id = 1")
    assert table.commit(sink, parts, 1) == {Outcome.COMMITTED}
    assert table.rows("id") == [(0,), (1,)]


def test_only_staging_tables_are_ever_dropped(mariadb_server: MariaDbServer) -> None:
    table = Table(mariadb_server, COLUMNS)
    rows = rows_of((1, 1, "a"))
    sink = table.opened(rows.schema)
    part = table.prepare(sink, rows)
    assert [one.id for one in sink.in_doubt(table.query, "mine")] == [table.part_id()]
    assert part is not None
    elsewhere = Prepared(part.id, 1, MySqlPart("staged", "t", 1))
    with pytest.raises(Exception, match="not a staging table"):
        sink.abort([elsewhere])
    assert table.rows() == []
