"""``SqliteSink``, bad input: each has an error that names what is wrong, and nothing is written."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from beadline.errors import BadSink
from beadline.sinks import SqliteSink
from beadline.testing.suite.target import QUERY

ID = ("id", pa.int64())


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "shop.db"


def refused(path: Path, words: str, *fields: Any, **settings: Any) -> None:
    before = sorted(path.parent.iterdir())
    with pytest.raises(BadSink, match=words) as error:
        SqliteSink(path, "t", **settings).check(pa.schema([*fields]), QUERY)
    assert str(error.value).endswith("Nothing was written.")
    assert sorted(path.parent.iterdir()) == before


@pytest.mark.parametrize(
    "type_",
    [
        pa.list_(pa.int64()),
        pa.struct([("a", pa.int64())]),
        pa.map_(pa.string(), pa.string()),
        pa.uint64(),
        pa.duration("us"),
    ],
)
def test_types_that_have_no_place(path: Path, type_: Any) -> None:
    refused(path, "column 'bad' is", ID, ("bad", type_))


@pytest.mark.parametrize(
    ("settings", "fields", "words"),
    [
        ({}, (), "no columns"),
        ({}, (ID, ("ID", pa.string())), "two columns are called 'ID'"),
        ({}, (ID, ("a\0b", pa.string())), "cannot name a column"),
        ({"mode": "upsert", "key": "no"}, (ID,), "column 'no' of key= is not in the rows"),
        ({"mode": "upsert", "key": "x"}, (ID, ("x", pa.float64())), "cannot be a key"),
        ({"mode": "upsert", "key": "id", "deleted": "no"}, (ID,), "column 'no' of deleted="),
        ({"mode": "upsert", "key": "id", "deleted": "n"}, (ID, ("n", pa.int64())), "be boolean"),
        ({"mode": "add", "key": "id"}, (ID,), "there is no column to add besides"),
        ({"mode": "add", "key": "id"}, (ID, ("w", pa.string())), "'w' holds text"),
        ({"mode": "add", "key": "id"}, (ID, ("d", pa.decimal128(9, 2))), "'d' holds a decimal"),
        ({"mode": "add", "key": "id"}, (ID, ("b", pa.bool_())), "'b' holds a boolean"),
    ],
)
def test_rows_that_do_not_suit_the_mode(
    path: Path, settings: dict[str, Any], fields: tuple[Any, ...], words: str
) -> None:
    refused(path, words, *fields, **settings)


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"mode": "replace"}, "not append, upsert or add"),
        ({"mode": "upsert"}, "needs the columns of a key"),
        ({"mode": "add", "key": ()}, "needs the columns of a key"),
        ({"key": "id"}, "takes no key"),
        ({"deleted": "gone"}, "for mode='upsert'"),
        ({"mode": "upsert", "key": "id", "deleted": "id"}, "cannot be the key"),
        ({"table": ""}, "cannot name the table"),
        ({"table": "SQLITE_stat"}, "cannot name the table"),
        ({"table": "_Beadline_Ledger"}, "cannot name the table"),
        ({"path": ":memory:"}, "MemorySink"),
    ],
)
def test_settings_that_cannot_be_right(settings: dict[str, Any], words: str) -> None:
    with pytest.raises(BadSink, match=words):
        SqliteSink(**{"path": "shop.db", "table": "t", **settings})


@pytest.mark.parametrize(
    ("table", "field", "words"),
    [
        ("id INTEGER", ("word", pa.string()), "no column 'word'"),
        ("id INTEGER, word INTEGER", ("word", pa.string()), "'word' is declared INTEGER"),
        ("id TEXT, n INTEGER", ("n", pa.int64()), "'id' is declared TEXT"),
        ("id INTEGER, d DECIMAL(9,2)", ("d", pa.decimal128(9, 2)), r"declared DECIMAL\(9,2\)"),
        ("id INTEGER, n INT, must TEXT NOT NULL", ("n", pa.int64()), "value in column 'must'"),
        ("id INTEGER, n INT AS (id + 1)", ("n", pa.int64()), "'n' is generated"),
    ],
)
def test_a_table_that_does_not_fit(path: Path, table: str, field: Any, words: str) -> None:
    with closing(sqlite3.connect(path)) as database:
        database.execute(f"CREATE TABLE t ({table})")
    refused(path, words, ID, field)


@pytest.mark.parametrize(
    ("table", "field", "fits"),
    [
        ("id INT, b BLOB", ("b", pa.string()), False),
        ("id INT, b ANY", ("b", pa.string()), True),
        ("id INT, b TEXT", ("b", pa.timestamp("us")), True),
        ("id REAL, b TEXT", ("b", pa.string()), False),
    ],
)
def test_a_strict_table_refuses_before_the_first_row(
    path: Path, table: str, field: Any, fits: bool
) -> None:
    with closing(sqlite3.connect(path)) as database:
        database.execute(f"CREATE TABLE t ({table}) STRICT")
    if fits:
        SqliteSink(path, "t").check(pa.schema([ID, field]), QUERY)
    else:
        refused(path, "is declared", ID, field)


def test_a_key_that_nothing_keeps_unique(path: Path) -> None:
    fields = (ID, ("Word", pa.string()))
    settings: dict[str, Any] = {"mode": "upsert", "key": ("Word", "id")}
    with closing(sqlite3.connect(path)) as database:
        database.execute("CREATE TABLE t (id INTEGER, word TEXT)")
        database.execute("CREATE UNIQUE INDEX half ON t (id, word) WHERE id > 0")
        refused(path, r'CREATE UNIQUE INDEX "t_key" ON "t" \("Word", "id"\)', *fields, **settings)
        database.execute("CREATE UNIQUE INDEX whole ON t (id, word)")
    SqliteSink(path, "t", **settings).check(pa.schema([*fields]), QUERY)


def test_places_that_are_no_database(path: Path) -> None:
    path.mkdir()
    refused(path, "is a folder", ID)
    path.rmdir()
    path.write_text("these are notes, not a database, and they are long enough to be one " * 9)
    refused(path, "cannot be used by SQLite: file is not a database", ID)
    path.unlink()
    with closing(sqlite3.connect(path)) as database:
        database.execute("CREATE VIEW t AS SELECT 1 AS id")
    refused(path, "is a view", ID)


def test_places_that_cannot_be_written(tmp_path: Path) -> None:
    for folder in (tmp_path / "missing", Path("/proc")):
        with pytest.raises(BadSink, match="cannot be written"):
            SqliteSink(folder / "shop.db", "t").check(pa.schema([ID]), QUERY)


@pytest.mark.parametrize(
    ("table", "settings"),
    [
        ("id INTEGER UNIQUE ON CONFLICT IGNORE, w TEXT", {}),
        ("id INTEGER PRIMARY KEY on\nconflict /* newest wins */ replace, w TEXT", {}),
        ("id INTEGER PRIMARY KEY, w TEXT UNIQUE ON CONFLICT REPLACE", {"mode": "upsert"}),
    ],
)
def test_a_table_that_drops_rows_by_its_declaration(
    path: Path, table: str, settings: dict[str, Any]
) -> None:
    with closing(sqlite3.connect(path)) as database:
        database.execute(f"CREATE TABLE t ({table})")
    key = {"key": "id"} if settings else {}
    refused(path, "ON CONFLICT (IGNORE|REPLACE)", ID, ("w", pa.string()), **settings, **key)


def test_clauses_that_drop_no_row(path: Path) -> None:
    """Text and comments, NOT NULL (nulls are refused at prepare), and a key that upsert updates."""
    with closing(sqlite3.connect(path)) as database:
        database.execute(
            "CREATE TABLE t (id INTEGER PRIMARY KEY ON CONFLICT REPLACE, "
            "w TEXT NOT NULL ON CONFLICT IGNORE DEFAULT 'UNIQUE ON CONFLICT IGNORE')"
        )
    schema = pa.schema([ID, ("w", pa.string())])
    SqliteSink(path, "t", mode="upsert", key="id").check(schema, QUERY)
    refused(path, "ON CONFLICT REPLACE", *schema)
    with closing(sqlite3.connect(path)) as database:
        database.execute("DROP TABLE t")
        database.execute(
            "CREATE TABLE t (id INTEGER UNIQUE ON CONFLICT FAIL, -- not ON CONFLICT IGNORE\n"
            'w TEXT, "ON CONFLICT REPLACE" TEXT)'
        )
    SqliteSink(path, "t").check(schema, QUERY)


def test_a_trigger_that_drops_rows(path: Path) -> None:
    with closing(sqlite3.connect(path)) as database:
        database.executescript(
            "CREATE TABLE t (id INTEGER); CREATE TABLE other (id INTEGER);"
            "CREATE TRIGGER kept BEFORE DELETE ON t BEGIN SELECT RAISE(IGNORE); END;"
            "CREATE TRIGGER log AFTER INSERT ON t BEGIN INSERT OR IGNORE INTO other"
            " VALUES (new.id); SELECT 'RAISE(IGNORE)'; END;"
            "CREATE TRIGGER elsewhere INSERT ON other BEGIN SELECT RAISE(IGNORE); END;"
        )
        SqliteSink(path, "t").check(pa.schema([ID]), QUERY)
        database.execute(
            'CREATE TRIGGER "after delete" INSERT ON T WHEN new.id = 2 BEGIN'
            " SELECT raise ( ignore ); END"
        )
    refused(path, "trigger 'after delete'.*RAISE", ID)
    gone = {"mode": "upsert", "key": "id", "deleted": "gone"}
    with closing(sqlite3.connect(path)) as database:
        database.execute('DROP TRIGGER "after delete"')
        database.execute("CREATE UNIQUE INDEX one ON t (id)")
    refused(path, "trigger 'kept'.*RAISE.*before DELETE", ID, ("gone", pa.bool_()), **gone)
