"""Joins, top rows, duplicates, lookups and keyed processes of a job file, on Spark."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from tests.spark.test_cli_run import Run, run
from tests.spark.test_job_toml import job_file, table

__all__ = ["run"]  # the fixture

SOURCES = """
[sources.orders]
type = "files"
path = "orders"
format = "json"
schema = "id string, shop string, amount long, at timestamp"
max_files_per_epoch = 1

[sources.events]
type = "files"
path = "events"
format = "json"
schema = "shop string, price long, noted_at timestamp"
max_files_per_epoch = 1
"""
VIEWS = """
[deduplicated.once]
from = "orders"
by = "id"
time = "at"
within = "10 minutes"

[windows.best]
from = "once"
time = "at"
size = "1 hour"
by = "shop"
top = { n = 1, order_by = "amount", columns = ["id"] }

[joins.near]
type = "interval"
left = "orders"
right = "events"
on = "shop"
left_time = "at"
right_time = "noted_at"
between = ["-5 minutes", "0 seconds"]
watermark = "10 minutes"

[joins.hours]
type = "window"
left = "orders"
right = "events"
on = "shop"
left_time = "at"
right_time = "noted_at"
size = "1 hour"
watermark = ["10 minutes", "20 minutes"]

[joins.priced]
type = "temporal"
left = "orders"
right = "events"
on = "shop"
left_time = "at"
right_time = "noted_at"
how = "left"
watermark = "10 minutes"
late = "side"

[joins.placed]
type = "lookup"
from = "orders"
table = "tests.spark.shop:load_shops"
on = "shop"

[processes.numbered]
from = "orders"
process = { type = "tests.spark.shop:Numbers", first = 7 }
by = "shop"
outputs = { main = "id string, number bigint", firsts = "shop string" }
time = "at"
watermark = "10 minutes"
"""
QUERY = """
[[queries]]
name = "{name}"
checkpoint = "checkpoints/{name}"
available_now = true
{rows}

[[queries.sinks]]
type = "sqlite"
path = "{name}.db"
table = "t"
"""
QUERIES = {
    "best": 'sql = "SELECT shop, rank, id, amount FROM best"',
    "near": 'sql = "SELECT id, price FROM near"',
    "hours": 'sql = "SELECT id, price FROM hours"',
    "priced": 'view = "priced"',
    "placed": 'sql = "SELECT id, city FROM placed"',
    "numbered": 'view = "numbered"',
}
FIRSTS = """
[[queries.sinks]]
type = "sqlite"
path = "numbered.db"
table = "firsts"
output = "firsts"
"""
DAY = "2026-01-01T"
FAR = "2026-01-05T00:00:00Z"


def put(folder: Path, number: int, *rows: dict[str, Any]) -> None:
    """Write one file, which is one epoch."""
    folder.mkdir(exist_ok=True)
    path = folder / f"{number}.json"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    os.utime(path, (1_700_000_000 + number,) * 2)


def order(id_: str, shop: str, amount: int, at: str) -> dict[str, Any]:
    return {"id": id_, "shop": shop, "amount": amount, "at": f"{DAY}{at}:00Z"}


def event(shop: str, price: int, at: str) -> dict[str, Any]:
    return {"shop": shop, "price": price, "noted_at": f"{DAY}{at}:00Z"}


def test_every_kind_of_view(run: Run, tmp_path: Path) -> None:
    first, second = order("o1", "a", 5, "10:05"), order("o2", "a", 9, "10:20")
    put(tmp_path / "orders", 0, first, second, order("o3", "c", 1, "10:30"))
    put(tmp_path / "orders", 1, second, order("o4", "b", 2, "10:31"))
    put(tmp_path / "events", 0, event("a", 1, "09:00"), event("a", 2, "10:17"))
    put(tmp_path / "events", 1, event("b", 3, "10:32"))
    # So that the watermark passes all of that.
    put(tmp_path / "orders", 2, {"id": "far", "shop": "z", "amount": 0, "at": FAR})
    put(tmp_path / "events", 2, {"shop": "y", "price": 0, "noted_at": FAR})
    queries = [QUERY.format(name=name, rows=rows) for name, rows in QUERIES.items()]
    job = job_file(tmp_path, SOURCES, VIEWS, *queries, FIRSTS)
    code, _, err = run(job, "--conf", "spark.sql.shuffle.partitions=1")
    assert code == 0, err

    def rows(name: str, columns: str, of: str = "t") -> list[Any]:
        return table(tmp_path / f"{name}.db", f"SELECT {columns} FROM {of} ORDER BY 1, 2")

    assert rows("best", "shop, id, amount, rank") == [
        ("a", "o2", 9, 1),
        ("b", "o4", 2, 1),
        ("c", "o3", 1, 1),
    ]
    # The order that came twice is joined twice: that view is of orders, not of those once.
    assert rows("near", "id, price") == [("o2", 2), ("o2", 2)]
    assert rows("hours", "id, price") == [("o1", 2), ("o2", 2), ("o2", 2), ("o4", 3)]
    priced = [row for row in rows("priced", "id, price") if row[0] != "far"]
    assert priced == [("o1", 1), ("o2", 2), ("o2", 2), ("o3", None), ("o4", None)]
    assert rows("placed", "id, city") == [
        ("o1", "Bonn"),
        ("o2", "Bonn"),
        ("o2", "Bonn"),
        ("o4", "Berlin"),
    ]
    assert rows("numbered", "id, number") == [
        ("far", 7),
        ("o1", 7),
        ("o2", 8),
        ("o2", 9),
        ("o3", 7),
        ("o4", 7),
    ]
    assert [shop for shop, _ in rows("numbered", "shop, 1", "firsts")] == ["a", "b", "c", "z"]


def test_spark_s_refusal_of_a_view_names_its_table(run: Run, tmp_path: Path) -> None:
    put(tmp_path / "orders", 0, order("o1", "a", 5, "10:05"))
    put(tmp_path / "events", 0, event("a", 1, "09:00"))
    number = SOURCES.replace("shop string, price", "shop array<int>, price")
    near = VIEWS[VIEWS.index("[joins.near]") : VIEWS.index("[joins.hours]")]
    query = QUERY.format(name="near", rows=QUERIES["near"])
    code, _, err = run(job_file(tmp_path, number, near, query))
    assert code == 2, err
    assert "joins.near" in err
    assert "Nothing was written" in err
    assert "Traceback" not in err
