"""Two attempts of one part, both prepared: one of them counts, and nothing of the other stays."""

from __future__ import annotations

import subprocess
import sys
from collections import Counter
from pathlib import Path

from tests.spark.jobs import table

ROOT = Path(__file__).parents[2]


def test_the_attempt_that_lost_is_thrown_away(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "tests.kill.speculation", str(tmp_path)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=300,
        start_new_session=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    attempts = Counter(
        tuple(path.name.split("-")[:2]) for path in (tmp_path / "prepared").iterdir()
    )
    # Not in every epoch: in the first, other tasks may take as long for what they load.
    assert max(attempts.values()) == 2, f"Spark did not speculate: {attempts}"
    assert table(tmp_path, "id", "rows") == list(range(120))
    assert "staged=0" in done.stdout, done.stdout
