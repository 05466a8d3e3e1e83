"""An executor that dies under two sinks: they hold the same rows, or the epoch is not decided."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.programs import output_of
from tests.spark.jobs import table


@pytest.mark.parametrize(("how", "epochs"), [("between", 3), ("within", 1)])
def test_two_sinks_never_hold_different_rows_of_one_epoch(
    tmp_path: Path, how: str, epochs: int
) -> None:
    printed = output_of("tests.kill.executor_lost", tmp_path, how)
    assert "kills=1" in printed, printed
    one, other = table(tmp_path, "id, u", "one"), table(tmp_path, "id, u", "other")
    assert [id_ for id_, _ in one] == list(range(40 * epochs))
    assert one == other, "the rows were computed again for the second sink"
    assert "failures=0" not in printed, "the lost rows came from nowhere"
    if how == "within":
        assert "Spark computed part(s) 0 of the rows again" in printed, printed
