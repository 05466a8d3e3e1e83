"""What Spark's progress says about each epoch once it is finished: read once, reported as events.

Some things are known only when an epoch is finished: how far its rows moved the watermark, how much
state there is. Spark reports them in its progress. One thread reads each report once, now and then,
so that no epoch waits for it; each use of a report is a *reader* in a list.
"""

from __future__ import annotations

import json
import logging
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from copy import deepcopy
from datetime import datetime
from typing import Any, Protocol

from py4j.protocol import Py4JError
from pyspark.sql.streaming.query import StreamingQuery

from beadline.event_time.idle import InputClocks, InputSeen
from beadline.event_time.watermarks import INPUT_METRICS, inputs_seen
from beadline.event_time.windowed import LATE_ROWS
from beadline.observe import Tell
from beadline.sources.ticker import publish_tick, ticker_keys

logger = logging.getLogger("beadline")

_LOOK_EVERY_S = 0.5

ProgressReport = Mapping[str, Any]
Told = tuple[str, dict[str, Any]]  # an event's kind and details


class ProgressReader(Protocol):
    """Uses the progress reports of one running query."""

    def read(self, progress: ProgressReport) -> Iterator[Told]:
        """Yield events for a finished epoch; called once for each, in order."""

    def look(self) -> None:
        """Do periodic work, whether or not there are epochs."""


class WatermarkReader:
    """Reports the watermark, of the query and of each input, and advances idle inputs."""

    def __init__(self, now_s: Callable[[], float] = time.monotonic) -> None:
        """The clock starts here: an input that has brought nothing yet is idle from now on."""
        self._now_s = now_s
        self._clocks = InputClocks(now_s())
        self._tickers: dict[str, set[str]] = {}

    def read(self, progress: ProgressReport) -> Iterator[Told]:
        """Yield the event ``watermark``."""
        now_s = self._now_s()
        metrics = progress.get("observedMetrics") or {}
        seen = inputs_seen(metrics)
        self._clocks.note(seen, now_s)
        for source in progress.get("sources") or ():
            found = ticker_keys(_offset(source.get("endOffset")))
            if found is not None:
                self._tickers.setdefault(found[0], set()).add(found[1])
        watermark_ms = _milliseconds((progress.get("eventTime") or {}).get("watermark"))
        if watermark_ms is not None:
            details = {"watermark_ms": watermark_ms, "late_rows": late_rows(progress)}
            yield "watermark", {**details, **_inputs(self._clocks, seen, now_s)}

    def decided(self, query: StreamingQuery | None, epoch: int) -> dict[str, Any]:
        """Return what is known about an epoch whose rows are computed and that is not finished."""
        found = None if query is None else running_metrics(query, epoch)
        if found is None:
            return {}
        watermark_ms, metrics = found
        details = {
            "watermark_ms": watermark_ms,
            "late_rows": late_rows({"observedMetrics": metrics}),
        }
        now_s, seen = self._now_s(), inputs_seen(metrics)
        clocks = deepcopy(self._clocks)  # read will note it when the epoch is finished
        clocks.note(seen, now_s)
        return {**details, **_inputs(clocks, seen, now_s)}

    def look(self) -> None:
        """Advance the time of idle inputs."""
        for name, tick_ms in self._clocks.ticks(self._now_s()).items():
            for key in self._tickers.get(name, ()):
                publish_tick(key, tick_ms)


class StateReader:
    """Reports how much state there is after each epoch of a stateful query: the event ``state``."""

    def read(self, progress: ProgressReport) -> Iterator[Told]:
        """Yield the event ``state``."""
        yield "state", figures(progress)

    def look(self) -> None:
        """Nothing is due between epochs."""


class ProgressFacts:
    """Reads the progress of one running query, whichever Spark query runs it."""

    def __init__(self, readers: Sequence[ProgressReader]) -> None:
        """Without readers, nothing is read."""
        self._readers = readers
        self._closed = threading.Event()
        self._looking = threading.Lock()
        self._newest = -1
        self._tell: Tell = _quiet
        self._query: Callable[[], StreamingQuery] | None = None

    def start(self, tell: Tell, query: Callable[[], StreamingQuery]) -> None:
        """Start reading; ``query`` returns Spark's newest query."""
        if self._readers:
            self._tell, self._query = tell, query
            threading.Thread(target=self._run, name="beadline-progress", daemon=True).start()

    def close(self) -> None:
        """Read the remaining reports, and stop."""
        if not self._closed.is_set():
            self._closed.set()
            self.look()

    def look(self) -> None:
        """Read the reports since the last one."""
        if self._query is None:
            return
        try:
            with self._looking:
                self._look(self._query())
        except Exception:  # Spark is gone: awaitTermination() reports that
            logger.debug("Spark's progress cannot be read", exc_info=True)

    def _look(self, query: StreamingQuery) -> None:
        for progress in new_progress(query, self._newest):
            self._newest = int(progress["batchId"])
            for reader in self._readers:
                for kind, details in reader.read(progress):
                    self._tell(kind, self._newest, **details)
        for reader in self._readers:
            reader.look()

    def _run(self) -> None:
        while not self._closed.wait(_LOOK_EVERY_S):
            self.look()


def new_progress(query: StreamingQuery, after: int) -> list[ProgressReport]:
    """Return the reports of epochs after this one, oldest first; only those are fetched."""
    reports = query._jsq.recentProgress()
    found: list[ProgressReport] = []
    for at in range(len(reports) - 1, -1, -1):
        if reports[at].batchId() <= after:
            break
        report = json.loads(reports[at].json())
        if "addBatch" in (report.get("durationMs") or {}):  # otherwise it says that nothing came
            found.append(report)
    return found[::-1]


def running_metrics(
    query: StreamingQuery, epoch: int
) -> tuple[int, dict[str, dict[str, Any]]] | None:
    """Return the watermark of the running epoch, and what was observed of its rows.

    Neither is part of Spark's public API: None if this Spark does not show it.
    """
    try:
        context = query._jsq.streamingQuery().getLatestExecutionContext()
        if context.batchId() != epoch:
            return None
        found = context.executionPlan().observedMetrics().iterator()
        metrics = {}
        while found.hasNext():
            pair = found.next()
            metrics[str(pair._1())] = json.loads(pair._2().json())
        return int(context.offsetSeqMetadata().batchWatermarkMs()), metrics
    except Py4JError:
        return None


def _inputs(
    clocks: InputClocks, seen: Mapping[str, InputSeen], now_s: float
) -> dict[str, dict[str, Any]]:
    """Return what is reported about each input, if the query distinguishes them."""
    found = {
        name: {
            "rows": seen[name].rows if name in seen else 0,
            "newest_ms": clock.newest_ms,
            "watermark_ms": clock.watermark_ms,
            "idle": clock.is_idle(now_s),
        }
        for name, clock in clocks.inputs.items()
    }
    return {"inputs": found} if found else {}


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


def late_rows(progress: ProgressReport) -> int:
    """Return how many rows were late: as counted by our windows and by Spark's own operators.

    Spark counts what reaches an operator, so rows that were aggregated before count once per group.
    """
    observed: Mapping[str, Any] = progress.get("observedMetrics") or {}
    ours = sum(
        int(values.get(LATE_ROWS) or 0)
        for name, values in observed.items()
        if name.startswith((LATE_ROWS, INPUT_METRICS))
    )
    operators = progress.get("stateOperators") or ()
    return ours + sum(int(one.get("numRowsDroppedByWatermark") or 0) for one in operators)


def _offset(text: Any) -> Any:
    """An offset is an object in Spark's report; if it is not one, a text."""
    if not isinstance(text, str):
        return text
    try:
        return json.loads(text)
    except ValueError:
        return None


def _milliseconds(text: str | None) -> int | None:
    """Return Spark's ``2026-01-01T10:00:00.000Z`` in milliseconds."""
    if text is None:
        return None
    return round(datetime.fromisoformat(text.replace("Z", "+00:00")).timestamp() * 1000)


def _quiet(kind: str, epoch: int | None = None, **details: Any) -> None:
    """Report nothing: the query has no listener yet."""
