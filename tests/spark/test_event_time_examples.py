"""The job files of `examples/` that are written in Python, each run as its first lines say."""

from __future__ import annotations

import json
import os
import shutil
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from tests.spark.test_cli_run import Run, run
from tests.spark.test_joins import one_task, rocksdb

__all__ = ["one_task", "rocksdb", "run"]  # fixtures

EXAMPLES = Path(__file__).parents[2] / "examples"


def example(name: str, folder: Path) -> Path:
    """A copy, because checkpoints and output are made beside the job file."""
    return Path(shutil.copy(EXAMPLES / name, folder))


def write(folder: Path, number: int, *lines: dict[str, Any]) -> None:
    """One file of an example's input; those with larger numbers are newer."""
    folder.mkdir(exist_ok=True)
    path = folder / f"{number}.json"
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    os.utime(path, (1_700_000_000 + number, 1_700_000_000 + number))


def select(path: Path, query: str) -> list[Any]:
    with closing(sqlite3.connect(path)) as database:
        return sorted(database.execute(query).fetchall())


def order(name: str, at: str, amount: int, **more: str) -> dict[str, Any]:
    return {"order": name, "amount": amount, **more} | {"at": f"2026-01-01T{at}Z"}


def test_paid_orders(run: Run, tmp_path: Path) -> None:
    job = example("paid_orders.py", tmp_path)

    def ordered(name: str, at: str) -> dict[str, Any]:
        return {"order": name, "ordered_at": f"2026-01-01T{at}Z", "amount": 5}

    def paid(name: str, at: str) -> dict[str, Any]:
        return {"order": name, "paid_at": f"2026-01-01T{at}Z", "paid": 5}

    write(tmp_path / "orders", 1, ordered("o1", "10:00:00"), ordered("o2", "10:00:00"))
    write(tmp_path / "payments", 1, paid("o1", "11:00:00"), paid("o2", "11:00:01"))
    assert run(job, "--available-now")[0] == 0
    shown = 'SELECT "order", paid_at IS NOT NULL FROM paid_orders'
    assert select(tmp_path / "paid_orders.db", shown) == [("o1", 1)]
    write(tmp_path / "orders", 2, ordered("o3", "13:00:00"))
    write(tmp_path / "payments", 2, paid("o4", "13:00:00"))
    assert run(job, "--available-now")[0] == 0
    assert select(tmp_path / "paid_orders.db", shown) == [("o1", 1), ("o2", 0)]


@pytest.mark.usefixtures("rocksdb")
def test_best_sellers(run: Run, tmp_path: Path) -> None:
    job = example("best_sellers.py", tmp_path)
    orders = tmp_path / "orders"
    first = [order(f"o{n}", "10:00:00", n, shop="a") for n in range(1, 5)]
    write(orders, 1, *first, order("o5", "12:00:00", 1, shop="b"))
    assert run(job, "--available-now")[0] == 0
    shown = "SELECT rank, amount, \"order\" FROM best_sellers WHERE shop = 'a'"
    best = [(1, 4, "o4"), (2, 3, "o3"), (3, 2, "o2")]
    assert select(tmp_path / "best_sellers.db", shown) == best
    write(orders, 2, order("late", "10:30:00", 9, shop="a"))
    assert run(job, "--available-now")[0] == 0
    best = [(1, 9, "late"), (2, 4, "o4"), (3, 3, "o3")]
    assert select(tmp_path / "best_sellers.db", shown) == best
