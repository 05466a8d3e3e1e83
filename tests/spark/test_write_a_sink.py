"""The job on the page for a sink's author runs, and its DuckDB sink survives two crashes."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import duckdb
from pyspark.sql import SparkSession

from beadline import exactly_once
from beadline.testing import CRASH, run_epochs
from beadline.testing.epochs import Script
from examples.duckdb_sink import DuckDbSink

ROOT = Path(__file__).parents[2]
ROWS = [{"id": number, "word": str(number), "amount": number / 2} for number in range(1, 4)]


def shown(path: Path) -> list[dict[str, Any]]:
    with duckdb.connect(str(path)) as db:
        rows: list[dict[str, Any]] = db.sql("FROM orders ORDER BY id").to_arrow_table().to_pylist()
    return rows


def test_the_job_on_the_page_runs(tmp_path: Path) -> None:
    page = (ROOT / "docs" / "write-a-sink.md").read_text("utf-8")
    job = re.findall(r"^```python\n(.*?)^```$", page, re.DOTALL | re.MULTILINE)[-1]
    (tmp_path / "job.py").write_text(job)
    shutil.copy(ROOT / "examples" / "duckdb_sink.py", tmp_path)
    (tmp_path / "incoming").mkdir()
    (tmp_path / "incoming" / "1.json").write_text('{"id": 1, "word": "one", "amount": 0.5}\n')
    command = [sys.executable, "-m", "beadline", "run", "job.py", "--available-now"]
    subprocess.run(command, cwd=tmp_path, check=True, timeout=300)
    assert shown(tmp_path / "shop.db") == [{"id": 1, "word": "one", "amount": 0.5}]


def test_each_row_shows_once_after_two_crashes(spark: SparkSession, tmp_path: Path) -> None:
    sink = DuckDbSink(str(tmp_path / "shop.db"), "orders")
    script: Script = [ROWS[:1], CRASH("ledger.before"), ROWS[1:2], CRASH("ledger.after"), ROWS[2:]]
    result = run_epochs(
        spark, lambda frame: exactly_once(frame, name="orders").to(sink), script, tmp_path
    )
    assert shown(tmp_path / "shop.db") == ROWS
    assert result.restarts == 2
