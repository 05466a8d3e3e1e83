"""The checker on outputs that are wrong on purpose: one that finds nothing may look at nothing."""

from __future__ import annotations

import shutil
import sqlite3
from collections import Counter
from contextlib import closing
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from beadline.demo.check import check
from beadline.demo.workload import CLEAN, TOTALS, DemoRow, Workload, totals_of

FILES = 3


@pytest.fixture
def right(tmp_path: Path) -> Workload:
    """Input, and the output that it must have."""
    workload = Workload(tmp_path / "run", seed=5, rows_per_file=100).make()
    workload.add(FILES)
    workload.clean.mkdir()
    expected = workload.expected()
    for name, rows in expected.files.items():
        write(workload.clean / f"{name}.parquet", rows)
    with closing(sqlite3.connect(workload.database)) as database, database:
        database.execute(f"CREATE TABLE {TOTALS} (key TEXT, rows INTEGER, amount INTEGER)")
        database.executemany(
            f"INSERT INTO {TOTALS} VALUES (?, ?, ?)",
            [(key, *total) for key, total in totals_of(expected.rows).items()],
        )
    return workload


def write(path: Path, rows: Counter[DemoRow]) -> None:
    pq.write_table(pa.Table.from_pylist([row._asdict() for row in rows.elements()]), path)


def first_file(workload: Workload) -> Path:
    return sorted(workload.clean.glob("*.parquet"))[0]


def change_totals(workload: Workload, sql: str) -> None:
    with closing(sqlite3.connect(workload.database)) as database, database:
        database.execute(sql)


def test_input_is_the_same_for_the_same_seed(tmp_path: Path) -> None:
    one, same, other = (Workload(tmp_path / str(n), seed) for n, seed in enumerate((5, 5, 6)))
    assert [*one.lines(3)] == [*same.lines(3)] != [*other.lines(3)]
    assert [*one.lines(3)] != [*one.lines(4)]


def test_input_has_bad_rows_and_rows_twice(right: Workload) -> None:
    expected = right.expected()
    assert expected.bad > 0
    assert max(expected.rows.values()) == 2


def test_what_is_right_is_found_right(right: Workload) -> None:
    report = check(right)
    assert report.exactly_once
    assert report.rows_in == report.sinks[CLEAN].rows_out == report.sinks[TOTALS].rows_out > 0


def test_a_file_twice(right: Workload) -> None:
    path = first_file(right)
    shutil.copy(path, path.with_name("again.parquet"))
    report = check(right)
    assert report.sinks[CLEAN].duplicated == pq.read_table(path).num_rows
    assert not report.exactly_once


def test_a_file_lost(right: Workload) -> None:
    path = first_file(right)
    rows = pq.read_table(path).num_rows
    path.unlink()
    report = check(right)
    assert (report.sinks[CLEAN].lost, report.torn) == (rows, 0)


def test_a_row_that_is_there_twice_on_purpose_lost_once(right: Workload) -> None:
    path = first_file(right)
    rows = right.expected().files[path.name.removesuffix(".parquet")]
    row = rows.most_common(1)[0][0]
    write(path, rows - Counter([row]))
    report = check(right)
    assert (report.sinks[CLEAN].lost, report.torn) == (1, 1)


def test_a_broken_file(right: Workload) -> None:
    path = first_file(right)
    path.write_bytes(path.read_bytes()[:100])
    assert check(right).torn == 1


def test_hidden_files_are_not_counted_as_output(right: Workload) -> None:
    path = first_file(right)
    (right.clean / "_temporary").mkdir()
    shutil.copy(path, right.clean / "_temporary" / path.name)
    assert check(right).exactly_once


@pytest.mark.parametrize(
    ("sql", "lost", "duplicated"),
    [
        ("UPDATE totals SET rows = rows + 2 WHERE key = 'oak'", 0, 2),
        ("UPDATE totals SET rows = rows - 3 WHERE key = 'oak'", 3, 0),
        ("UPDATE totals SET amount = amount + 1 WHERE key = 'oak'", 0, 0),
        ("INSERT INTO totals VALUES ('nobody', 4, 4)", 0, 4),
    ],
)
def test_wrong_totals(right: Workload, sql: str, lost: int, duplicated: int) -> None:
    change_totals(right, sql)
    report = check(right)
    assert (report.sinks[TOTALS].lost, report.sinks[TOTALS].duplicated) == (lost, duplicated)
    assert not report.totals_right
    assert not report.exactly_once


def test_an_interrupted_transaction_is_left_as_it_is(right: Workload) -> None:
    """The observer sees what was committed, and does not roll the journal back itself."""
    with closing(sqlite3.connect(right.database, isolation_level=None)) as database:
        database.execute("PRAGMA cache_spill = 1")
        database.execute("PRAGMA cache_size = 1")
        database.execute("BEGIN IMMEDIATE")
        database.execute("UPDATE totals SET rows = rows + 1")
        for number in range(2_000):  # more than the cache holds, so that pages reach the file
            database.execute("INSERT INTO totals VALUES (?, 1, 1)", (f"filler {number}" * 10,))
        crashed = right.folder / "crashed"
        crashed.mkdir()
        for path in right.folder.glob("totals.db*"):
            shutil.copy(path, crashed / path.name)
        database.execute("ROLLBACK")
    journal = crashed / "totals.db-journal"
    assert journal.stat().st_size > 0
    for path in crashed.iterdir():
        shutil.copy(path, right.folder / path.name)
    before = (right.folder / "totals.db-journal").read_bytes()
    assert check(right).totals_right
    assert (right.folder / "totals.db-journal").read_bytes() == before
