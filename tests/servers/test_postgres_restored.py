"""``PostgresSink`` and a target that was restored, altered or renamed between two commits."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import pytest

from beadline.errors import CommitFailed, TargetRestored
from beadline.sink import LEDGER, Outcome, Prepared
from beadline.sinks.postgres.ledger import MARKERS
from beadline.sinks.shared.sql.dialect import quoted
from beadline.testing.servers import PostgresServer
from tests.servers.postgres_target import QUERY, Orders, epoch_id, part_id, table

WAYS = ("prepared", "staged")
KEPT = ("orders", LEDGER, MARKERS)


@pytest.fixture(autouse=True)
def nothing_left(postgres_server: PostgresServer) -> Iterator[None]:
    """Prepared transactions are the whole server's, and all tests have one query."""
    yield
    Orders(postgres_server, "id bigint, total bigint").sweep()


def rows(*ids: int) -> Any:
    return table(id=list(ids), total=[10 * id_ for id_ in ids])


class Restored(Orders):
    """A table of which a backup can be made, and brought back."""

    def backup(self) -> None:
        self.run(f"DROP SCHEMA IF EXISTS {quoted(self._copies)} CASCADE")
        self.run(f"CREATE SCHEMA {quoted(self._copies)}")
        for name in KEPT:
            whole = f"TABLE {quoted(self.schema, name)}"
            self.run(f"CREATE TABLE {quoted(self._copies, name)} AS {whole}")

    def restore(self) -> None:
        for name in KEPT:
            place = quoted(self.schema, name)
            self.run(f"DELETE FROM {place}; INSERT INTO {place} TABLE {quoted(self._copies, name)}")

    @property
    def _copies(self) -> str:
        return f"{self.schema} backup"

    def commit_after(self, number: int, previous: int, parts: Sequence[Prepared[Any]]) -> Any:
        result = self.sink.commit(replace(epoch_id(number), previous=previous), parts)
        return set(result.outcomes.values())


def started(server: PostgresServer, way: str) -> Restored:
    orders = Restored(server, "id bigint, total bigint", how=way)
    orders.start(rows(0))
    return orders


@pytest.mark.parametrize("way", WAYS)
def test_a_commit_after_a_restore_writes_nothing(postgres_server: PostgresServer, way: str) -> None:
    """Also with an epoch without rows in between, and with the part staged before the restore."""
    orders = started(postgres_server, way)
    orders.epoch(0, rows(1), rows(2))
    orders.backup()
    parts = [orders.prepare(rows(3), part_id(1))]
    assert orders.commit_after(1, 0, parts) == {Outcome.COMMITTED}
    later = [orders.prepare(rows(5), part_id(3)), orders.prepare(rows(6), part_id(3, 1))]
    orders.restore()
    for _ in range(2):
        with pytest.raises(TargetRestored, match=r"acknowledged epoch 1.*holds epoch 0"):
            orders.commit_after(3, 1, later)
    assert orders.rows() == [(1, 10), (2, 20)]
    seen = orders.sink.last_seen(QUERY, "orders")
    assert seen is not None
    assert seen.epoch == 0
    # Given up by name, the expectation is what the target has.
    assert orders.commit_after(3, 0, later) == {Outcome.COMMITTED}
    assert orders.rows() == [(1, 10), (2, 20), (5, 50), (6, 60)]
    assert orders.commit_after(3, 0, later) == {Outcome.ALREADY_COMMITTED}


@pytest.mark.parametrize("way", WAYS)
def test_a_target_that_is_empty_again(postgres_server: PostgresServer, way: str) -> None:
    orders = started(postgres_server, way)
    orders.backup()
    orders.epoch(0, rows(1))
    orders.restore()
    parts = [orders.prepare(rows(2), part_id(1))]
    with pytest.raises(TargetRestored, match="holds nothing of this query"):
        orders.commit_after(1, 0, parts)
    assert orders.rows() == []
    assert orders.sink.last_seen(QUERY, "orders") is None


def test_a_restore_to_the_middle_of_an_epoch(postgres_server: PostgresServer) -> None:
    """Prepared transactions are committed one by one; a backup may be taken between two."""
    orders = started(postgres_server, "prepared")
    orders.epoch(0, rows(1))
    parts = [orders.prepare(rows(2), part_id(1)), orders.prepare(rows(3), part_id(1, 1))]
    orders.commit_after(1, 0, parts)
    place = quoted(orders.schema, MARKERS)
    orders.run(f"DELETE FROM {place} WHERE gid = '{parts[1].committable.name}'")
    orders.run(f"DELETE FROM {quoted(orders.schema, 'orders')} WHERE id = 3")
    seen = orders.sink.last_seen(QUERY, "orders")
    assert seen is not None
    assert seen.epoch == 0, "epoch 1 is there in part"
    later = [orders.prepare(rows(4), part_id(2))]
    with pytest.raises(TargetRestored, match=r"acknowledged epoch 1.*holds epoch 0"):
        orders.commit_after(2, 1, later)
    assert orders.rows() == [(1, 10), (2, 20)]


def test_a_commit_that_is_asked_again_for_some_parts(postgres_server: PostgresServer) -> None:
    """What is announced is all parts of the epoch, however few the last call was for."""
    orders = started(postgres_server, "prepared")
    parts = [orders.prepare(rows(n), part_id(0, n)) for n in range(3)]
    orders.commit_after(0, -1, parts[:1])  # as a driver that died in the middle
    assert orders.sink.last_seen(QUERY, "orders") is not None
    orders.commit_after(0, -1, parts)
    orders.commit_after(0, -1, parts[2:])
    seen = orders.sink.last_seen(QUERY, "orders")
    assert seen is not None
    assert seen.epoch == 0
    later = [orders.prepare(rows(4), part_id(1))]
    assert orders.commit_after(1, 0, later) == {Outcome.COMMITTED}


def test_a_sink_by_another_name_has_what_was_written(postgres_server: PostgresServer) -> None:
    """Its ledger row has the old name; the start knows that nothing is expected of the new one."""
    orders = started(postgres_server, "staged")
    orders.epoch(0, rows(1))
    seen = orders.sink.last_seen(QUERY, "other")
    assert seen is not None
    assert seen.epoch == 0


ALTERED: dict[str, tuple[str, str, list[Any]]] = {
    "rounded": ("double precision", "integer", [0.123]),
    "float cut": ("double precision", "real", [0.1]),
    "cents cut": ("numeric(10, 2)", "numeric(10, 1)", [1]),
    "blanks cut": ("text", "varchar(3)", ["abc "]),
    "blanks added": ("text", "char(5)", ["abc"]),
    "to text": ("double precision", "text", [0.5]),
}
WIDENED: dict[str, tuple[str, str, list[Any]]] = {
    "integer": ("integer", "bigint", [7]),
    "real": ("real", "double precision", [0.5]),
    "digits": ("numeric(5, 2)", "numeric(9, 3)", [1]),
    "length": ("varchar(5)", "varchar(9)", ["ab"]),
    "text": ("varchar(5)", "text", ["ab"]),
    "whole": ("integer", "numeric", [3]),
}
MODES: dict[str, dict[str, Any]] = {
    "append": {},
    "upsert": {"mode": "upsert", "key": "id"},
}


def staged_and_altered(
    server: PostgresServer, case: tuple[str, str, list[Any]], mode: str
) -> tuple[Orders, list[Prepared[Any]]]:
    """Two parts, the second staged after the column was altered: only the first is another."""
    import pyarrow as pa

    before, after, values = case
    types = {"integer": pa.int32(), "real": pa.float32(), "numeric(10, 2)": pa.decimal128(10, 2)}
    types["numeric(5, 2)"] = pa.decimal128(5, 2)
    column = pa.array(values, types.get(before))
    given = pa.table({"id": pa.array([1], pa.int64()), "value": column})
    key = ", PRIMARY KEY (id)" if mode == "upsert" else ""
    orders = Orders(server, f"id bigint, value {before}{key}", how="staged", **MODES[mode])
    orders.start(given)
    parts = [orders.prepare(given, part_id(0))]
    orders.run(f"ALTER TABLE {quoted(orders.schema, 'orders')} ALTER COLUMN value TYPE {after}")
    return orders, parts


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("case", ALTERED)
def test_a_column_altered_between_decision_and_commit(
    postgres_server: PostgresServer, case: str, mode: str
) -> None:
    before = ALTERED[case][0]
    orders, parts = staged_and_altered(postgres_server, ALTERED[case], mode)
    with pytest.raises(CommitFailed, match=r"column 'value' is .* now, and was .* part 0") as told:
        orders.commit(0, parts)
    assert "Alter the column back" in str(told.value)
    assert orders.rows() == []
    back = f"ALTER COLUMN value TYPE {before} USING value::{before}"
    orders.run(f"ALTER TABLE {quoted(orders.schema, 'orders')} {back}")
    assert orders.commit(0, parts) == {Outcome.COMMITTED}
    assert orders.leftovers() == []


@pytest.mark.parametrize("case", WIDENED)
def test_a_column_that_was_widened_is_written(postgres_server: PostgresServer, case: str) -> None:
    orders, parts = staged_and_altered(postgres_server, WIDENED[case], "append")
    assert orders.commit(0, parts) == {Outcome.COMMITTED}
    assert [value for _, value in orders.rows()] == WIDENED[case][2]


@pytest.mark.parametrize("way", WAYS)
def test_orphans_of_other_names_and_schemas_are_found(
    postgres_server: PostgresServer, way: str
) -> None:
    """Rule 27: a sink that was renamed, or taken out, has nobody else who would look."""
    gone, left = started(postgres_server, way), started(postgres_server, way)
    part = gone.prepare(rows(1), part_id(0))
    found = [each for each in left.sink.in_doubt(QUERY, "orders") if each.id == part.id]
    assert [each.committable.name for each in found] == [part.committable.name]
    left.sink.abort(found)
    assert gone.leftovers() == []


def test_a_staging_table_of_another_user_is_left(postgres_server: PostgresServer) -> None:
    """It holds nothing up, and must not keep the query from starting."""
    gone, left = started(postgres_server, "staged"), started(postgres_server, "staged")
    part = gone.prepare(rows(1), part_id(0))
    left.run("CREATE ROLE sweeper LOGIN PASSWORD 'word'")
    left.run(f"GRANT ALL ON SCHEMA {quoted(left.schema)} TO sweeper")
    sink = replace(left.sink, dsn=postgres_server.dsn_of("postgres", "sweeper", "word"))
    sink.abort([each for each in sink.in_doubt(QUERY, "orders") if each.id == part.id])
    assert gone.leftovers() == [part.committable.name]
    gone.sweep()
