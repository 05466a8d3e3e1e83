"""`beadline run`: job files, what is shown of them, how they stop, and exit codes."""

from __future__ import annotations

import json
import logging
import os
import re
import sqlite3
import sys
import textwrap
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from beadline import cli
from tests.spark.jobs import write_input

ROOT = Path(__file__).parents[2]
HEAD = """
from pathlib import Path
from beadline import exactly_once, sources
from beadline.sinks import ConsoleSink, SqliteSink
HERE = Path(__file__).parent
CHECKPOINT = str(HERE / "checkpoint")
SCHEMA = "id long, k string, v long"
def rows(spark):
    return sources.files(
        spark, str(HERE / "in"), format="json", schema=SCHEMA, max_files_per_epoch=1
    )
"""
GOOD = """
def job(spark):
    return exactly_once(rows(spark), "job").to(SqliteSink(HERE / "o.db", "t"))
"""

Run = Callable[..., tuple[int, str, str]]


@pytest.fixture
def run(
    spark: SparkSession, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> Iterator[Run]:
    """`beadline run` in this process, on the session of the tests; gives code, stdout, stderr."""
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.setenv("PYTHONPATH", os.environ.get("PYTHONPATH", ""))
    monkeypatch.setenv("SPARK_SUBMIT_OPTS", os.environ.get("SPARK_SUBMIT_OPTS", ""))
    monkeypatch.setenv("COLUMNS", "200")
    level = logging.getLogger("py4j").level
    before = dict(spark.conf.getAll)

    def invoke(*arguments: str | Path, command: str = "run") -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["beadline", command, *map(str, arguments)])
        capfd.readouterr()
        with pytest.raises(SystemExit) as ended:
            cli.main()
        out, err = capfd.readouterr()
        return int(ended.value.code or 0), out, err

    yield invoke
    logging.getLogger("py4j").setLevel(level)
    # What a job or `--conf` has set stays in the session, which other tests share.
    for key, value in spark.conf.getAll.items():
        if key not in before:
            spark.conf.unset(key)
        elif value != before[key] and spark.conf.isModifiable(key):
            spark.conf.set(key, before[key])


def job_file(folder: Path, code: str, head: str = HEAD) -> Path:
    path = folder / "job.py"
    path.write_text(head + textwrap.dedent(code))
    return path


def ids(folder: Path) -> list[int]:
    with closing(sqlite3.connect(folder / "o.db")) as database:
        return sorted(row[0] for row in database.execute("SELECT id FROM t"))


def objects(out: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in out.splitlines()]


def test_people_see_epochs_and_rows(run: Run, tmp_path: Path) -> None:
    expected = write_input(tmp_path / "in", files=2)
    code, out, _ = run(job_file(tmp_path, GOOD), "--available-now")
    assert code == 0
    assert "generation 1 holds the log" in out
    assert "epoch 0 committed  o-t 10" in out
    assert "epoch 1 committed  o-t 10" in out
    assert out.splitlines()[-1] == "finished: 2 epochs committed by this start  o-t 20"
    assert ids(tmp_path) == expected


def test_programs_see_one_object_per_event(run: Run, tmp_path: Path) -> None:
    write_input(tmp_path / "in", files=1)
    job = job_file(tmp_path, "AVAILABLE_NOW = True\n" + GOOD)
    code, out, _ = run(job, "--json")
    assert code == 0
    events = [e for e in objects(out) if e["event"] != "waiting"]  # a busy machine may take long
    assert [e["event"] for e in events] == ["claimed", "prepared", "decided", "committed", "ended"]
    assert events[3]["rows"] == {"o-t": 10}
    assert (events[3]["epoch"], events[3]["generation"]) == (0, 1)
    ended = events[-1]
    assert ended["why"] == "finished"
    assert (ended["epochs"], ended["rows"], ended["query"]) == (1, {"o-t": 10}, "job")
    _, again, _ = run(job, "--json")
    assert [e["event"] for e in objects(again)] == ["claimed", "ended"]
    assert objects(again)[0]["generation"] == 2


def test_options_win_over_the_jobs_defaults(run: Run, tmp_path: Path) -> None:
    write_input(tmp_path / "in", files=1)
    other = tmp_path / "other"
    job = job_file(tmp_path, 'EVERY = "1 hour"\n' + GOOD)
    code, _, _ = run(job, "--checkpoint", other, "--available-now")
    assert code == 0
    assert other.is_dir()
    assert not (tmp_path / "checkpoint").exists()


def test_aggregations_and_classes_of_the_job(run: Run, tmp_path: Path) -> None:
    """A UDF and a dataclass of the job file reach the workers."""
    write_input(tmp_path / "in", files=2)
    code = """
        from dataclasses import dataclass
        from pyspark.sql import functions as F
        OUTPUT_MODE = "update"
        CONF = {"spark.sql.shuffle.partitions": 2}
        @dataclass
        class Twice:
            factor: int = 2
        @F.udf("long")
        def twice(value):
            return value * Twice().factor
        def job(spark):
            counts = rows(spark).groupBy("k").agg(F.sum(twice("v")).alias("total"))
            return exactly_once(counts, "job").to(SqliteSink(HERE / "o.db", "t", "upsert", "k"))
        """
    job = job_file(tmp_path, code, "from __future__ import annotations\n" + HEAD)
    done, _, err = run(job, "--available-now")
    assert done == 0, err
    with closing(sqlite3.connect(tmp_path / "o.db")) as database:
        total = database.execute("SELECT sum(total) FROM t").fetchone()[0]
    assert total == 2 * sum(range(20))


NO_CHECKPOINT = HEAD.replace("CHECKPOINT = ", "NOTHING = ")
STARTED = "def job(spark):\n    class Query:\n        awaitTermination = 1\n    return Query()\n"
BAD = {
    "no job": (HEAD, "x = 1\n", [], "defines no job"),
    "not a function": (HEAD, "job = 3\n", [], "job of .* is a int, not a function"),
    "wrong signature": (HEAD, "def job():\n    pass\n", [], "must take one argument"),
    "two arguments": (HEAD, "def job(a, b):\n    pass\n", [], "must take one argument"),
    "no stream": (HEAD, "def job(spark):\n    return 3\n", [], "returned int, not a Stream"),
    "a frame": (HEAD, "def job(spark):\n    return rows(spark)\n", [], "returned DataFrame"),
    "started": (HEAD, STARTED, [], r"must not call start\(\)"),
    "raises": (HEAD, "def job(spark):\n    1 / 0\n", [], r"job.py:13: .* ZeroDivisionError"),
    "loading raises": (HEAD, f"import no_such_module\n{GOOD}", [], "job.py:12: .*no_such_module"),
    "exits": (HEAD, f"raise SystemExit(7)\n{GOOD}", [], r"calls exit\(7\)"),
    "not python": (HEAD, "def job(:\n", [], "job.py:12: this is not Python"),
    "no checkpoint": (NO_CHECKPOINT, GOOD, [], "Give --checkpoint DIR"),
    "bad default": (HEAD, f"EVERY = 5\n{GOOD}", [], "EVERY of .* must be a str, not int"),
    "bad conf": (HEAD, f"CONF = dict(a=HERE)\n{GOOD}", [], "CONF must be a dict of plain values"),
    "two triggers": (HEAD, GOOD, ["--every", "1 second", "--available-now"], "not both"),
    "two defaults": (HEAD, f'EVERY = "1 s"\nAVAILABLE_NOW = True\n{GOOD}', [], "take one"),
    "setting": (HEAD, GOOD, ["--conf", "spark.x"], "is not KEY=VALUE"),
}  # fmt: skip


@pytest.mark.parametrize("what", BAD)
def test_what_cannot_be_right_exits_with_2(run: Run, tmp_path: Path, what: str) -> None:
    head, code, options, message = BAD[what]
    write_input(tmp_path / "in", files=1)
    job = job_file(tmp_path, code, head)
    before = sorted(path for path in tmp_path.rglob("*") if "__pycache__" not in path.parts)
    exit_code, _, err = run(job, *options)
    assert exit_code == 2
    assert re.search(message, err.replace("\n", " ")), err
    assert "Traceback" not in err
    after = sorted(path for path in tmp_path.rglob("*") if "__pycache__" not in path.parts)
    assert after == before


def test_no_such_file(run: Run, tmp_path: Path) -> None:
    assert "does not exist" in run(tmp_path / "job.py")[2]
    assert run(tmp_path / "job.py")[0] == 2
    assert "is a folder" in run(tmp_path)[2]
    (tmp_path / "job.yaml").touch()
    assert "not a .py file" in run(tmp_path / "job.yaml")[2]


def test_an_error_is_an_object_with_json(run: Run, tmp_path: Path) -> None:
    code, out, err = run(tmp_path / "job.py", "--json")
    assert code == 2
    assert objects(out)[-1]["error"] == "UsageError"
    assert err == ""


def test_a_weak_sink_exits_with_3(run: Run, tmp_path: Path) -> None:
    write_input(tmp_path / "in", files=1)
    job = job_file(
        tmp_path, 'def job(spark):\n    return exactly_once(rows(spark), "job").to(ConsoleSink())\n'
    )
    code, _, err = run(job)
    assert code == 3
    assert err.startswith("GuaranteeRefused: ")
    assert not (tmp_path / "checkpoint").exists()


def test_a_newer_start_exits_with_4(run: Run, tmp_path: Path) -> None:
    """In the middle of the first epoch, another driver claims the log."""
    write_input(tmp_path / "in", files=1)
    code = """
        from dataclasses import replace
        from beadline.decisions import DecisionLog, FileStore
        from beadline.files import open_files
        def rival(frame):
            if (HERE / "checkpoint" / "offsets" / "0").exists():
                folder = f"file:{HERE}/checkpoint/beadline/log"
                log = DecisionLog(FileStore(open_files(folder), folder))
                before = log.open().claim
                log.append(replace(before, nonce="rival", generation=before.generation + 1))
            return frame
        def job(spark):
            return exactly_once(rows(spark), "job").to(SqliteSink(HERE / "o.db", "t"), rows=rival)
        """
    exit_code, _, err = run(job_file(tmp_path, code), "--available-now")
    assert exit_code == 4
    assert err.startswith("Fenced: ")
    assert "Traceback" not in err
    assert not (tmp_path / "o.db").exists()


AGGREGATION = """
def job(spark):
    counts = rows(spark).groupBy("k").count()
    return exactly_once(counts, "job").to(SqliteSink(HERE / "o.db", "t"))
"""


@pytest.mark.parametrize(
    ("code", "options", "message"),
    [
        (AGGREGATION, ["--available-now"], "output mode: append"),
        (GOOD, ["--output-mode", "lunch"], "output mode: lunch"),
        (GOOD, ["--every", "soon"], "'soon'"),
    ],
)
def test_what_spark_refuses_exits_with_2(
    run: Run, tmp_path: Path, code: str, options: list[str], message: str
) -> None:
    write_input(tmp_path / "in", files=1)
    exit_code, _, err = run(job_file(tmp_path, code), *options)
    assert exit_code == 2
    assert message in err
    assert "Traceback" not in err
