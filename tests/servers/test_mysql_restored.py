"""``MySqlSink`` and a target that was restored, altered or renamed between two commits."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import replace
from typing import Any

import pyarrow as pa
import pytest

from beadline.errors import CommitFailed, PrepareFailed, TargetRestored
from beadline.sink import LEDGER, Outcome, Prepared
from beadline.sinks import MySqlSink
from beadline.sinks.mysql.xa import XA_MARKERS
from beadline.testing.servers import MariaDbServer
from tests.servers.mysql_tables import Table

WAYS = ("staged", "xa")


def rows(*ids: int) -> pa.Table:
    return pa.table({"id": pa.array(ids, pa.int32())})


class Restored(Table):
    """A table of which a backup can be made, and brought back."""

    def kept(self) -> list[str]:
        return ["t", LEDGER, *([XA_MARKERS] if self.settings["how"] == "xa" else [])]

    def backup(self) -> None:
        for name in self.kept():
            copy = f"{self.database}.copy_of_{name}"
            self.run(f"CREATE TABLE {copy} AS SELECT * FROM {self.database}.{name}")

    def restore(self) -> None:
        for name in self.kept():
            place = f"{self.database}.{name}"
            with closing(self.server.connect()) as connection, connection.cursor() as cursor:
                cursor.execute("SET SESSION TRANSACTION ISOLATION LEVEL READ COMMITTED")
                cursor.execute(f"DELETE FROM {place}")
                cursor.execute(f"INSERT INTO {place} SELECT * FROM {self.database}.copy_of_{name}")
                connection.commit()

    def commit_after(
        self, sink: MySqlSink, number: int, previous: int, parts: Sequence[Prepared[Any] | None]
    ) -> set[Outcome]:
        there = [part for part in parts if part is not None]
        result = sink.commit(replace(self.epoch(number), previous=previous), there)
        return set(result.outcomes.values())


@pytest.mark.parametrize("how", WAYS)
def test_a_commit_after_a_restore_writes_nothing(mariadb_server: MariaDbServer, how: str) -> None:
    table = Restored(mariadb_server, "id INT", how=how)
    sink = table.opened(rows(1).schema)
    first = [table.prepare(sink, rows(1), 0), table.prepare(sink, rows(2), 0, 1)]
    assert table.commit_after(sink, 0, -1, first) == {Outcome.COMMITTED}
    table.backup()
    second = [table.prepare(sink, rows(3), 1)]
    assert table.commit_after(sink, 1, 0, second) == {Outcome.COMMITTED}
    table.restore()
    third = [table.prepare(sink, rows(4), 3), table.prepare(sink, rows(5), 3, 1)]
    for _ in range(2):
        with pytest.raises(TargetRestored, match=r"acknowledged epoch 1.*holds epoch 0"):
            table.commit_after(sink, 3, 1, third)
    assert table.rows() == [(1,), (2,)]
    seen = sink.last_seen(table.query, "mine")
    assert seen is not None
    assert seen.epoch == 0
    # Given up by name, the expectation is what the target has.
    assert table.commit_after(sink, 3, 0, third) == {Outcome.COMMITTED}
    assert table.rows() == [(1,), (2,), (4,), (5,)]
    # By the ledger or by each part's marker, according to the way.
    assert table.commit_after(sink, 3, 0, third) == {Outcome.ALREADY_COMMITTED}


@pytest.mark.parametrize("how", WAYS)
def test_a_target_that_is_empty_again(mariadb_server: MariaDbServer, how: str) -> None:
    table = Restored(mariadb_server, "id INT", how=how)
    sink = table.opened(rows(1).schema)
    table.backup()
    assert table.commit(sink, [table.prepare(sink, rows(1), 0)], 0) == {Outcome.COMMITTED}
    table.restore()
    parts = [table.prepare(sink, rows(2), 1)]
    with pytest.raises(TargetRestored, match="holds nothing of this query"):
        table.commit_after(sink, 1, 0, parts)
    assert table.rows() == []
    sink.abort([part for part in parts if part is not None])


def test_the_way_may_change_between_epochs(mariadb_server: MariaDbServer) -> None:
    """Each way has a ledger row of its own; that the other one is behind is no loss."""
    table = Restored(mariadb_server, "id INT", how="xa")
    for number, how in enumerate(("staged", "xa", "xa", "staged", "xa")):
        table.settings["how"] = how
        sink = table.opened(rows(1).schema)
        parts = [table.prepare(sink, rows(number), number)]
        assert table.commit_after(sink, number, number - 1, parts) == {Outcome.COMMITTED}
    assert table.rows() == [(number,) for number in range(5)]


ALTERED: dict[str, tuple[str, str, Any]] = {
    "rounded": ("DOUBLE", "INT", pa.array([0.123])),
    "float cut": ("DOUBLE", "FLOAT", pa.array([0.1])),
    "cents cut": ("DECIMAL(10,2)", "DECIMAL(10,1)", pa.array([1], pa.decimal128(10, 2))),
    "blanks cut": ("VARCHAR(9)", "VARCHAR(3)", pa.array(["abc  "])),
    "time cut": ("DATETIME(6)", "DATETIME(3)", pa.array([1_000_001], pa.timestamp("us"))),
}
WIDENED: dict[str, tuple[str, str, Any]] = {
    "integer": ("INT", "BIGINT", pa.array([7], pa.int32())),
    "float": ("FLOAT", "DOUBLE", pa.array([0.5], pa.float32())),
    "digits": ("DECIMAL(5,2)", "DECIMAL(9,3)", pa.array([1], pa.decimal128(5, 2))),
    "length": ("VARCHAR(5)", "VARCHAR(9)", pa.array(["ab"])),
    "text": ("VARCHAR(5)", "LONGTEXT", pa.array(["ab"])),
}


def altered(
    server: MariaDbServer, case: tuple[str, str, Any], **settings: Any
) -> tuple[Table, MySqlSink, list[Any]]:
    before, after, values = case
    given = pa.table({"id": pa.array([1], pa.int32()), "value": values})
    table = Table(server, f"id INT PRIMARY KEY, value {before}", **settings)
    sink = table.opened(given.schema)
    parts = [table.prepare(sink, given)]
    table.run(f"ALTER TABLE {table.database}.t MODIFY value {after}")
    return table, sink, parts


@pytest.mark.parametrize("settings", [{}, {"mode": "upsert", "key": "id"}], ids=str)
@pytest.mark.parametrize("case", ALTERED)
def test_a_column_altered_between_decision_and_commit(
    mariadb_server: MariaDbServer, case: str, settings: dict[str, Any]
) -> None:
    table, sink, parts = altered(mariadb_server, ALTERED[case], **settings)
    with pytest.raises(CommitFailed, match=r"column 'value' is .* now, and was .* part 0"):
        table.commit(sink, parts)
    assert table.rows() == []
    table.run(f"ALTER TABLE {table.database}.t MODIFY value {ALTERED[case][0]}")
    assert table.commit(sink, parts) == {Outcome.COMMITTED}


@pytest.mark.parametrize("case", WIDENED)
def test_a_column_that_was_widened_is_written(mariadb_server: MariaDbServer, case: str) -> None:
    table, sink, parts = altered(mariadb_server, WIDENED[case])
    assert table.commit(sink, parts) == {Outcome.COMMITTED}
    assert [value for _, value in table.rows()] == WIDENED[case][2].to_pylist()


@pytest.mark.parametrize("how", WAYS)
def test_orphans_of_other_names_are_found(mariadb_server: MariaDbServer, how: str) -> None:
    """Rule 27: a sink that was renamed, or taken out, has nobody else who would look."""
    table = Restored(mariadb_server, "id INT", how=how)
    part = table.prepare(table.opened(rows(1).schema), rows(1))
    assert part is not None
    other = table.sink(how="staged")
    assert [each.id for each in other.in_doubt(table.query, "mine")] == [part.id]
    other.abort(list(other.in_doubt(table.query, "mine")))
    assert list(other.in_doubt(table.query, "mine")) == []
    table.run(f"ALTER TABLE {table.database}.t ADD COLUMN more INT")


@pytest.mark.parametrize("database", ["elsewhere", "else.where`"])
def test_orphans_in_another_database_are_found(
    mariadb_server: MariaDbServer, database: str
) -> None:
    """Rule 27: a sink that was moved, under its name, to another database of the server."""
    table = Restored(mariadb_server, "id INT")
    part = table.prepare(table.opened(rows(1).schema), rows(1))
    assert part is not None
    former, quoted = table.database, "`" + database.replace("`", "``") + "`"
    table.run(f"CREATE DATABASE IF NOT EXISTS {quoted}")
    table.run(f"RENAME TABLE {former}.{part.committable.name} TO {quoted}.{part.committable.name}")
    sink = table.sink()
    assert [each.id for each in sink.in_doubt(table.query, "mine")] == [part.id]
    sink.abort(list(sink.in_doubt(table.query, "mine")))
    assert list(sink.in_doubt(table.query, "mine")) == []
    assert table.run(f"SHOW TABLES FROM {quoted}") == []


def drop_connections(table: Table) -> None:
    """End every session in the table's database, as a proxy or an operator would."""
    where = f"WHERE DB = '{table.database}'"
    for (number,) in table.run(f"SELECT ID FROM information_schema.PROCESSLIST {where}"):
        table.run(f"KILL CONNECTION {number}")


def test_xa_goes_on_after_a_dropped_connection(mariadb_server: MariaDbServer) -> None:
    """The rows are sent again, and those that were refused are not refused twice."""
    table = Restored(mariadb_server, "id INT, note VARCHAR(3)", how="xa")
    sink = table.opened(pa.schema([("id", pa.int32()), ("note", pa.string())]))

    def dropping() -> Iterator[Any]:
        for number in range(6):
            if number in (2, 4):
                drop_connections(table)
            note = "too long" if number == 1 else "ok"
            one = {"id": pa.array([number], pa.int32()), "note": pa.array([note])}
            yield from pa.table(one).to_batches()

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("beadline.sinks.mysql.loading.CHUNK_BYTES", 1)  # each row by itself
        part = table.prepare(sink, dropping(), dead_letters=True)
    assert part is not None
    assert part.rows == 5
    assert [first for first, _ in table.refused] == [1]
    assert table.commit(sink, [part]) == {Outcome.COMMITTED}
    assert table.rows("id") == [(0,), (2,), (3,), (4,), (5,)]
    assert list(sink.in_doubt(table.query, "mine")) == []


def test_xa_does_not_take_the_end_of_its_source_for_the_end_of_rows(
    mariadb_server: MariaDbServer,
) -> None:
    table = Restored(mariadb_server, "id INT", how="xa")
    sink = table.opened(rows(1).schema)

    def broken() -> Iterator[Any]:
        yield from rows(1).to_batches()
        raise ConnectionResetError("Spark is gone")

    with pytest.raises(ConnectionResetError, match="Spark is gone"):
        table.prepare(sink, broken())
    assert list(sink.in_doubt(table.query, "mine")) == []


def test_xa_fails_at_once_without_its_table_of_markers(mariadb_server: MariaDbServer) -> None:
    table = Restored(mariadb_server, "id INT", how="xa", timeout_s=60)
    sink = table.opened(rows(1).schema)
    table.run(f"RENAME TABLE {table.database}.{XA_MARKERS} TO {table.database}.away")
    begun_s = time.monotonic()
    with pytest.raises(PrepareFailed, match="epoch 0, part 0"):
        table.prepare(sink, rows(1))
    assert time.monotonic() - begun_s < 30
