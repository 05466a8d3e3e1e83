"""Environment variables in TOML job files: filled in, and never repeated."""

from __future__ import annotations

from pathlib import Path

import pytest

from beadline.errors import UsageError
from beadline.jobs.environment import Environment
from beadline.sinks import PostgresSink, SqliteSink
from tests.unit.test_job_toml import JOB, _as_before, changed, opened, refused

__all__ = ["_as_before"]  # the fixture

SECRET = "hunter2 'is' my\\secret"


def fail(text: str) -> UsageError:
    return UsageError(text)


@pytest.mark.parametrize(
    ("text", "filled"),
    [
        ("plain", "plain"),
        ("${A}", "a value"),
        ("x${A}y${A}", "xa valueya value"),
        ("${B:-default}", "default"),
        ("${B:-}", ""),
        ("${EMPTY}", ""),
        ("${EMPTY:-default}", "default"),
        ("${A:-default}", "a value"),
        ("$${A} $A $$ {A}", "${A} $A $$ {A}"),
        ("${B:-${A}", "${A"),
    ],
)
def test_filling(text: str, filled: str) -> None:
    environment = Environment({"A": "a value", "EMPTY": ""})
    assert environment.fill(text, fail) == filled


def test_a_value_is_not_filled_again() -> None:
    assert Environment({"A": "${B}"}).fill("${A}", fail) == "${B}"


@pytest.mark.parametrize("text", ["${B}", "${", "${A", "${1}", "${a b}"])
def test_what_cannot_be_filled(text: str) -> None:
    with pytest.raises(UsageError, match=r"\$\{"):
        Environment({"A": "a value"}).fill(text, fail)


def test_strings_anywhere_and_numbers_where_they_are_wanted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FILES", "7")
    monkeypatch.setenv("TABLE", "orders")
    monkeypatch.setenv("HEADER", "true")
    text = changed(
        ('table = "t"', 'table = "${TABLE}"\nmode = "${MODE:-append}"\nkey = ["${TABLE}"]'),
        ('format = "json"', 'max_files_per_epoch = "${FILES}"\noptions = {x = "${HEADER}"}'),
    ).replace('append}"\nkey', 'upsert}"\nkey')
    job = opened(tmp_path, text)
    assert job.sources[0].arguments["max_files_per_epoch"] == 7
    sink = job.tables[0].sinks[0].sink
    assert isinstance(sink, SqliteSink)
    assert (sink.table, sink.mode, sink.key) == ("orders", "upsert", ("orders",))
    assert type(sink.table) is str
    monkeypatch.setenv("FILES", "seven")
    message = refused(tmp_path, text)
    assert message.startswith("job.toml:4: sources.orders.max_files_per_epoch: must be a whole")
    assert "seven" not in message


def test_a_missing_variable_names_itself_and_its_key(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("NOT_SET", raising=False)
    message = refused(tmp_path, changed(('path = "o.db"', 'path = "${NOT_SET}/o.db"')))
    assert message.startswith("job.toml:14: queries.sinks.path: the environment variable NOT_SET")


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ('table = "t"', 'table = "t"\nmode = "${SECRET}"'),
        ('type = "sqlite"', 'type = "${SECRET}"'),
        ('type = "sqlite"', 'type = "x:${SECRET}"'),
        ('name = "orders"', 'name = "${SECRET}"'),
        ('table = "t"', 'table = "t"\nkey = "${SECRET}"'),
        ('format = "json"', 'max_files_per_epoch = "${SECRET}"'),
    ],
)
def test_a_secret_shows_in_no_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, old: str, new: str
) -> None:
    monkeypatch.setenv("SECRET", SECRET)
    message = refused(tmp_path, changed((old, new)))
    assert "hunter2" not in message
    with pytest.raises(UsageError) as raised:
        opened(tmp_path, changed((old, new)))
    assert raised.value.__cause__ is None or "hunter2" not in str(raised.value.__cause__)


def test_redaction_of_what_others_say(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DSN", "postgresql://me:pass word@db/shop")
    monkeypatch.setenv("PASSWORD", "pass word")
    monkeypatch.setenv("ONE", "1")
    sink = 'type = "postgres"\ndsn = "${DSN}"'
    text = changed(('type = "sqlite"\npath = "o.db"', sink))
    text = text.replace("SELECT *", "SELECT '${PASSWORD}', ${ONE}")
    job = opened(tmp_path, text)
    made = job.tables[0].sinks[0].sink
    assert isinstance(made, PostgresSink)
    assert made.dsn == "postgresql://me:pass word@db/shop"
    said = "epoch 1 of postgresql://me:pass word@db/shop, with pass%20word and pass+word"
    assert job.redact(said) == "epoch 1 of ${DSN}, with ${PASSWORD} and ${PASSWORD}"
    assert "pass" not in repr(job)
    assert JOB not in repr(job)
