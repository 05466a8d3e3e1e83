"""``MySqlSink``: commits that are late, at once, of lost parts, or of rows that break a key."""

from __future__ import annotations

import threading

import pytest

from beadline.errors import CommitFailed, WrongCheckpoint
from beadline.ids import QueryId
from beadline.sink import Outcome, Prepared, Seen
from beadline.sinks.mysql.part import MySqlPart
from beadline.testing.servers import MariaDbServer
from tests.servers.mysql_tables import COLUMNS, UPSERT, Table, rows_of


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


def test_another_query_of_the_same_name_is_distinguished(mariadb_server: MariaDbServer) -> None:
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
