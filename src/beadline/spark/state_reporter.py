"""Tells, after each epoch, how much state there is: a `state` event, from Spark's own progress.

Spark counts while it writes state, and has its figures together after the epoch's callback has
returned. So a thread asks for them a moment later, and the epoch itself only leaves a note; a
stateless query has no such thread.
"""

from __future__ import annotations

import json
import logging
import threading
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from pyspark.sql.streaming.query import StreamingQuery

from beadline.observe import Event, Listener, Tell

logger = logging.getLogger("beadline")

LOOK_AFTER_S = 0.5  # how long an epoch's figures may take, and how often at most they are asked for
CLOSE_TIMEOUT_S = 2.0
LATE_ROWS = "beadline.late_rows"  # what Beadline's windows count by themselves


class StateReporter:
    """What one running query tells of its state."""

    def __init__(self, stateful: bool) -> None:
        """Nothing is asked before ``start``."""
        self._stateful = stateful
        self._committed = threading.Event()
        self._closed = threading.Event()
        self._told = -1
        self._thread: threading.Thread | None = None

    def listening(self, listener: Listener) -> Listener:
        """Return a listener that takes note of committed epochs, and passes everything on."""
        if not self._stateful:
            return listener

        def both(event: Event) -> None:
            if event.kind == "committed":
                self._committed.set()
            listener(event)

        return both

    def start(self, tell: Tell, query: Callable[[], StreamingQuery | None]) -> None:
        """Begin to look; ``query`` is Spark's, which may be another one later."""
        if self._stateful:
            self._thread = threading.Thread(
                target=self._run, args=(tell, query), name="beadline-state", daemon=True
            )
            self._thread.start()

    def close(self) -> None:
        """Tell of the last epoch, and no more."""
        self._closed.set()
        self._committed.set()
        thread = self._thread
        if thread is not None and thread is not threading.current_thread():
            thread.join(CLOSE_TIMEOUT_S)

    def _run(self, tell: Tell, query: Callable[[], StreamingQuery | None]) -> None:
        while True:
            self._committed.wait()
            self._committed.clear()
            closed = self._closed.wait(LOOK_AFTER_S)
            try:
                for progress in self._new(query()):
                    tell("state", progress["batchId"], **figures(progress))
            except Exception as error:  # noqa: BLE001 (Spark is gone; figures are worth no query)
                logger.debug("no figures of the state: %s", error)
            if closed:
                return

    def _new(self, query: StreamingQuery | None) -> Iterator[dict[str, Any]]:
        """Yield Spark's progress of the epochs that were not told yet, oldest first."""
        if query is None:
            return
        recent = query._jsq.recentProgress()
        found: list[dict[str, Any]] = []
        for at in range(len(recent) - 1, -1, -1):
            if recent[at].batchId() <= self._told:
                break
            progress = json.loads(recent[at].json())
            if "addBatch" in progress["durationMs"]:  # and not one that says that nothing came
                found.append(progress)
        for progress in reversed(found):
            self._told = max(self._told, progress["batchId"])
            yield progress


def figures(progress: Mapping[str, Any]) -> dict[str, Any]:
    """Return what a `state` event says of one epoch.

    ``late_rows`` are those that came too late: that Spark's operators dropped, and that Beadline's
    windows gave to their late output or dropped.
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
    observed = progress.get("observedMetrics", {}).values()
    counted = sum(metrics.get(LATE_ROWS) or 0 for metrics in observed if metrics)
    return {
        "operators": operators,
        "late_rows": counted + sum(one["late_rows"] for one in operators),
    }
