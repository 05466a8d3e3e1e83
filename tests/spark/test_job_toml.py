"""`beadline run job.toml` on Spark: SQL over sources, windows, several queries, restarts."""

from __future__ import annotations

import json
import os
import signal
import sqlite3
import threading
import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from beadline.points import hooked
from tests.slowness import patient
from tests.spark.jobs import write_input
from tests.spark.test_cli_run import Run, ids, objects, run

__all__ = ["run"]  # the fixture

DOCS = Path(__file__).parents[2] / "docs" / "job-files.md"
SOON_S = patient(90)

SOURCE = """
[sources.orders]
type = "files"
path = "in"
format = "json"
schema = "id long, k string, v long"
max_files_per_epoch = 1
"""
QUERY = """
[[queries]]
name = "rows"
sql = "SELECT id, k FROM orders"
checkpoint = "checkpoint"
available_now = true

[[queries.sinks]]
type = "sqlite"
path = "o.db"
table = "t"
"""
SECOND = """
[[queries]]
name = "totals"
sql = "SELECT k, sum(v) AS total FROM orders GROUP BY k"
checkpoint = "checkpoints/totals"
available_now = true
output_mode = "update"

[[queries.sinks]]
type = "sqlite"
path = "o.db"
table = "totals"
mode = "upsert"
key = "k"

[[queries.sinks]]
type = "files"
path = "out"
format = "json"
rows = "SELECT k FROM epoch WHERE total > 50"
"""
ENDLESS = """
[sources.ticks]
type = "rate"
rows_per_second = 50

[[queries]]
name = "ticks"
sql = "SELECT value FROM ticks"
checkpoint = "checkpoints/ticks"
every = "100 milliseconds"

[[queries.sinks]]
type = "sqlite"
path = "ticks.db"
table = "ticks"
"""


def job_file(folder: Path, *texts: str) -> Path:
    path = folder / "job.toml"
    path.write_text("".join(texts))
    return path


def table(path: Path, sql: str) -> list[Any]:
    if not path.exists():
        return []
    with closing(sqlite3.connect(path)) as database:
        try:
            return database.execute(sql).fetchall()
        except sqlite3.OperationalError:  # it is made with the first epoch
            return []


def run_until(run: Run, job: Path, done: Callable[[], bool], number: int = signal.SIGTERM) -> Any:
    """Run the job; stop it with a signal when its sinks show what they should."""

    def watch() -> None:
        until = time.monotonic() + SOON_S
        while time.monotonic() < until and not done():
            time.sleep(0.1)
        os.kill(os.getpid(), number)

    watcher = threading.Thread(target=watch)
    watcher.start()
    code, out, err = run(job, "--json")
    watcher.join()
    assert code == 0, out + err
    return objects(out)[-1]


def names(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir()}


def test_one_query(run: Run, tmp_path: Path) -> None:
    expected = write_input(tmp_path / "in", files=2)
    job = job_file(tmp_path, SOURCE, QUERY)
    code, out, err = run(job)
    assert code == 0, err
    assert "epoch 0 committed  o-t 10" in out
    assert out.splitlines()[-1] == "finished: 2 epochs committed by this start  o-t 20"
    assert ids(tmp_path) == expected
    expected += write_input(tmp_path / "in", files=1, first=2)
    code, out, _ = run(job, "--json")
    assert [each["event"] for each in objects(out)][-1] == "ended"
    assert ids(tmp_path) == expected


def test_options_win(run: Run, tmp_path: Path) -> None:
    write_input(tmp_path / "in", files=1)
    query = QUERY.replace("available_now = true", 'every = "1 hour"')
    job = job_file(tmp_path, SOURCE, query)
    code, _, err = run(job, "--available-now", "--checkpoint", tmp_path / "other")
    assert code == 0, err
    assert names(tmp_path) >= {"other", "o.db"}
    assert "checkpoint" not in names(tmp_path)


def test_two_queries_run_and_are_shown_together(run: Run, tmp_path: Path) -> None:
    expected = write_input(tmp_path / "in", files=2)
    job = job_file(tmp_path, SOURCE, QUERY, SECOND)
    code, out, err = run(job)
    assert code == 0, err
    assert "rows    epoch 0 committed  o-t 10" in out
    assert "totals  generation 1 holds the log" in out
    assert "totals  finished: 2 epochs" in out
    assert ids(tmp_path) == expected
    totals = {f"k{n}": sum(range(n, 20, 3)) for n in range(3)}
    assert dict(table(tmp_path / "o.db", "SELECT k, total FROM totals")) == totals
    lines = "".join(path.read_text() for path in (tmp_path / "out").glob("*.json"))
    assert sorted(lines.split()) == [f'{{"k":"k{n}"}}' for n in range(3)]
    code, out, _ = run(job, "--json")
    last = objects(out)[-1]
    assert (last["event"], last["why"]) == ("job ended", "finished")
    assert {each["query"] for each in last["queries"]} == {"rows", "totals"}


def test_a_window_with_a_watermark(run: Run, tmp_path: Path) -> None:
    """In append mode a window shows when the watermark has passed it; a late row is dropped."""
    (tmp_path / "in").mkdir()
    hours = ("10:01", "10:02", "10:11", "10:03", "10:41", "10:42", "10:04", "10:59")
    for number, at in enumerate(hours):
        path = tmp_path / "in" / f"{number}.json"
        path.write_text(f'{{"at": "2026-01-01 {at}:00"}}\n')
        os.utime(path, (1_700_000_000 + number,) * 2)
    text = """
    [sources.clicks]
    type = "files"
    path = "in"
    format = "json"
    schema = "at string"
    columns = ["CAST(at AS timestamp) AS at", "1 AS one"]
    watermark = { column = "at", delay = "10 minutes" }
    max_files_per_epoch = 1
    [query]
    name = "windows"
    checkpoint = "checkpoint"
    sql = '''
    SELECT date_format(window.start, 'HH:mm') AS begins, count(*) AS clicks
    FROM clicks GROUP BY window(at, '10 minutes')
    '''
    [[query.sinks]]
    type = "sqlite"
    path = "o.db"
    table = "t"
    """
    code, _, err = run(job_file(tmp_path, text), "--available-now")
    assert code == 0, err
    found = table(tmp_path / "o.db", "SELECT begins, clicks FROM t ORDER BY 1")
    assert found == [("10:00", 3), ("10:10", 1)]


def failing(times: int) -> Callable[[str], None]:
    """A hook that fails the first decisions."""
    left = [times]

    def hook(point: str) -> None:
        if point == "decide.before" and left[0]:
            left[0] -= 1
            raise OSError("the disk is away, says hunter2")

    return hook


RESTART = '[restart]\nstrategy = "fixed-delay"\nattempts = 2\ndelay = "100 ms"\n'


def test_a_failed_query_is_started_again(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SECRET", "hunter2")
    expected = write_input(tmp_path / "in", files=2)
    query = QUERY.replace("SELECT id, k", "SELECT id, '${SECRET}' AS k")
    job = job_file(tmp_path, RESTART, SOURCE, query)
    with hooked(failing(2)):
        code, out, err = run(job, "--json")
    assert code == 0, err
    assert "hunter2" not in out
    restarts = [each for each in objects(out) if each["event"] == "restarting"]
    assert [(each["attempt"], each["delay_s"]) for each in restarts] == [(1, 0.1), (2, 0.1)]
    assert "the disk is away, says ${SECRET}" in restarts[0]["message"]
    ended = objects(out)[-1]
    assert (ended["generation"], ended["restarts"], ended["epochs"]) == (3, 2, 2)
    assert ids(tmp_path) == expected


def test_restarts_come_to_an_end(run: Run, tmp_path: Path) -> None:
    write_input(tmp_path / "in", files=2)
    with hooked(failing(9)):
        code, out, err = run(job_file(tmp_path, RESTART, SOURCE, QUERY))
    assert code == 1
    assert out.count("failed, restart") == 2
    assert "the disk is away" in err


def test_a_query_that_fails_for_good_stops_the_others(run: Run, tmp_path: Path) -> None:
    write_input(tmp_path / "in", files=1)
    query = QUERY.replace("SELECT id, k", "SELECT id, raise_error('bad order') AS k")
    job = job_file(tmp_path, SOURCE, ENDLESS, query)
    code, out, err = run(job)
    assert code == 1
    assert "bad order" in err
    assert "ticks  stopped: " in out
    assert "rows   stopped: " not in out


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_stops_all(run: Run, tmp_path: Path, number: signal.Signals) -> None:
    second = ENDLESS.partition("[[queries]]")[2].replace("ticks", "tocks")
    second = second.replace("FROM tocks", "FROM ticks")
    job = job_file(tmp_path, ENDLESS, "[[queries]]", second)

    files = [tmp_path / "ticks.db", tmp_path / "tocks.db"]
    last = run_until(run, job, lambda: all(path.exists() for path in files), number)
    assert (last["event"], last["why"]) == ("job ended", "stopped")
    assert [each["why"] for each in last["queries"]] == ["stopped", "stopped"]


def test_the_job_of_the_docs(
    run: Run, spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("SHOP_DB", raising=False)
    text = DOCS.read_text("utf-8").partition("```toml\n")[2].partition("```")[0]
    (tmp_path / "incoming").mkdir()
    (tmp_path / "incoming" / "1.json").write_text(
        "".join(
            json.dumps({"id": n, "customer": f"c{n % 2}", "amount": n, "at": f"2026-01-01T1{n}:00"})
            + "\n"
            for n in range(6)
        )
    )
    shop = tmp_path / "shop.db"

    def done() -> bool:
        return bool(table(shop, "SELECT * FROM totals") and table(shop, "SELECT * FROM hours"))

    run_until(run, job_file(tmp_path, text), done)
    assert sorted(table(shop, "SELECT customer, amount FROM totals")) == [("c0", 6), ("c1", 9)]
    assert [row[0] for row in table(shop, "SELECT amount FROM hours ORDER BY hour")] == [*range(6)]
    clean = spark.read.parquet(str(tmp_path / "clean")).collect()
    assert sorted(row.id for row in clean) == list(range(6))
