"""``SqliteSink``: its modes, its types, a busy database, lost parts, a real kill, and bad input."""

from __future__ import annotations

import datetime as dt
import decimal
import sqlite3
import threading
from contextlib import closing
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from beadline.errors import CommitFailed, RowsRefused, WrongCheckpoint
from beadline.ids import PartId
from beadline.sink import Outcome, Part, Prepared
from beadline.sinks import SqliteSink
from beadline.sinks.sqlite.check import connect
from beadline.testing.suite.elsewhere import commit_elsewhere
from beadline.testing.suite.target import OTHER_QUERY, QUERY, SAME_NAME, epoch_id, part_id

SCHEMA = pa.schema([("id", pa.int64()), ("word", pa.string()), ("n", pa.int64())])


def rows_of(*rows: tuple[Any, ...], schema: pa.Schema = SCHEMA) -> Any:
    found = [dict(zip(schema.names, row, strict=True)) for row in rows]
    return pa.RecordBatch.from_pylist(found, schema=schema)


def stage(sink: SqliteSink, id_: PartId, batch: Any) -> Prepared[Any]:
    staged = sink.prepare(iter([batch]), Part(id_))
    assert staged is not None
    return Prepared(id_, staged.rows, staged)


def write(sink: SqliteSink, epoch: int, *batches: Any) -> Outcome:
    """Prepare and commit an epoch, one part per batch; return the one outcome."""
    parts = [stage(sink, part_id(epoch, number), batch) for number, batch in enumerate(batches)]
    (outcome,) = set(sink.commit(epoch_id(epoch), parts).outcomes.values())
    return outcome


def select(path: Path, sql: str = "SELECT * FROM t ORDER BY 1") -> list[tuple[Any, ...]]:
    with closing(sqlite3.connect(path)) as database:
        return database.execute(sql).fetchall()


def run(path: Path, sql: str) -> None:
    with closing(sqlite3.connect(path)) as database:
        database.executescript(sql)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "shop.db"


def test_upsert_the_last_row_wins_in_the_order_of_parts(path: Path) -> None:
    sink = SqliteSink(path, "t", mode="upsert", key=["id"])
    parts = [
        stage(sink, part_id(0, 0), rows_of((1, "first", 1), (2, "a", 2), (2, "b", 3))),
        stage(sink, part_id(0, 1), rows_of((1, "last", 4))),
    ]
    sink.commit(epoch_id(0), parts[::-1])
    assert select(path) == [(1, "last", 4), (2, "b", 3)]
    write(sink, 1, rows_of((2, None, None)))
    assert select(path) == [(1, "last", 4), (2, None, None)]


def test_upsert_of_nothing_but_keys(path: Path) -> None:
    schema = pa.schema([("a", pa.int64()), ("b", pa.string())])
    sink = SqliteSink(path, "t", mode="upsert", key=("a", "b"))
    assert sink.check(schema, QUERY).atomic
    write(sink, 0, rows_of((1, "x"), (1, "x"), (1, "y"), schema=schema))
    assert select(path) == [(1, "x"), (1, "y")]


MARKED = pa.schema([*SCHEMA, ("gone", pa.bool_())])


def test_a_row_that_is_marked_deletes_its_key(path: Path) -> None:
    sink = SqliteSink(path, "t", mode="upsert", key="id", deleted="gone")
    assert sink.check(MARKED, QUERY).atomic
    write(
        sink,
        0,
        rows_of((1, "a", 1, False), (2, "b", 2, None), (3, "c", 3, False), schema=MARKED),
        rows_of((9, None, None, True), schema=MARKED),
    )
    assert select(path) == [(1, "a", 1), (2, "b", 2), (3, "c", 3)]
    # In their order: deleted and inserted again, inserted and deleted, deleted by a later part.
    first = [(1, None, None, True), (1, "again", 4, False), (4, "d", 4, False), (4, "", 0, True)]
    write(sink, 1, rows_of(*first, schema=MARKED), rows_of((3, None, None, True), schema=MARKED))
    assert select(path) == [(1, "again", 4), (2, "b", 2)]


def test_deletes_with_a_key_of_two_columns_and_other_spelling(path: Path) -> None:
    schema = pa.schema([("Shop", pa.string()), ("day", pa.date32()), ("gone", pa.bool_())])
    sink = SqliteSink(path, "t", mode="upsert", key=("day", "Shop"), deleted="gone")
    run(path, "CREATE TABLE t (shop TEXT, day DATE, note TEXT, PRIMARY KEY (shop, day))")
    sink.check(schema, QUERY)
    first, second = dt.date(2026, 1, 1), dt.date(2026, 1, 2)
    write(sink, 0, rows_of(("a", first, False), ("a", second, False), schema=schema))
    write(sink, 1, rows_of(("a", first, True), ("b", second, True), schema=schema))
    assert select(path) == [("a", "2026-01-02", None)]


def test_of_a_row_that_deletes_only_the_key_has_to_fit(path: Path) -> None:
    run(path, "CREATE TABLE t (id INTEGER PRIMARY KEY, word TEXT NOT NULL, at TIMESTAMP)")
    schema = pa.schema(
        [
            ("id", pa.int64()),
            ("word", pa.string()),
            ("at", pa.timestamp("us")),
            ("gone", pa.bool_()),
        ]
    )
    sink = SqliteSink(path, "t", mode="upsert", key="id", deleted="gone")
    sink.check(schema, QUERY)
    day = dt.datetime(2026, 1, 1)
    write(sink, 0, rows_of((1, "a", day, False), (2, "b", day, False), schema=schema))
    far = pa.array([day, None, -(2**62)], pa.timestamp("us"))
    bad = pa.StringArray.from_buffers(
        3, pa.array([0, 1, 1, 2], pa.int32()).buffers()[1], pa.py_buffer(b"a\xff")
    )
    columns = [pa.array([1, 2, 3]), bad, far, pa.array([True, True, True])]
    write(sink, 1, pa.RecordBatch.from_arrays(columns, schema=schema))
    assert select(path) == []
    for row in ((None, "a", day, True), (4, None, day, False), (4, None, day, None)):
        with pytest.raises(RowsRefused, match="null in column"):
            write(sink, 2, rows_of(row, schema=schema))


def test_a_decided_epoch_is_not_finished_under_other_settings(path: Path) -> None:
    """A delete would be stored as a row, and rows to be upserted would be added."""
    sink = SqliteSink(path, "t", mode="upsert", key="id", deleted="gone")
    part = stage(sink, part_id(0), rows_of((1, "a", 1, True), schema=MARKED))
    for other in (
        SqliteSink(path, "t", mode="upsert", key="id"),
        SqliteSink(path, "t", mode="upsert", key=("id", "n"), deleted="gone"),
        SqliteSink(path, "t"),
    ):
        with pytest.raises(CommitFailed, match=r"other settings.*earlier settings.*drop=\["):
            other.commit(epoch_id(0), [part])
        assert not select(path, "SELECT * FROM sqlite_master WHERE name = 't'")
    assert set(sink.commit(epoch_id(0), [part]).outcomes.values()) == {Outcome.COMMITTED}
    assert select(path) == []


def test_add_adds_and_null_adds_nothing(path: Path) -> None:
    schema = pa.schema([("k", pa.string()), ("n", pa.int32()), ("x", pa.float64())])
    sink = SqliteSink(path, "t", mode="add", key="k")
    sink.check(schema, QUERY)
    write(sink, 0, rows_of(("a", 1, 0.5), ("b", None, 1.0), ("a", 2, None), schema=schema))
    write(sink, 1, rows_of(("a", 10, 0.25), ("b", 5, None), ("c", None, None), schema=schema))
    assert select(path) == [("a", 13, 0.75), ("b", 5, 1.0), ("c", None, None)]


def test_a_sum_beyond_64_bits_stops_the_epoch_and_changes_nothing(path: Path) -> None:
    """SQLite would make a float of it, which has lost its last digits."""
    schema = pa.schema([("k", pa.string()), ("n", pa.int64()), ("x", pa.float64())])
    sink = SqliteSink(path, "t", mode="add", key="k")
    write(sink, 0, rows_of(("a", 2**63 - 2, 1.0), ("b", -(2**63), 1e308), schema=schema))
    write(sink, 1, rows_of(("a", 1, 1.0), ("b", 0, 1e308), schema=schema))
    before = select(path)
    assert before == [("a", 2**63 - 1, 2.0), ("b", -(2**63), float("inf"))]
    for generation, row in enumerate((("a", 1, 1.0), ("b", -1, 0.0)), 2):
        batch = rows_of(("c", 1, 1.0), row, schema=schema)
        part = stage(sink, part_id(2, generation=generation), batch)
        with pytest.raises(CommitFailed, match=r"column 'n'.*64 bits.*drop=\[\"under-test@2\"\]"):
            sink.commit(epoch_id(2), [part])
        assert select(path) == before
    run(path, "UPDATE t SET n = 7 WHERE k = 'b'")
    assert sink.commit(epoch_id(2), [part]).outcomes == {part.id: Outcome.COMMITTED}
    assert select(path) == [before[0], ("b", 6, float("inf")), ("c", 1, 1.0)]


def test_whole_numbers_are_added_to_a_float_that_is_there(path: Path) -> None:
    run(path, "CREATE TABLE t (k TEXT PRIMARY KEY, n NUMERIC); INSERT INTO t VALUES ('a', 0.5)")
    schema = pa.schema([("k", pa.string()), ("n", pa.int64())])
    write(
        SqliteSink(path, "t", mode="add", key="k"),
        0,
        rows_of(
            (
                "a",
                2,
            ),
            schema=schema,
        ),
    )
    assert select(path) == [("a", 2.5)]


@pytest.mark.parametrize(
    ("table", "refuses"),
    [
        ("id INTEGER PRIMARY KEY, word TEXT, n INT", True),
        ("id integer, word TEXT, n INT, PRIMARY KEY (id)", True),
        ("id INTEGER PRIMARY KEY, word TEXT, n INT) STRICT --", True),
        ("id INT PRIMARY KEY, word TEXT, n INT) WITHOUT ROWID --", True),
        ("id INT PRIMARY KEY, word TEXT, n INT", False),
        ("id INTEGER PRIMARY KEY DESC, word TEXT, n INT", False),
        ("id INTEGER, word TEXT, n INT, PRIMARY KEY (id, word)", False),
    ],
)
def test_no_id_is_invented_for_a_null(path: Path, table: str, refuses: bool) -> None:
    """Into INTEGER PRIMARY KEY, which is another name of the rowid, SQLite puts the next number."""
    run(path, f"CREATE TABLE t ({table})")
    sink = SqliteSink(path, "t")
    batch = rows_of((None, "x", 1), (5, "y", 2))
    if refuses:
        with pytest.raises(RowsRefused, match=r"1 row.* null in column 'id'"):
            write(sink, 0, batch)
        assert select(path) == []
    else:
        write(sink, 0, batch)
        assert select(path) == [(None, "x", 1), (5, "y", 2)]


@pytest.mark.parametrize("mode", ["append", "upsert", "add"])
def test_rows_that_the_table_drops_are_noticed(path: Path, mode: Any) -> None:
    """Found at check where the table says so; here by what was written, before COMMIT."""
    run(path, "CREATE TABLE t (id INTEGER UNIQUE, n INTEGER); CREATE TABLE log (id INTEGER);")
    run(path, "CREATE TRIGGER log AFTER INSERT ON t BEGIN INSERT INTO log VALUES (new.id); END")
    schema = pa.schema([("id", pa.int64()), ("n", pa.int64())])
    sink = SqliteSink(path, "t", mode=mode, key=() if mode == "append" else "id")
    write(sink, 0, rows_of((1, 1), (2, 2), schema=schema))
    run(
        path,
        "CREATE TRIGGER less BEFORE INSERT ON t WHEN new.n = 9 BEGIN SELECT RAISE(IGNORE); END",
    )
    with pytest.raises(CommitFailed, match=r"1 of 3 rows.*trigger.*drop=\[\"under-test@1\"\]"):
        write(sink, 1, rows_of((3, 3), (4, 9), (5, 5), schema=schema))
    assert select(path) == [(1, 1), (2, 2)]
    assert select(path, "SELECT count(*) FROM log") == [(2,)]


def test_an_existing_table_keeps_its_other_columns(path: Path) -> None:
    run(path, "CREATE TABLE t (id INTEGER PRIMARY KEY, extra TEXT DEFAULT 'x', N INT, Word TEXT)")
    sink = SqliteSink(path, "T", mode="upsert", key="id")
    sink.check(SCHEMA, QUERY)
    write(sink, 0, rows_of((1, "one", 11)))
    run(path, "UPDATE t SET extra = 'kept'")
    write(sink, 1, rows_of((1, "uno", 12)))
    assert select(path) == [(1, "kept", 12, "uno")]


def test_types_arrive_as_documented(path: Path) -> None:
    berlin = dt.timezone(dt.timedelta(hours=2))
    values: dict[str, tuple[Any, Any, Any]] = {
        "int8": (pa.int8(), -128, -128),
        "int64": (pa.int64(), 2**63 - 1, 2**63 - 1),
        "float": (pa.float32(), 0.5, 0.5),
        "nan": (pa.float64(), float("nan"), None),
        "bool": (pa.bool_(), True, 1),
        "text": (pa.large_string(), "007", "007"),
        "blob": (pa.binary(), b"\x00\xff", b"\x00\xff"),
        "date": (pa.date32(), dt.date(2024, 2, 29), "2024-02-29"),
        "zoned": (
            pa.timestamp("us", "Europe/Berlin"),
            dt.datetime(2024, 7, 1, 1, 2, 3, 4, tzinfo=berlin),
            "2024-06-30T23:02:03.000004Z",
        ),
        "wall": (pa.timestamp("ms"), dt.datetime(1969, 1, 2, 3), "1969-01-02T03:00:00.000"),
        "money": (pa.decimal128(38, 18), decimal.Decimal("1e-18"), "0." + "0" * 17 + "1"),
        "nothing": (pa.null(), None, None),
    }
    schema = pa.schema([(name, type_) for name, (type_, _, _) in values.items()])
    sink = SqliteSink(path, "t")
    sink.check(schema, QUERY)
    write(sink, 0, rows_of(tuple(v for _, v, _ in values.values()), (None,) * 12, schema=schema))
    assert select(path) == [(None,) * 12, tuple(stored for _, _, stored in values.values())]
    sink.check(schema, QUERY)  # the table that it made fits


def test_two_sinks_of_one_query_in_one_table(path: Path) -> None:
    sink = SqliteSink(path, "t")
    ids = [PartId(QUERY.name, QUERY.incarnation, name, 1, 4, 0, 0) for name in ("clean", "late")]
    for number, id_ in enumerate(ids):
        part = stage(sink, id_, rows_of((number, id_.sink, 0)))
        assert sink.commit(epoch_id(4), [part]).outcomes == {id_: Outcome.COMMITTED}
    assert [row[1] for row in select(path)] == ["clean", "late"]


def test_the_ledger_says_what_is_there(path: Path) -> None:
    sink = SqliteSink(path, "t")
    write(sink, 6, rows_of((1, "a", 1), (2, "b", 2)), rows_of((3, "c", 3)))
    (row,) = select(path, "SELECT * FROM _beadline_ledger")
    nonce, decided_at_ms = epoch_id(6).nonce, epoch_id(6).decided_at_ms
    assert row == ("suite", "t", "under-test", "a" * 32, 6, nonce, 3, decided_at_ms)
    assert SqliteSink(path, "other").last_seen(QUERY, "under-test") is None


def test_another_incarnation_is_refused_and_seen_first(path: Path) -> None:
    sink = SqliteSink(path, "t")
    write(sink, 0, rows_of((1, "a", 1)))
    theirs = stage(sink, part_id(9, query=SAME_NAME), rows_of((2, "b", 2)))
    with pytest.raises(WrongCheckpoint, match="another query of that name"):
        sink.commit(epoch_id(9, SAME_NAME), [theirs])
    assert len(select(path)) == 1
    seen = sink.last_seen(SAME_NAME, "under-test")
    assert seen is not None
    assert seen.incarnation == QUERY.incarnation
    assert sink.last_seen(OTHER_QUERY, "under-test") is None


@pytest.mark.parametrize("harm", ["delete", "damage"])
def test_a_staged_part_that_is_gone_is_lost_with_its_epoch(path: Path, harm: str) -> None:
    sink = SqliteSink(path, "t")
    write(sink, 0, rows_of((0, "before", 0)))
    parts = [stage(sink, part_id(1, n), rows_of((n, "x", n))) for n in range(2)]
    file = Path(parts[0].committable.file.removeprefix("file:"))
    file.unlink() if harm == "delete" else file.write_bytes(b"x" * file.stat().st_size)
    result = sink.commit(epoch_id(1), parts)
    assert set(result.outcomes.values()) == {Outcome.LOST}
    assert str(parts[0].id) in result.detail
    assert select(path) == [(0, "before", 0)]
    again = [stage(sink, part_id(1, n, generation=2), rows_of((n, "x", n))) for n in range(2)]
    assert set(sink.commit(epoch_id(1), again).outcomes.values()) == {Outcome.COMMITTED}


def test_a_busy_database_is_waited_for_or_unknown(path: Path) -> None:
    sink = SqliteSink(path, "t", busy_timeout_s=0.05)
    write(sink, 0, rows_of((0, "a", 0)))
    patient = SqliteSink(path, "t", busy_timeout_s=30)
    with closing(sqlite3.connect(path, isolation_level=None, check_same_thread=False)) as other:
        other.execute("BEGIN IMMEDIATE")
        assert sink.check(SCHEMA, QUERY).atomic
        part = stage(sink, part_id(1), rows_of((1, "b", 1)))
        result = sink.commit(epoch_id(1), [part])
        assert result.outcomes == {part.id: Outcome.UNKNOWN}
        assert "locked" in result.detail
        release = threading.Timer(0.2, other.execute, args=("ROLLBACK",))
        release.start()
        assert patient.commit(epoch_id(1), [part]).outcomes == {part.id: Outcome.COMMITTED}
        release.join()
    assert len(select(path)) == 2


def test_a_reader_holds_up_the_commit_but_not_for_good(path: Path) -> None:
    """COMMIT itself finds the database busy: the outcome is unknown, then known."""
    sink = SqliteSink(path, "t", busy_timeout_s=0.05)
    write(sink, 0, rows_of((0, "a", 0)))
    part = stage(sink, part_id(1), rows_of((1, "b", 1)))
    with closing(sqlite3.connect(path, isolation_level=None)) as reader:
        reader.execute("BEGIN")
        reader.execute("SELECT * FROM t").fetchall()
        assert sink.commit(epoch_id(1), [part]).outcomes == {part.id: Outcome.UNKNOWN}
    assert sink.commit(epoch_id(1), [part]).outcomes == {part.id: Outcome.COMMITTED}
    assert len(select(path)) == 2


def test_a_row_that_the_table_refuses_takes_the_epoch_back(path: Path) -> None:
    run(path, "CREATE TABLE t (id INTEGER PRIMARY KEY, word TEXT, n INTEGER)")
    sink = SqliteSink(path, "t")
    parts = [rows_of((1, "a", 1)), rows_of((2, "b", 2), (1, "again", 3))]
    with pytest.raises(CommitFailed, match=r"epoch 0, sink 'under-test', part 1: .*UNIQUE.* t\.id"):
        write(sink, 0, *parts)
    assert select(path) == []
    assert sink.last_seen(QUERY, "under-test") is None
    assert len(list(sink.in_doubt(QUERY, "under-test"))) == 2


@pytest.mark.parametrize(
    ("act", "words"),
    [
        ("ABORT, 'no room for ' || NEW.word", "a trigger refuses it"),
        ("FAIL, 'CHECK constraint failed: ' || NEW.word", "a trigger refuses it"),
    ],
)
def test_what_a_trigger_says_of_a_row_is_not_told(path: Path, act: str, words: str) -> None:
    run(path, "CREATE TABLE t (id INTEGER CHECK (id > 0), word TEXT, n INTEGER)")
    with closing(sqlite3.connect(path)) as database:
        if sqlite3.sqlite_version_info < (3, 47):  # before, the words are a constant
            act = act.replace(" ' || NEW.word", " 4111'")
        when = f"BEGIN SELECT RAISE({act}) WHERE NEW.id = 2; END"
        database.execute(f"CREATE TRIGGER full BEFORE INSERT ON t {when}")
    sink = SqliteSink(path, "t")
    with pytest.raises(CommitFailed, match=f"refuses a row: {words}") as said:
        write(sink, 0, rows_of((2, "4111", 1)))
    assert "4111" not in str(said.value)
    sink.abort(list(sink.in_doubt(QUERY, "under-test")))
    with pytest.raises(CommitFailed, match="refuses a row: CHECK constraint failed: id > 0"):
        write(sink, 0, rows_of((-1, "4111", 1)))


def test_null_in_a_key_is_refused_while_nothing_is_decided(path: Path) -> None:
    sink = SqliteSink(path, "t", mode="add", key=("id", "word"))
    with pytest.raises(RowsRefused, match=r"1 row.* null in column 'word'"):
        write(sink, 0, rows_of((1, None, 1)))
    assert list(sink.in_doubt(QUERY, "under-test")) == []
    assert not path.exists()


@pytest.mark.parametrize("point", ["ledger.before", "ledger.after"])
def test_a_real_kill_in_the_middle_of_a_commit(
    path: Path, point: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    sink = SqliteSink(path, "t", mode="add", key=("id", "word"))
    parts = [stage(sink, part_id(0, n), rows_of((1, "x", 10), (n, "y", 1))) for n in range(2)]
    with monkeypatch.context() as env:
        env.setenv("BEADLINE_CRASH", point)
        with pytest.raises(AssertionError, match="committing elsewhere failed"):
            commit_elsewhere(sink, 0, parts)
    shown = "SELECT name FROM sqlite_master WHERE name = 't'"
    assert bool(select(path, shown)) is (point == "ledger.after")
    assert len(list(sink.in_doubt(QUERY, "under-test"))) == 2
    sink.commit(epoch_id(0), parts)
    assert select(path) == [(0, "y", 1), (1, "x", 20), (1, "y", 1)]
    assert list(sink.in_doubt(QUERY, "under-test")) == []


def test_a_relative_path_is_settled_when_it_is_given(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    sink = SqliteSink("shop.db", "t")
    assert sink.path == str(tmp_path / "shop.db")
    assert sink.check(SCHEMA, QUERY).target == f"sqlite:{tmp_path}/shop.db#t"
    assert list(tmp_path.iterdir()) == []


def test_a_commit_that_returned_survives_a_power_cut(path: Path) -> None:
    """EXTRA: the journal's removal, which is the commit, is synced before parts are deleted."""
    with closing(connect(str(path), 1.0)) as database:
        assert database.execute("PRAGMA synchronous").fetchone() == (3,)
