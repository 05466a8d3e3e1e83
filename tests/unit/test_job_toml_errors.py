"""What can be wrong with a TOML job file, each with line, key and the nearest right word."""

from __future__ import annotations

from pathlib import Path

import pytest

from beadline.errors import UsageError
from beadline.jobs.toml_job import open_toml
from tests.unit.test_job_toml import JOB, _as_before, changed, refused

__all__ = ["_as_before"]  # the fixture

NO_KEY = "there is no such key here."
# What is changed in the job, and into what; the place that is named, and what is said of it.
BAD: dict[str, tuple[str, str, str, str]] = {
    "unknown table": (
        "[[queries]]",
        "[restrat]\n[[queries]]",
        "7: restrat",
        f"{NO_KEY} Did you mean 'restart'?",
    ),
    "unknown key of a query": (
        "checkpoint =",
        "chekpoint =",
        "10: queries.chekpoint",
        f"{NO_KEY} Did you mean 'checkpoint'?",
    ),
    "unknown key of a source": (
        "format =",
        "fromat =",
        "4: sources.orders.fromat",
        f"{NO_KEY} Did you mean 'format'?",
    ),
    "unknown key of a sink": (
        "table =",
        "tabel =",
        "15: queries.sinks.tabel",
        f"{NO_KEY} Did you mean 'table'?",
    ),
    "nothing near": (
        "table =",
        "zzz =",
        "15: queries.sinks.zzz",
        f"{NO_KEY} It may be: allow, busy_timeout_s, ",
    ),
    "unknown sink": (
        '"sqlite"',
        '"sqllite"',
        "13: queries.sinks.type",
        "there is no sink 'sqllite'. Did you mean 'sqlite'?",
    ),
    "unknown source": (
        '"files"',
        '"file"',
        "2: sources.orders.type",
        "there is no source 'file'. Did you mean 'files'?",
    ),
    "no type": ('type = "sqlite"\n', "", "12: queries.sinks", "the key 'type' is missing"),
    "a type that is no string": (
        'type = "sqlite"',
        "type = 3",
        "13: queries.sinks.type",
        "must be a string",
    ),
    "missing key of a sink": ('table = "t"', "", "12: queries.sinks", "the key 'table' is missing"),
    "missing key of a query": (
        'sql = "SELECT * FROM orders"\n',
        "",
        "7: queries",
        "the key 'sql' is missing",
    ),
    "wrong type": (
        'path = "in"',
        "path = 3",
        "3: sources.orders.path",
        "must be a string, not a whole number",
    ),
    "true is no number": (
        'format = "json"',
        "max_files_per_epoch = true",
        "4: sources.orders.max_files_per_epoch",
        "must be a whole number, not true or false",
    ),
    "a date": (
        'table = "t"',
        "table = 1979-05-27",
        "15: queries.sinks.table",
        "must be a string, not a date or time",
    ),
    "wrong type of an item": (
        'table = "t"',
        'table = "t"\nmode = "upsert"\nkey = [\n1]',
        "18: queries.sinks.key",
        "must be a string, not a whole number",
    ),
    "a choice": (
        'table = "t"',
        'table = "t"\nmode = "upsrt"',
        "16: queries.sinks.mode",
        "'upsrt' is not one of its values. Did you mean 'upsert'?",
    ),
    "a function": (
        'name = "orders"',
        'name = "orders"\nfunction = "exactly_onec"',
        "9: queries.function",
        "'exactly_onec' is not one of its values. Did you mean 'exactly_once'?",
    ),
    "what a sink refuses": (
        'table = "t"',
        'table = "t"\nmode = "upsert"',
        "12: queries.sinks",
        "SQLite table 't'",
    ),
    "two triggers": (
        'name = "orders"',
        'name = "orders"\nevery = "1 s"\navailable_now = true',
        "10: queries.available_now",
        "take every or available_now, not both.",
    ),
    "retention": (
        'name = "orders"',
        'name = "orders"\nretention = 0',
        "9: queries.retention",
        "it is a number of records",
    ),
    "a bad name": (
        'name = "orders"',
        'name = "or ders"',
        "8: queries.name",
        "query name 'or ders' cannot be used",
    ),
    "a bad view": (
        "[sources.orders]",
        '[sources."or ders"]',
        '1: sources."or ders"',
        "'or ders' cannot name a view",
    ),
    "a view that is taken": (
        "[sources.orders]",
        "[sources.epoch]",
        "1: sources.epoch",
        "'epoch' is what a sink's own SQL calls",
    ),
    "no sources": ("[sources.orders]", "[spark.orders]", "1", "a job needs a source"),
    "no queries": ("[[queries]]", "[[sources.x]]", "7: sources.x", "must be a table, not an array"),
    "queries that are a table": (
        "[[queries]]",
        "[queries]",
        "7: queries",
        "must be an array of tables: [[queries]]",
    ),
    "no sinks": (
        "[[queries.sinks]]",
        "[sources.x]",
        "13: sources.x.type",
        "there is no source 'sqlite'",
    ),
    "sinks that are a table": (
        "[[queries.sinks]]",
        "[queries.sinks]",
        "12: queries.sinks",
        "must be an array of tables: [[queries.sinks]]",
    ),
    "a sink that is text": (
        "[[queries.sinks]]",
        'sinks = ["x"]\n[spark.x]',
        "12: queries.sinks",
        "must be a table, not a string",
    ),
    "no toml": ('table = "t"', "table = t", "15", "this is not TOML: Invalid value."),
    "an open string": ('table = "t"', 'table = "t', "15", "this is not TOML: "),
    "a key twice": ('table = "t"', 'table = "t"\ntable = "u"', "16", "this is not TOML: "),
    "a watermark": (
        'format = "json"',
        'watermark = { colum = "a", delay = "1 s" }',
        "4: sources.orders.watermark.colum",
        f"{NO_KEY} Did you mean 'column'?",
    ),
    "a strategy": (
        "[[queries]]",
        '[restart]\nstrategy = "fixed"\n[[queries]]',
        "8: restart.strategy",
        "there is no restart strategy 'fixed'. Did you mean 'fixed-delay'?",
    ),
    "a duration": (
        "[[queries]]",
        '[restart]\nstrategy = "fixed-delay"\ndelay = "soon"\n[[queries]]',
        "7: restart",
        "a duration is like",
    ),
    "a setting": (
        "[[queries]]",
        "[spark]\nx = [1]\n[[queries]]",
        "8: spark.x",
        "a setting of Spark is",
    ),
    "a setting too deep": (
        "[[queries]]",
        '[spark.conf]\n"spark.x" = 1\n[[queries]]',
        "7: spark.conf",
        "the setting spark.x must stand right under [spark]",
    ),
    "a dead-letter sink": (
        'table = "t"',
        'table = "t"\ndead_letter = { type = "files", pth = "x" }',
        "16: queries.sinks.dead_letter.pth",
        f"{NO_KEY} Did you mean 'path'?",
    ),
    "both": (
        "[[queries]]",
        '[query]\nname="x"\n[[queries]]',
        "1",
        "this job has both [query] and [[queries]]",
    ),
}


@pytest.mark.parametrize("what", BAD)
def test_an_error_has_its_place_and_the_right_word(tmp_path: Path, what: str) -> None:
    old, new, place, said = BAD[what]
    assert refused(tmp_path, changed((old, new))).startswith(f"job.toml:{place}: {said}")


def test_what_is_missing_altogether(tmp_path: Path) -> None:
    head, _, tail = JOB.partition("[[queries]]")
    assert refused(tmp_path, "").startswith("job.toml:1: a job needs a source")
    assert refused(tmp_path, head).startswith("job.toml:1: this job has no [[queries]]")
    text = "queries = []\n" + head
    assert refused(tmp_path, text).startswith("job.toml:1: queries: this job has no query")
    text = head + "[[queries]]" + tail.partition("[[")[0]
    assert refused(tmp_path, text).startswith("job.toml:7: queries: a query needs a sink")
    (tmp_path / "job.toml").write_bytes(b"\xff")
    with pytest.raises(UsageError, match="cannot be read"):
        open_toml(tmp_path / "job.toml")


@pytest.mark.parametrize("key", ["name", "checkpoint"])
def test_two_queries_are_two(tmp_path: Path, key: str) -> None:
    _, _, query = JOB.partition("[[queries]]")
    other = "checkpoint" if key == "name" else "name"
    second = query.replace(f"{other} = ", f'{other} = "x"\n# ')
    message = refused(tmp_path, f"{JOB}[[queries]]{second}")
    line = 8 if key == "name" else 10
    assert f"queries.{key}: the query of line {line} has the same {key}" in message
