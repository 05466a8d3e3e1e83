"""What the SQL sinks share, without a server: rows halved and sent again, the ledger, SQL."""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Iterator, Sequence
from contextlib import closing
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest

from beadline.errors import BadSink, CommitFailed, TargetRestored, WrongCheckpoint
from beadline.ids import EpochId, PartId, QueryId
from beadline.sink import LedgerRows, Part, Prepared, Seen
from beadline.sinks.mysql.columns import MYSQL, MySqlColumn
from beadline.sinks.mysql.connection import MySqlAddress, MySqlServer
from beadline.sinks.mysql.part import MySqlPart
from beadline.sinks.mysql.plan import MySqlSettings
from beadline.sinks.mysql.staged import commit_staged
from beadline.sinks.postgres import staged as postgres_staged
from beadline.sinks.postgres.columns import POSTGRES
from beadline.sinks.postgres.connect import PostgresAddress
from beadline.sinks.postgres.part import PREPARED, STAGED, PostgresPart
from beadline.sinks.postgres.plan import PostgresSettings
from beadline.sinks.postgres.table import PostgresColumn, PostgresTable
from beadline.sinks.shared.sql import rows as rows_module
from beadline.sinks.shared.sql.checks import Check, Fit
from beadline.sinks.shared.sql.dialect import Dialect
from beadline.sinks.shared.sql.errors import check_staged
from beadline.sinks.shared.sql.modes import PLACE, added, duplicates, largest, summed
from beadline.sinks.shared.sql.plan import PlannedColumn, TablePlan
from beadline.sinks.shared.sql.rows import ResendableRows, misfits
from beadline.sinks.shared.sql.settings import TableSettings
from beadline.sinks.shared.sql.stages import WhyKept, drop_stages
from beadline.sinks.sqlite.columns import SQLITE

QUERY = QueryId("shop", "d" * 32, "file:/shop/checkpoint")
OTHER = "e" * 32


class RefusedNumbers(list[tuple[int, str]]):
    """A stand-in for a dead-letter sink: the first column of each row, and the reason."""

    def __call__(self, rows: pa.RecordBatch, reason: str) -> None:
        self.extend((first, reason) for first in rows.column(0).to_pylist())

    @property
    def part(self) -> Part:
        return Part(PartId(QUERY.name, QUERY.incarnation, "orders", 1, 0, 0, 0), refuse=self)


def batch(*ids: int) -> pa.RecordBatch:
    return pa.record_batch({"id": pa.array(ids, pa.int64())})


def plan(*columns: PlannedColumn[Any], deleted: str | None = None) -> TablePlan[Any]:
    return TablePlan(columns, deleted)


def integer(name: str, **settings: Any) -> PlannedColumn[Any]:
    column = PostgresColumn.of_type(name, "bigint")
    return PlannedColumn(name, column, Fit(), **settings)


# ---- rows ----
@pytest.mark.parametrize("bad", [set(), {0}, {7}, {3, 4}, {1, 5, 6}, set(range(8))])
def test_bad_rows_are_found_by_halving(bad: set[int]) -> None:
    sent: list[int] = []

    def send(rows: pa.RecordBatch) -> str | None:
        ids = rows.column(0).to_pylist()
        if bad & set(ids):
            return f"something in {ids}"
        sent.extend(ids)
        return None

    found = misfits(batch(*range(8)), send)
    assert found == {row: f"something in [{row}]" for row in sorted(bad)}
    assert sent == [row for row in range(8) if row not in bad], "each once, in their order"


def test_rows_are_sent_again_and_none_is_refused_twice() -> None:
    refused = RefusedNumbers()
    batches = iter([batch(1, 2, 3), batch(4, 5), batch(6)])
    rows = ResendableRows(plan(integer("id")), batches, refused.part)

    def send(rows: pa.RecordBatch) -> str | None:
        if 6 in rows.column(0).to_pylist() and len(refused) == 2 and not lost:
            lost.append(True)
            raise ConnectionError
        return "even" if any(n in (2, 4) for n in rows.column(0).to_pylist()) else None

    lost: list[bool] = []
    with pytest.raises(ConnectionError):
        rows.send_each(send)
    rows.send_each(send)
    assert refused == [(2, "even"), (4, "even")]
    assert [each.column(0).to_pylist() for each in rows] == [[1, 3], [5], [6]]
    assert (rows.count, rows.batches, rows.restartable) == (4, 3, True)


def test_what_is_too_much_to_keep_is_sent_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rows_module, "KEPT_BYTES_MAX", 20)
    rows = ResendableRows(plan(integer("id")), iter([batch(1), batch(2, 3)]), RefusedNumbers().part)
    assert sum(each.num_rows for each in rows) == 3
    assert not rows.restartable
    assert not rows.all_differ_in(["id"]), "it is not known any more"


def test_an_error_of_the_source_is_not_one_of_the_server() -> None:
    def broken() -> Iterator[pa.RecordBatch]:
        yield batch(1)
        raise ConnectionResetError("Spark is gone")

    rows = ResendableRows(plan(integer("id")), broken(), RefusedNumbers().part)
    with pytest.raises(ConnectionResetError):
        list(rows.sent())
    assert isinstance(rows.failure, ConnectionResetError), "the rows behind it would be missing"


def test_whether_a_key_comes_twice() -> None:
    for ids, differ in (((1, 2, 3), True), ((1, 2, 1), False)):
        batches = iter([batch(*ids[:2]), batch(*ids[2:])])
        rows = ResendableRows(plan(integer("id")), batches, RefusedNumbers().part)
        assert len(list(rows)) == 2
        assert rows.all_differ_in(["id"]) is differ
        assert not rows.all_differ_in([]), "a key that the server compares is asked of the server"


# ---- what a row that deletes needs ----
def test_a_row_that_only_deletes_needs_its_key_alone() -> None:
    refused = RefusedNumbers()
    small = Fit((Check("too large", lambda array: pa.compute.greater(array, 9)),))
    columns = (
        integer("id", never_null=True, in_deletes=True, needed_in_deletes=True),
        PlannedColumn("n", PostgresColumn.of_type("n", "bigint"), small, never_null=True),
        integer("gone", in_deletes=True, in_table=False),
    )
    rows = pa.record_batch(
        {
            "id": pa.array([1, 2, 3, 4, None], pa.int64()),
            "n": pa.array([5, None, 99, 99, 5], pa.int64()),
            "gone": pa.array([False, True, True, None, True]),
        }
    )
    found = plan(*columns, deleted="gone")
    (taken,) = found.taken([rows], refused.part)
    assert taken.column("id").to_pylist() == [1, 2, 3]
    assert taken.column("n").to_pylist() == [5, None, 99], "kept as it came"
    assert found.sent(taken).column("n").to_pylist() == [5, None, None]
    assert sorted(refused, key=str) == [
        (4, "column 'n': too large"),
        (None, "null in column 'id', which is part of the key or NOT NULL"),
    ]


# ---- the ledger ----
def seen(epoch: int, incarnation: str = QUERY.incarnation) -> Seen:
    return Seen(incarnation, epoch, f"{epoch:032x}")


def test_the_ledger_of_one_sink() -> None:
    rows = LedgerRows(QUERY, [("orders", seen(4))])
    assert rows.last_seen("orders") == seen(4)
    for epoch, held in ((3, True), (4, True), (5, False)):
        assert rows.hold(EpochId(QUERY, epoch, "n", 0), "t", "orders") is held
    assert not LedgerRows(QUERY, []).hold(EpochId(QUERY, 0, "n", 0), "t", "orders")


def test_the_rows_of_others_say_nothing_of_this_epoch() -> None:
    rows = LedgerRows(QUERY, [("other", seen(7)), ("orders", seen(3))])
    assert rows.last_seen("orders") == seen(3), "its own, though another is newer"
    assert rows.last_seen("renamed") == seen(7), "what is lost they have lost together"
    assert not rows.hold(EpochId(QUERY, 7, "n", 0), "t", "renamed")
    held = rows.seen(7, "renamed")
    assert held is not None
    assert held.epoch == 6
    assert rows.seen(7, "orders") == seen(3)


def test_another_incarnation_comes_first() -> None:
    rows = LedgerRows(QUERY, [("orders", seen(9)), ("orders", seen(2, OTHER))])
    assert rows.last_seen("orders") == seen(2, OTHER)
    with pytest.raises(WrongCheckpoint):
        rows.hold(EpochId(QUERY, 5, "n", 0), "t", "orders")


def test_a_ledger_that_was_restored_is_refused() -> None:
    rows = LedgerRows(QUERY, [("orders", seen(3))])
    assert not rows.hold(EpochId(QUERY, 5, "n", 0, 3), "t", "orders")
    with pytest.raises(TargetRestored):
        rows.hold(EpochId(QUERY, 5, "n", 0, 4), "t", "orders")


# ---- SQL, run where no server is needed ----
def upsert(**settings: Any) -> TableSettings:
    return TableSettings(SQLITE, "table 't'", "t", "upsert", ("id",), **settings)


def ask(statement: str) -> list[Any]:
    with closing(sqlite3.connect(":memory:")) as database:
        for part, rows in (("a", "(1, 5), (2, NULL), (2, 7)"), ("b", "(1, 9), (3, 1), (3, 1)")):
            database.execute(f'CREATE TABLE "{part}" (id INTEGER, n INTEGER)')
            database.execute(f'INSERT INTO "{part}" VALUES {rows}')
        return database.execute(statement).fetchall()


def test_the_row_with_the_largest_order_counts() -> None:
    settings = upsert(order_by="n")
    statement = largest(settings, "ROW_NUMBER", ['"a"', '"b"'], ["id", "n"])
    assert sorted(ask(statement)) == [(1, 9), (2, 7), (3, 1)]
    assert sorted(ask(largest(settings, "RANK", ['"a"', '"b"'], ["id"]))) == [
        (1,),
        (2,),
        (3,),
        (3,),
    ]


def test_a_key_that_comes_twice_is_found() -> None:
    assert ask(duplicates(upsert(order_by="n"), ['"a"'])) == []
    assert ask(duplicates(upsert(order_by="n"), ['"a"', '"b"'])) == [(1,)], "a tie at the top"
    assert ask(duplicates(upsert(), ['"a"'])) == [(1,)]


def test_a_null_adds_nothing() -> None:
    assert ask(f"SELECT {added('NULL', '2')}, {added('2', 'NULL')}, {added('2', '3')}") == [
        (2, 2, 5)
    ]
    nothing = 'FROM "a" WHERE n IS NULL'
    assert ask(f"SELECT {summed('n', not_null=True)} {nothing}") == [(0,)]
    assert ask(f"SELECT {summed('n', not_null=False)} {nothing}") == [(None,)]


# ---- what the three have in common in saying no ----
@pytest.mark.parametrize("dialect", [POSTGRES, MYSQL, SQLITE], ids=lambda dialect: dialect.name)
@pytest.mark.parametrize(
    ("settings", "schema", "words"),
    [
        ({"mode": "replace"}, {"id": pa.int64()}, "not append, upsert or add"),
        ({"mode": "upsert"}, {"id": pa.int64()}, "needs the columns of a key"),
        ({"key": ("id",)}, {"id": pa.int64()}, "takes no key"),
        ({"deleted": "gone"}, {"id": pa.int64()}, "are for mode='upsert'"),
        ({"mode": "upsert", "key": ("id",), "deleted": "id"}, {"id": pa.int64()}, "cannot be the"),
        ({}, {}, "no columns"),
        ({}, {"": pa.int64()}, "cannot name a column"),
        ({"mode": "upsert", "key": ("x",)}, {"id": pa.int64()}, "'x' of key= is not in the rows"),
        (
            {"mode": "upsert", "key": ("id",), "deleted": "n"},
            {"id": pa.int64(), "n": pa.int64()},
            "must be boolean",
        ),
        ({"mode": "add", "key": ("id",)}, {"id": pa.int64()}, "there is no column to add besides"),
    ],
)
def test_settings_and_rows_that_cannot_be_right(
    dialect: Dialect[Any], settings: dict[str, Any], schema: dict[str, Any], words: str
) -> None:
    given = {"mode": "append", "key": (), **settings}
    asked = TableSettings(dialect, "table 't'", "t", **given)
    with pytest.raises(BadSink, match=f"^table 't': .*{words}.* Nothing was written.$"):
        check_all(asked, pa.schema(list(schema.items())))


@pytest.mark.parametrize("dialect", [POSTGRES, MYSQL], ids=lambda dialect: dialect.name)
def test_a_column_of_a_name_that_the_merge_uses_is_refused(dialect: Dialect[Any]) -> None:
    """It would make the merge ambiguous, at a commit that can never succeed (rule 23)."""
    with pytest.raises(BadSink, match=f"'{PLACE}' is a name that Beadline uses"):
        check_all(
            TableSettings(dialect, "t", "t", mode="append", key=()),
            pa.schema([(PLACE, pa.int64())]),
        )


def check_all(settings: TableSettings, schema: pa.Schema) -> None:
    settings.check()
    settings.check_rows(schema)


RANGES: list[tuple[str, Any, list[Any], list[Any]]] = [
    ("tinyint", pa.int64(), [-128, 127, None], [-129, 128]),
    ("tinyint unsigned", pa.int64(), [0, 255], [-1, 256]),
    ("bigint", pa.uint64(), [0, 2**63 - 1], [2**63]),
    ("bigint unsigned", pa.int8(), [0, 127], [-1]),
    ("int", pa.int8(), [-128, 127], []),
]


@pytest.mark.parametrize(("declared", "type_", "good", "bad"), RANGES)
def test_integers_that_a_column_cannot_hold(
    declared: str, type_: Any, good: list[Any], bad: list[Any]
) -> None:
    column = MySqlColumn("n", declared.split(maxsplit=1)[0], declared)
    fit = MYSQL.fit(pa.field("n", type_), column)
    assert isinstance(fit, Fit)
    values = pa.array([*good, *bad], type_)
    found = [check.find(values) for check in fit.checks]
    assert len(found) == bool(bad)
    for mask in found:
        assert mask.to_pylist() == [None if v is None else v in bad for v in values.to_pylist()]


def test_decimals_below_zero() -> None:
    column = MySqlColumn("d", "decimal", "decimal(5,2) unsigned", precision=5, scale=2)
    fit = MYSQL.fit(pa.field("d", pa.decimal128(5, 2)), column)
    assert isinstance(fit, Fit)
    (check,) = fit.checks
    values = pa.array([Decimal("-0.01"), Decimal(0), None], pa.decimal128(5, 2))
    assert check.find(values).to_pylist() == [True, False, None]


# ---- settings of staged rows ----
@pytest.mark.parametrize(
    ("mode", "key", "deleted", "said"),
    [
        ("add", ("id",), None, r"mode was 'upsert' and is 'add', deleted was 'gone' and is None"),
        ("upsert", ("id", "n"), "gone", r"key was \['id'\] and is \['id', 'n'\]\."),
        ("upsert", ("id",), None, r"deleted was 'gone' and is None\."),
        ("upsert", ("id",), "gone", ""),
    ],
)
def test_rows_are_not_written_under_other_settings_than_they_were_staged_for(
    mode: str, key: tuple[str, ...], deleted: str | None, said: str
) -> None:
    """But for the order: another one is the way out where two rows of a key are equal in it."""
    id_ = PartId(QUERY.name, QUERY.incarnation, "orders", 1, 17, 0, 0)
    now = TableSettings(SQLITE, "table 't'", "t", mode, key, "at", deleted)
    kept = ("upsert", ("id",), "gone")
    for staged in (PostgresPart(STAGED, "s", "t", *kept), MySqlPart("staged", "t", 1, *kept)):
        found = type(staged).from_json(staged.to_json())
        if said:
            with pytest.raises(CommitFailed, match=rf"epoch 17, sink 'orders': table 't'.*{said}"):
                check_staged(now, [Prepared(id_, 1, found)])
        else:
            check_staged(now, [Prepared(id_, 1, found)])
    # Version 1 stored no settings; a prepared transaction needs none.
    older = {"version": 1, "how": "staged", "name": "t", "rows": 1}
    for unknown in (MySqlPart.from_json(older), PostgresPart(PREPARED, "s", "t")):
        check_staged(now, [Prepared(id_, 1, unknown)])


class Answering:
    """What a server would answer of a part that is staged, of a connection to MySQL too."""

    def __init__(self) -> None:
        self.statements: list[str] = []

    def ask(self, statement: str, _: Sequence[Any] = ()) -> list[tuple[Any, ...]]:
        self.statements.append(statement)
        for word, answer in (
            (
                "pg_attribute",
                [(target, "stage", "id", None, 20, -1, 0) for target in (True, False)],
            ),
            ("COLUMN_COMMENT", [("stage", "id", "")]),
            ("lower_case_table_names", [("t",)]),
            ("COUNT(*)", [(1,)]),
        ):
            if word in statement:
                return answer
        return []

    def run(self, statement: str, _: Sequence[Any] = ()) -> int:
        self.ask(statement)
        return 1


def test_each_database_asks_that_before_it_writes() -> None:
    """In the commit itself, after the ledger: an epoch that is there needs no settings."""
    epoch = EpochId(QUERY, 17, "n" * 32, 1)
    id_ = PartId(QUERY.name, QUERY.incarnation, "orders", 1, 17, 0, 0)
    kept = ("add", ("id",), None)
    server = Answering()
    columns = {"id": PostgresColumn.of_type("id", "bigint")}
    table = PostgresTable("s", "t", "r", (), columns, frozenset(), (), (), {}, 0, 0)
    postgres_part = Prepared(id_, 1, PostgresPart(STAGED, "s", "stage", *kept))
    postgres_settings = PostgresSettings(POSTGRES, "table 't'", "t", "upsert", ("id",))
    with pytest.raises(CommitFailed, match="mode was 'add' and is 'upsert'"):
        postgres_staged.commit(
            server.ask,
            PostgresAddress("", 1.0),
            postgres_settings,
            table,
            epoch,
            [postgres_part],
        )
    mysql = MySqlServer(MySqlAddress.parse("mysql://me@h/shop"), 1.0)
    mysql_part = Prepared(id_, 1, MySqlPart("staged", "stage", 1, *kept))
    mysql_settings = MySqlSettings(MYSQL, "table 't'", "t", "upsert", ("id",))
    connection: Any = server
    with pytest.raises(CommitFailed, match="mode was 'add' and is 'upsert'"):
        commit_staged(mysql, connection, mysql_settings, epoch, [mysql_part])
    assert not [each for each in server.statements if 'INTO "s"."t"' in each or "INTO `t`" in each]


# ---- staging tables ----
def test_staging_tables_are_dropped_at_once_and_some_that_stay_hold_up_no_other(
    caplog: pytest.LogCaptureFixture,
) -> None:
    kept: dict[str, WhyKept] = {"b": "locked", "f": "denied"}
    tried: list[str] = []

    def drop(stages: Sequence[str]) -> WhyKept | None:
        tried.append("".join(stages))
        return next((kept[stage] for stage in stages if stage in kept), None)

    drop_stages("abcdef", drop, at_once=2)
    assert tried == ["ab", "a", "b", "cd", "ef", "e", "f"]
    assert [record.getMessage() for record in caplog.records] == [
        "staging table f is left: this user may not drop it"
    ]
    tried.clear()
    drop_stages("b", drop, at_once=2)
    drop_stages((), drop, at_once=2)
    assert tried == ["b"], "one alone is tried once"


def test_locked_staging_tables_are_given_up_together(monkeypatch: pytest.MonkeyPatch) -> None:
    """The server waits for each lock: a sweep does not wait for hundreds of them."""
    monkeypatch.setattr("beadline.sinks.shared.sql.stages._LOCKED_S", 0.05)
    tried: list[str] = []

    def drop(stages: Sequence[str]) -> WhyKept | None:
        tried.append(stages[0])
        time.sleep(0.02)
        return "locked"

    drop_stages([str(number) for number in range(100)], drop, at_once=1)
    assert 2 <= len(tried) < 20
