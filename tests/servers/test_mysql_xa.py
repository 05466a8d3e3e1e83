"""``MySqlSink(how="xa")``: prepared transactions outlive everybody, and lost needs proof."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from typing import Any

import pyarrow as pa
import pytest

from beadline.ids import PartId, QueryId
from beadline.sink import Outcome, Part, Prepared
from beadline.sinks import MySqlSink
from beadline.sinks.mysql import xa
from beadline.sinks.mysql.connection import Connection
from beadline.sinks.mysql.part import MySqlPart, Xid
from beadline.testing.servers import MariaDbServer
from tests.servers.mysql_tables import Table

ROWS = pa.table({"id": pa.array([1, 2], pa.int32())})
MORE = pa.table({"id": pa.array([3], pa.int32())})


@pytest.fixture
def table(mariadb_server: MariaDbServer) -> Iterator[Table]:
    made = Table(mariadb_server, "id INT PRIMARY KEY", how="xa")
    yield made
    sink = made.sink()
    sink.abort(list(sink.in_doubt(made.query, "mine")))


def test_it_outlives_the_connection_and_the_server(table: Table) -> None:
    sink = table.opened(ROWS.schema)
    parts = [table.prepare(sink, ROWS, 0, 0), table.prepare(sink, MORE, 0, 1)]
    table.server.kill()
    assert table.commit(sink, parts) == {Outcome.UNKNOWN}
    table.server.restart()
    ids = {part.id for part in parts if part}
    assert {part.id for part in sink.in_doubt(table.query, "mine")} == ids
    assert table.rows() == []
    assert table.commit(sink, parts) == {Outcome.COMMITTED}
    assert table.commit(table.sink(), parts) == {Outcome.ALREADY_COMMITTED}
    assert table.rows() == [(1,), (2,), (3,)]


def one_rolled_back(table: Table, sink: MySqlSink) -> tuple[Prepared[Any], Prepared[Any]]:
    """Two prepared parts, of which an operator has rolled the second back."""
    kept, gone = table.prepare(sink, ROWS, 0, 0), table.prepare(sink, MORE, 0, 1)
    assert kept is not None
    assert gone is not None
    table.run(f"XA ROLLBACK {Xid.of(gone.id).sql}")
    return kept, gone


def replaced(table: Table, sink: MySqlSink, kept: Prepared[Any]) -> list[Prepared[Any]]:
    """The replay: the same epoch, decided again and committed, with another part for the lost."""
    id_ = table.part_id(0, 1, attempt=1)
    committable = sink.prepare(iter(MORE.to_batches()), Part(id_))
    assert committable is not None
    again = [kept, Prepared(id_, 1, committable)]
    outcomes = sink.commit(table.epoch(), again).outcomes
    assert outcomes == {kept.id: Outcome.ALREADY_COMMITTED, id_: Outcome.COMMITTED}
    return again


def test_committed_then_the_server_forgets_but_the_mark_does_not(table: Table) -> None:
    """Another driver committed, and died before the ledger."""
    sink = table.opened(ROWS.schema)
    part = table.prepare(sink, ROWS)
    table.run(f"XA COMMIT {Xid.of(table.part_id()).sql}")
    table.server.kill()
    table.server.restart()
    assert table.commit(sink, [part]) == {Outcome.ALREADY_COMMITTED}
    assert table.rows() == [(1,), (2,)]


def test_a_transaction_rolled_back_by_hand_is_proven_lost_and_replaced(table: Table) -> None:
    sink = table.opened(ROWS.schema)
    kept, gone = one_rolled_back(table, sink)
    result = sink.commit(table.epoch(), [kept, gone])
    assert result.outcomes == {kept.id: Outcome.COMMITTED, gone.id: Outcome.LOST}
    assert sink.last_seen(table.query, "mine") is None, "an epoch that is not whole is not there"
    replaced(table, sink, kept)
    assert table.rows() == [(1,), (2,), (3,)]


def test_one_call_that_sees_only_the_rest_does_not_hide_a_lost_part(table: Table) -> None:
    sink = table.opened(ROWS.schema)
    kept, gone = one_rolled_back(table, sink)
    assert table.commit(sink, [kept]) == {Outcome.COMMITTED}
    assert table.commit(sink, [gone]) == {Outcome.LOST}


def test_a_late_commit_when_marks_are_forgotten(table: Table) -> None:
    sink = table.opened(ROWS.schema)
    old = table.prepare(sink, ROWS)
    table.commit(sink, [old])
    table.commit(sink, [table.prepare(sink, MORE, 1)], 1)
    assert table.run(f"SELECT epoch FROM {table.database}._beadline_marks") == [(1,)]
    assert table.commit(table.sink(), [old]) == {Outcome.ALREADY_COMMITTED}
    assert table.rows() == [(1,), (2,), (3,)]


def test_a_connection_that_is_still_open_is_no_proof(
    table: Table, monkeypatch: pytest.MonkeyPatch
) -> None:
    sink = table.opened(ROWS.schema)
    held: list[Connection] = []
    close = Connection.close

    def keep(connection: Connection) -> None:
        held.append(connection)

    monkeypatch.setattr(Connection, "close", keep)
    part = table.prepare(sink, ROWS)
    monkeypatch.undo()
    monkeypatch.setattr(xa, "_DETACH_S", 0.1)
    assert table.commit(table.sink(timeout_s=1), [part]) == {Outcome.UNKNOWN}
    for connection in held:
        close(connection)
    monkeypatch.undo()
    assert table.commit(sink, [part]) == {Outcome.COMMITTED}


def test_rows_that_break_a_key_are_refused_at_prepare(table: Table) -> None:
    sink = table.opened(ROWS.schema)
    table.commit(sink, [table.prepare(sink, ROWS)])
    more = pa.table({"id": pa.array([2, 5, 1, 6], pa.int32())})
    part = table.prepare(sink, more, 1, dead_letters=True)
    assert [first for first, _ in table.refused] == [2, 1]
    assert all("Duplicate entry" in why for _, why in table.refused)
    table.commit(sink, [part], 1)
    assert table.rows() == [(1,), (2,), (5,), (6,)]


def test_the_way_may_change_between_two_starts(table: Table) -> None:
    before = table.opened(ROWS.schema)
    part = table.prepare(before, ROWS)
    loser = PartId(table.query.name, table.query.incarnation, "mine", 1, 0, 0, 9)
    before.prepare(iter(MORE.to_batches()), Part(loser))
    now = table.sink(how="staged")
    assert table.commit(now, [part]) == {Outcome.COMMITTED}
    assert [found.id for found in now.in_doubt(table.query, "mine")] == [loser]
    now.abort(list(now.in_doubt(table.query, "mine")))
    assert table.run("XA RECOVER") == []
    table.commit(now, [table.prepare(now, MORE, 1)], 1)
    assert table.rows() == [(1,), (2,), (3,)]


def test_a_lost_part_may_be_replaced_by_a_staged_one(table: Table) -> None:
    before = table.opened(ROWS.schema)
    kept, _ = one_rolled_back(table, before)
    table.commit(before, [kept])  # asked of the rest alone, it calls the epoch whole
    now = table.sink(how="staged")
    again = replaced(table, now, kept)
    assert table.commit(now, again) == {Outcome.ALREADY_COMMITTED}
    assert table.rows() == [(1,), (2,), (3,)]


def test_ids_survive_their_text() -> None:
    query = QueryId("q" * 60, "a" * 32, "file:/x")
    id_ = PartId(query.name, query.incarnation, "s" * 60, 35, 10**9, 4096, 1234567)
    xid = Xid.of(id_)
    assert max(len(xid.transaction), len(xid.branch)) <= 64
    data, length = (xid.transaction + xid.branch).encode(), len(xid.transaction)
    assert Xid.parse(data, length, query) == id_
    assert Xid.parse(data, length, QueryId("other", "a" * 32, "file:/x")) is None
    for strange in (b"", b"\xff\xfe", b"beadline~x", data[:-1] + b"\xff"):
        assert Xid.parse(strange, len(strange), query) is None


def test_foreign_names_are_left_alone(table: Table) -> None:
    sink = table.opened(ROWS.schema)
    with closing(table.server.connect()) as connection, connection.cursor() as cursor:
        for statement in ("XA START 'x'", f"INSERT INTO {table.database}.t VALUES (9)"):
            cursor.execute(statement)
        cursor.execute("XA END 'x'")
        cursor.execute("XA PREPARE 'x'")
    assert list(sink.in_doubt(table.query, "mine")) == []
    sink.abort([Prepared(table.part_id(), 0, MySqlPart("xa", "nothing", 0))])
    assert len(table.run("XA RECOVER")) == 1
    table.run("XA ROLLBACK 'x'")
