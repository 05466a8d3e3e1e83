"""``[windows.<view>]`` of job files without Spark: what they may hold, and every error's place."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from beadline.event_time import avg_of, count, quantiles, sum_of
from beadline.jobs.arguments import arguments_of
from beadline.jobs.kinds import AGGREGATES, JOINS
from beadline.jobs.sources import Watermark
from beadline.jobs.views import OPERATORS, WindowTable, keys_of
from tests.unit.test_job_toml import JOB, _as_before, opened, refused
from tests.unit.test_job_toml_schema import fits

__all__ = ["_as_before"]  # the fixture

WINDOWS = """\
[sources.orders]
type = "files"
path = "in"
format = "json"
schema = "shop string, amount long, ts timestamp"

[windows.counts]
from = "orders"
time = "ts"
size = "10 minutes"
by = ["shop"]
watermark = "5 minutes"
allowed_lateness = "1 hour"
late = "side"

[windows.counts.agg]
orders = "count"
total = "sum:amount"
mean = { type = "avg", column = "amount" }
spread = { type = "quantiles", column = "amount", at = [0.1, 0.9] }

[query]
name = "orders"
view = "counts"

[[query.sinks]]
type = "memory"
name = "counts"

[[query.sinks]]
type = "memory"
name = "late-rows"
output = "late"
"""


def test_windows(tmp_path: Path) -> None:
    job = opened(tmp_path, WINDOWS)
    (window,) = job.views
    assert isinstance(window, WindowTable)
    assert (window.view, window.outputs) == ("counts", ("main", "late"))
    assert {name: place.value for name, place in window.inputs.items()} == {"frame": "orders"}
    assert window.arguments == {
        "time": "ts",
        "size": "10 minutes",
        "by": ["shop"],
        "watermark": "5 minutes",
        "allowed_lateness": "1 hour",
        "late": "side",
    }
    assert window.aggregates == {
        "orders": count(),
        "total": sum_of("amount"),
        "mean": avg_of("amount"),
        "spread": quantiles("amount", [0.1, 0.9]),
    }
    assert [sink.settings.output for sink in job.tables[0].sinks] == ["main", "late"]
    assert fits(WINDOWS)


def test_a_source_that_may_be_idle(tmp_path: Path) -> None:
    marked = 'watermark = { column = "ts", delay = "5 minutes", idle = "1 minute" }\n'
    text = JOB.replace("[[queries]]", f"{marked}[[queries]]")
    assert opened(tmp_path, text).sources[0].shaping.watermark == Watermark(
        "ts", "5 minutes", "1 minute"
    )
    assert fits(text)


def test_every_argument_is_understood() -> None:
    """An annotation that could not be read would be a key that takes anything."""
    known = [
        *map(keys_of, [*OPERATORS.values(), *(JOINS.named(one) for one in JOINS.known)]),
        *(arguments_of(AGGREGATES.named(one)) for one in AGGREGATES.known),
    ]
    for arguments in known:
        for argument in arguments.values():
            assert argument.annotation is not Any, argument


# What is changed in the job, and into what; the place that is named, and what is said of it.
CHANGES: dict[str, tuple[str, str, str, str]] = {
    "a misspelt key": (
        "allowed_lateness =",
        "alowed_lateness =",
        "13: windows.counts.alowed_lateness",
        "there is no such key here. Did you mean 'allowed_lateness'?",
    ),
    "an unknown view": (
        'from = "orders"',
        'from = "order"',
        "8: windows.counts.from",
        "there is no view 'order'. Did you mean 'orders'?",
    ),
    "no view": ('from = "orders"\n', "", "7: windows.counts", "the key 'from' is missing"),
    "nothing to compute": (
        WINDOWS.partition("[windows.counts.agg]\n")[2].partition("\n\n")[0],
        "",
        "16: windows.counts.agg",
        "it computes nothing",
    ),
    "an unknown aggregate": (
        '"sum:amount"',
        '"sun:amount"',
        "18: windows.counts.agg.total",
        "there is no aggregate 'sun'. Did you mean 'sum'?",
    ),
    "an aggregate of nothing": (
        '"sum:amount"',
        '"sum"',
        "18: windows.counts.agg.total",
        "sum is of a column: 'sum:amount'",
    ),
    "an aggregate with more arguments": (
        '"sum:amount"',
        '"quantiles:amount"',
        "18: windows.counts.agg.total",
        'it needs more than a string says: { type = "quantiles", column = …, at = … }',
    ),
    "an aggregate that is a number": (
        '"sum:amount"',
        "3",
        "18: windows.counts.agg.total",
        'must be a string "sum:amount" or a table, not a whole number',
    ),
    "an unknown aggregate in a table": (
        'type = "avg"',
        'type = "agv"',
        "19: windows.counts.agg.mean.type",
        "there is no aggregate 'agv'. Did you mean 'avg'?",
    ),
    "a length that is no string": (
        'size = "10 minutes"',
        "size = 10",
        "10: windows.counts.size",
        "must be a string, not a whole number",
    ),
    "an unknown word": (
        'late = "side"',
        'late = "sied"',
        "14: windows.counts.late",
        "Did you mean 'side'?",
    ),
    "a view that a source has": (
        "[windows.counts]",
        "[windows.orders]\nfrom = 'orders'\nagg = {n = 'count'}\n[windows.counts]",
        "7: windows.orders",
        "there is a source 'orders' already",
    ),
    "the view of a sink's SQL": (
        "[windows.counts]",
        "[windows.epoch]\nfrom = 'orders'\nagg = {n = 'count'}\n[windows.counts]",
        "7: windows.epoch",
        "what a sink's own SQL calls the rows of one epoch",
    ),
    "an unknown view of a query": (
        'view = "counts"',
        'view = "count"',
        "24: query.view",
        "there is no view 'count'. Did you mean 'counts'?",
    ),
    "neither SQL nor a view": (
        'view = "counts"\n',
        "",
        "22: query",
        "the key 'sql' is missing, or 'view' where one view is all of it",
    ),
    "SQL and a view": (
        'view = "counts"',
        'view = "counts"\nsql = "SELECT 1"',
        "24: query.view",
        "take sql or view, not both",
    ),
    "an unknown output": (
        'output = "late"',
        'output = "latte"',
        "33: query.sinks.output",
        "this query has no output 'latte'. Did you mean 'late'?",
    ),
    "late rows that are dropped": (
        'late = "side"',
        'late = "drop"',
        "33: query.sinks.output",
        "this query has no output 'late'. Late rows are an output of a view with late = \"side\"",
    ),
    "late rows of SQL": (
        'view = "counts"',
        'sql = "SELECT * FROM counts"',
        "33: query.sinks.output",
        "Late rows are an output of a view",
    ),
}


@pytest.mark.parametrize("what", CHANGES)
def test_an_error_has_its_place_and_the_right_word(tmp_path: Path, what: str) -> None:
    old, new, place, said = CHANGES[what]
    assert old in WINDOWS
    message = refused(tmp_path, WINDOWS.replace(old, new))
    assert message.startswith(f"job.toml:{place}: "), message
    assert said in message


@pytest.mark.parametrize(
    "what", ["a misspelt key", "no view", "an unknown aggregate", "neither SQL nor a view"]
)
def test_what_the_reader_refuses_the_schema_refuses(what: str) -> None:
    old, new, _, _ = CHANGES[what]
    assert not fits(WINDOWS.replace(old, new))


def test_a_view_that_is_not_there(tmp_path: Path) -> None:
    message = refused(tmp_path, JOB.replace('sql = "SELECT * FROM orders"', 'view = "counts"'))
    assert "there is no view 'counts'." in message
