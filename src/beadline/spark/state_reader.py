"""How much state there is after each epoch: the event `state`, from Spark's own progress."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from beadline.spark.progress_facts import ProgressReport, Told, late_rows


class StateReader:
    """Reports the state of a stateful query."""

    def read(self, progress: ProgressReport) -> Iterator[Told]:
        """Yield the event ``state``."""
        yield "state", figures(progress)

    def look(self) -> None:
        """Nothing is due between epochs."""


def figures(progress: ProgressReport) -> dict[str, Any]:
    """Return what a `state` event says about one epoch.

    ``late_rows`` are those that were late: that Spark's operators dropped, and that Beadline's
    windows sent to their late output or dropped.
    """
    operators = [
        {
            "operator": number,
            "name": one["operatorName"],
            "rows": one["numRowsTotal"],
            "updated": one["numRowsUpdated"],
            "removed": one["numRowsRemoved"],
            "memory_bytes": one["memoryUsedBytes"],
            "late_rows": one["numRowsDroppedByWatermark"],
        }
        for number, one in enumerate(progress.get("stateOperators", ()))
    ]
    return {"operators": operators, "late_rows": late_rows(progress)}
