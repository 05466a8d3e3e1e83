"""What is wrong with a job file is reported before Spark starts, so that nobody waits for it."""

from __future__ import annotations

from pathlib import Path

import pytest
from typer.testing import CliRunner

from beadline.cli.app import app
from beadline.errors import UsageError
from beadline.jobs.loading import open_job

NO_JOB = {
    "empty": "",
    "another name": "def jobs(spark): ...",
    "used, not defined": "print(job)",
    "a method": "class A:\n    def job(self, spark): ...",
    "a local": "def f():\n    job = 1",
    "an import of part of it": "import os.job",
}
MAY_DEFINE = {
    "a function": "def job(spark): ...",
    "with defaults": "def job(spark, more=1): ...",
    "any arguments": "def job(*args): ...",
    "decorated": "@fixed\ndef job(): ...",
    "by value": "job = make()",
    "among others": "a, job = make()",
    "annotated": "job: object = make()",
    "imported": "from jobs import job",
    "under this name": "from jobs import orders as job",
    "who knows": "from jobs import *",
    "in an if": "if True:\n    def job(spark): ...",
    "in a try": "try:\n    from a import job\nexcept ImportError:\n    job = None",
    "a walrus": "print(job := make())",
    "a class": "class job: ...",
    "by magic": "globals()['job'] = make()",
}


@pytest.mark.parametrize("what", NO_JOB)
@pytest.mark.parametrize("command", ["run", "analyze", "verify"])
def test_a_file_without_a_job_is_refused_before_spark_starts(
    what: str, command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))  # no Java there: a Spark would fail
    file = tmp_path / "orders.py"
    file.write_text(NO_JOB[what])
    done = CliRunner().invoke(app, [command, str(file)])
    assert isinstance(done.exception, UsageError)
    assert "defines no job. Add: def job(spark)" in str(done.exception)


TOML = """
[sources.orders]
type = "files"
path = "in"
format = "json"
schema = "id long"

[[queries]]
name = "rows"
sql = "SELECT id FROM orders"

[[queries.sinks]]
type = "sqlite"
path = "o.db"
table = "t"
"""


@pytest.mark.parametrize(
    ("name", "text", "where"),
    [
        ("orders.py", "def job(spark): ...", "orders.py: no checkpoint"),
        ("orders.toml", TOML, "orders.toml:8: queries: no checkpoint"),
    ],
)
def test_a_missing_checkpoint_is_refused_before_spark_starts(
    name: str, text: str, where: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    file = tmp_path / name
    file.write_text(text)
    done = CliRunner().invoke(app, ["run", str(file)])
    assert isinstance(done.exception, UsageError)
    assert where in str(done.exception)


def test_a_wrong_signature_is_refused_before_spark_starts(tmp_path: Path) -> None:
    file = tmp_path / "orders.py"
    file.write_text("x = 1\ndef job(): ...")
    with pytest.raises(UsageError, match=r"orders\.py:2: job must take one argument"):
        open_job(file)


@pytest.mark.parametrize("what", MAY_DEFINE)
def test_what_may_define_one_is_run_to_see(what: str, tmp_path: Path) -> None:
    file = tmp_path / "orders.py"
    file.write_text(MAY_DEFINE[what])
    assert open_job(file).path == file


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ('CHECKPOINT = "c"', True),
        ("from settings import CHECKPOINT", True),
        ("from settings import *", True),
        ("if True:\n    CHECKPOINT = make()", True),
        ('checkpoint = "c"', False),
        ("def f():\n    CHECKPOINT = 1", False),
    ],
)
def test_a_checkpoint_that_may_be_named_is_looked_for_later(
    text: str, named: bool, tmp_path: Path
) -> None:
    file = tmp_path / "orders.py"
    file.write_text(f"def job(spark): ...\n{text}\n")
    assert (open_job(file).no_checkpoint is None) == named
