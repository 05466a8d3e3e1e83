"""An executor killed between two sinks' jobs: the sinks agree, or the epoch is not decided."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from tests.spark.jobs import table

ROOT = Path(__file__).parents[2]


def test_two_sinks_never_hold_different_rows_of_one_epoch(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "tests.kill.executor_lost", str(tmp_path)],
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
    assert [id_ for id_, _ in one] == list(range(120))
    assert one == other, "the rows were computed again for the second sink"
    assert "kills=1 failures=0" not in done.stdout, "the lost rows came from nowhere"
