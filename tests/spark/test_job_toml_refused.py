"""TOML job files that Spark, or a sink, refuses: told with the line, and nothing is written."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from tests.spark.jobs import write_input
from tests.spark.test_cli_run import Run, objects, run
from tests.spark.test_job_toml import QUERY, SECOND, SOURCE, job_file, names

__all__ = ["run"]  # the fixture

SQL = 'sql = "SELECT id, k FROM orders"'
SQL_BAD = {
    "unknown view": ("SELECT id FROM order", "8: queries.sql: there is no view 'order'. Did you"),
    "unknown column": ("SELECT idd FROM orders", "8: queries.sql: "),
    "unknown column below": ("\nSELECT id,\n  idd FROM orders", "10: queries.sql: "),
    "no SQL": ("SELEC id FROM orders", "8: queries.sql: "),
    "two statements": ("SELECT id FROM orders; SELECT 1", "8: queries.sql: "),
    "no source": ("SELECT 1 AS id", "8: queries.sql: it reads no source of this job"),
    "a command": ("CREATE TABLE written (id int)", "8: queries.sql: it must be a SELECT"),
    "an insert": ("INSERT INTO written SELECT 1", "8: queries.sql: it must be a SELECT"),
}


def refused(run: Run, folder: Path, *texts: str, command: str = "run") -> str:
    (folder / "in").mkdir()
    job = job_file(folder, *texts)
    before = names(folder)
    code, _, err = run(job, command=command)
    assert code == 2, err
    assert names(folder) == before
    assert "JVM stacktrace" not in err
    return err.partition("job.toml:")[2]


@pytest.mark.parametrize("what", SQL_BAD)
def test_sql_that_cannot_be_right(run: Run, spark: SparkSession, tmp_path: Path, what: str) -> None:
    sql, message = SQL_BAD[what]
    query = QUERY.replace(SQL, f'sql = """{sql}"""').lstrip()
    source = SOURCE.lstrip().replace("max_files_per_epoch = 1\n", "")
    assert refused(run, tmp_path, source, query).startswith(message)
    assert not spark.catalog.tableExists("written")
    assert not spark.catalog.tableExists("orders")


WINDOWS = (
    QUERY
    + """
[windows.counts]
from = "orders"
size = "10 minutes"
agg = { n = "count" }
"""
)
OTHER_BAD = {
    "windows without a time": (WINDOWS, "", "windows.counts: windowed() needs time="),
    "windows by a number": (
        WINDOWS + 'time = "v"',
        "",
        "windows.counts: windowed(): time='v' is of type big",
    ),
    "windows of a column that is not there": (
        WINDOWS.replace('"count"', '"sum:w"') + 'clock = "processing"',
        "",
        "windows.counts.agg: agg(n=...): there is no column 'w'",
    ),
    "windows of no length": (
        WINDOWS.replace("10 minutes", "10 lightyears") + 'clock = "processing"',
        "",
        "windows.counts: size='10 lightyears' is not a duration",
    ),
    "a watermark of a number": (
        QUERY,
        'watermark = {column="v", delay="1 s"}',
        "sources.orders.watermark: watermark(): time='v' is of type bigint",
    ),
    "rows": (QUERY + 'rows = """\nSELECT idd\nFROM epoch"""', "", r"queries.sinks.rows: "),
    "rows of a source": (QUERY + 'rows = "SELECT id FROM orders"', "", "reads the view 'epoch'"),
    "watermark": (QUERY, 'watermark = {column="at", delay="1 s"}', "sources.orders.watermark: "),
    "columns": (QUERY, 'columns = ["idd"]', "sources.orders.columns: "),
    "options": (QUERY, "options = {ignoreMissingFiles = true}", "sources.orders: "),
    "a misspelt option": (
        QUERY,
        "options = {maxFilesPerTriger = 1}",
        "Did you mean 'maxFilesPerTrigger'",
    ),
    "the name of two sinks": (QUERY + QUERY.partition("true\n")[2], "", "queries.sinks: "),
}


@pytest.mark.parametrize("what", OTHER_BAD)
def test_what_else_spark_refuses(run: Run, tmp_path: Path, what: str) -> None:
    query, more, message = OTHER_BAD[what]
    assert message in refused(run, tmp_path, SOURCE, more, query)


def test_options_of_one_query_are_not_for_several(run: Run, tmp_path: Path) -> None:
    job = job_file(tmp_path, SOURCE, QUERY, SECOND)
    code, _, err = run(job, "--available-now")
    assert code == 2
    assert "set the key 'available_now' in each of its [[queries]]" in err
    assert names(tmp_path) == {"job.toml"}


def test_no_checkpoint(run: Run, tmp_path: Path) -> None:
    message = refused(run, tmp_path, SOURCE, QUERY.replace('checkpoint = "checkpoint"', ""))
    assert message.startswith("9: queries: no checkpoint folder.")


WEAK = """
[[queries]]
name = "weak"
sql = "SELECT id FROM orders"
checkpoint = "checkpoints/weak"
available_now = true
[[queries.sinks]]
type = "console"
"""


def test_one_of_two_that_is_refused_starts_neither(run: Run, tmp_path: Path) -> None:
    write_input(tmp_path / "in", files=1)
    job = job_file(tmp_path, SOURCE, QUERY, WEAK)
    code, _, err = run(job)
    assert code == 3, err
    assert names(tmp_path) == {"in", "job.toml"}
    code, out, _ = run(job, "--json", command="analyze")
    rows, weak, whole = objects(out)
    assert code == 3
    assert (rows["level"], rows["refused"]) == ("exactly-once", False)
    assert (weak["level"], weak["refused"]) == ("at-least-once", True)
    assert (whole["level"], whole["queries"]) == ("at-least-once", ["rows", "weak"])
    code, out, _ = run(job_file(tmp_path, SOURCE, QUERY), command="analyze")
    assert code == 0
    assert "query rows is exactly-once" in out


@pytest.mark.parametrize("option", ["--json", "--verbose"])
def test_what_spark_says_of_a_secret(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, option: str
) -> None:
    """Spark repeats the name of a column that is not there, in its error and in its trace."""
    monkeypatch.setenv("SECRET", "hunter2")
    (tmp_path / "in").mkdir()
    job = job_file(tmp_path, SOURCE, QUERY.replace("SELECT id, k", "SELECT id, ${SECRET}"))
    for command in ("run", "analyze"):
        code, out, err = run(job, option, command=command)
        assert code == 2
        assert "${SECRET}" in out + err
        assert "hunter2" not in out + err
