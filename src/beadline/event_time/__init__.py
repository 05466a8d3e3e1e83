"""Event time: windows that fire again, timers, joins, and the rows that come too late for them."""

from __future__ import annotations

from beadline.event_time.aggregates import Aggregate, avg_of, count, max_of, min_of, sum_of
from beadline.event_time.keyed import KeyedContext, KeyedProcess
from beadline.event_time.keyed_stream import keyed_process
from beadline.event_time.windowed import WindowedRows, windowed
from beadline.outputs import Outputs

__all__ = [
    "Aggregate",
    "KeyedContext",
    "KeyedProcess",
    "Outputs",
    "WindowedRows",
    "avg_of",
    "count",
    "keyed_process",
    "max_of",
    "min_of",
    "sum_of",
    "windowed",
]
