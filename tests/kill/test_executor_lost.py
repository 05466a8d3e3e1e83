"""An executor that dies under two sinks: they hold the same rows, or the epoch is not decided."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.spark.jobs import table

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize(("how", "epochs"), [("between", 3), ("within", 1)])
def test_two_sinks_never_hold_different_rows_of_one_epoch(
    tmp_path: Path, how: str, epochs: int
) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "tests.kill.executor_lost", str(tmp_path), how],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=300,
        start_new_session=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    assert "kills=1" in done.stdout, done.stdout
    one, other = table(tmp_path, "id, u", "one"), table(tmp_path, "id, u", "other")
    assert [id_ for id_, _ in one] == list(range(40 * epochs))
    assert one == other, "the rows were computed again for the second sink"
    assert "failures=0" not in done.stdout, "the lost rows came from nowhere"
    if how == "within":
        assert "Spark computed part(s) 0 of the rows again" in done.stdout, done.stdout
