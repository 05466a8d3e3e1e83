"""Joins, top rows, duplicates and keyed processes in job files: what they hold, what is refused."""

from __future__ import annotations

from pathlib import Path

import pytest

from beadline.jobs.views import WindowTable
from tests.unit.test_job_toml import _as_before, opened, refused
from tests.unit.test_job_toml_schema import fits

__all__ = ["_as_before"]  # the fixture

SHOP = """\
from beadline.event_time import KeyedProcess


class Silence(KeyedProcess):
    def __init__(self, minutes: int = 5) -> None:
        self.minutes = minutes

    def open(self, state):
        self.newest = state.value("newest", "timestamp")

    def process(self, row, ctx):
        yield {"shop": row.shop}


class Loud:
    pass


def load_shops():
    return [{"shop": "a", "city": "Bonn"}]
"""
VIEWS = """\
[sources.orders]
type = "files"
path = "in"
format = "json"
schema = "id string, shop string, amount long, at timestamp"

[sources.payments]
type = "files"
path = "paid"
format = "json"
schema = "id string, paid_at timestamp"

[windows.best]
from = "once"
time = "at"
size = "1 hour"
by = "shop"
allowed_lateness = "1 day"
top = { n = 3, order_by = "amount", columns = ["amount"] }

[deduplicated.once]
from = "orders"
by = "id"
time = "at"
within = "1 hour"

[joins.paid]
type = "interval"
left = "orders"
right = "payments"
on = "id"
left_time = "at"
right_time = "paid_at"
between = ["0 seconds", "1 hour"]
watermark = ["1 minute", "5 minutes"]

[joins.named]
type = "lookup"
from = "paid"
table = "shop_views:load_shops"
on = "shop"

[joins.newest]
type = "temporal"
left = "orders"
right = "payments"
on = "id"
left_time = "at"
right_time = "paid_at"
late = "side"

[processes.alerts]
from = "orders"
process = { type = "shop_views:Silence", minutes = 7 }
by = "shop"
outputs = { main = "shop string", alerts = "shop string" }
late = "side"

[query]
name = "alerts"
view = "alerts"

[[query.sinks]]
type = "memory"
name = "all"

[[query.sinks]]
type = "memory"
name = "alerts"
output = "alerts"
"""


@pytest.fixture(autouse=True)
def _shop(tmp_path: Path) -> None:
    (tmp_path / "shop_views.py").write_text(SHOP)


def test_views_that_are_computed(tmp_path: Path) -> None:
    views = {view.view: view for view in opened(tmp_path, VIEWS).views}
    order = list(views)
    assert order.index("best") > order.index("once"), "each comes after what it is computed of"
    assert order.index("named") > order.index("paid")
    best = views["best"]
    assert isinstance(best, WindowTable)
    assert best.top == {"n": 3, "order_by": "amount", "columns": ["amount"]}
    paid = views["paid"]
    assert {name: one.value for name, one in paid.inputs.items()} == {
        "left": "orders",
        "right": "payments",
    }
    assert paid.arguments["between"] == ["0 seconds", "1 hour"]
    assert paid.build.__name__ == "interval_join"
    assert views["named"].arguments["table"]() == [{"shop": "a", "city": "Bonn"}]
    assert views["newest"].outputs == ("main", "late")
    alerts = views["alerts"]
    assert alerts.outputs == ("main", "alerts", "late")
    assert alerts.arguments["process"].minutes == 7
    assert fits(VIEWS)


# What is changed in the job, and into what; the place that is named, and what is said of it.
CHANGES: dict[str, tuple[str, str, str, str]] = {
    "an unknown join": (
        'type = "interval"',
        'type = "interwal"',
        "28: joins.paid.type",
        "there is no join 'interwal'. Did you mean 'interval'?",
    ),
    "a join of one's own": (
        'type = "interval"',
        'type = "shop_views:load_shops"',
        "28: joins.paid.type",
        "there is no join",
    ),
    "an unknown side": (
        'type = "interval"\nleft = "orders"',
        'type = "interval"\nleft = "order"',
        "29: joins.paid.left",
        "there is no view 'order'. Did you mean 'orders'?",
    ),
    "a side that is no name": (
        'from = "paid"',
        "from = 3",
        "39: joins.named.from",
        "must be a string, the name of a view, not a whole number",
    ),
    "a missing side": ('from = "paid"\n', "", "37: joins.named", "the key 'from' is missing"),
    "a key of another join": (
        'between = ["0 seconds", "1 hour"]',
        'size = "1 hour"',
        "34: joins.paid.size",
        "there is no such key here",
    ),
    "a function that is not there": (
        "shop_views:load_shops",
        "shop_views:load_shop",
        "40: joins.named.table",
        "'shop_views:load_shop' cannot be imported",
    ),
    "views of each other": (
        'from = "orders"\nby = "id"',
        'from = "best"\nby = "id"',
        "13: windows.best",
        "these views are computed of each other: best, once",
    ),
    "two views of one name": (
        "[joins.named]",
        "[joins.best]",
        "37: joins.best",
        "there is a view 'best' already, in line 13",
    ),
    "neither agg nor top": (
        'top = { n = 3, order_by = "amount", columns = ["amount"] }\n',
        "",
        "13: windows.best",
        "the key 'agg' is missing: what is computed of each window, or its top rows",
    ),
    "agg and top": (
        "top = {",
        'agg = { n = "count" }\ntop = {',
        "20: windows.best.top",
        "take agg or top, not both",
    ),
    "top rows of no number": ("n = 3", 'n = "3"', "19: windows.best.top.n", "a whole number"),
    "a key that top() has not": (
        "n = 3,",
        "n = 3, rank = 1,",
        "19: windows.best.top.rank",
        "there is no such key here",
    ),
    "a class that is no process": (
        "shop_views:Silence",
        "shop_views:Loud",
        "54: processes.alerts.process.type",
        "shop_views:Loud is not a process: a class on beadline.event_time:KeyedProcess",
    ),
    "an argument that the process has not": (
        "minutes = 7",
        "hours = 7",
        "54: processes.alerts.process.hours",
        "there is no such key here",
    ),
    "an output that the process has not": (
        'output = "alerts"',
        'output = "alarms"',
        "70: query.sinks.output",
        "this query has no output 'alarms'. Did you mean 'alerts'?",
    ),
}


@pytest.mark.parametrize("what", CHANGES)
def test_an_error_has_its_place_and_the_right_word(tmp_path: Path, what: str) -> None:
    old, new, place, said = CHANGES[what]
    assert old in VIEWS
    message = refused(tmp_path, VIEWS.replace(old, new))
    assert message.startswith(f"job.toml:{place}: "), message
    assert said in message


@pytest.mark.parametrize(
    "what",
    [
        "an unknown join",
        "a missing side",
        "a key of another join",
        "neither agg nor top",
        "agg and top",
        "top rows of no number",
    ],
)
def test_what_the_reader_refuses_the_schema_refuses(what: str) -> None:
    old, new, _, _ = CHANGES[what]
    assert not fits(VIEWS.replace(old, new))
