"""Two attempts of one part, both prepared: one of them counts, and nothing of the other stays."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

from tests.programs import output_of
from tests.spark.jobs import table


def test_the_attempt_that_lost_is_aborted(tmp_path: Path) -> None:
    printed = output_of("tests.kill.speculation", tmp_path)
    attempts = Counter(
        tuple(path.name.split("-")[:2]) for path in (tmp_path / "prepared").iterdir()
    )
    # Not in every epoch: in the first, other tasks may take as long for what they load.
    assert max(attempts.values()) == 2, f"Spark did not speculate: {attempts}"
    assert table(tmp_path, "id", "rows") == list(range(120))
    assert "staged=0" in printed, printed
