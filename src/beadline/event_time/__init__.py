"""Event time: windows that fire again, timers, joins, and the rows that come too late for them."""

from __future__ import annotations

from beadline.event_time.aggregates import Aggregate, avg_of, count, max_of, min_of, sum_of
from beadline.event_time.asof import temporal_join
from beadline.event_time.dedup import deduplicated
from beadline.event_time.joins import interval_join, window_join
from beadline.event_time.lookup import lookup_join
from beadline.event_time.windowed import WindowedRows, windowed
from beadline.outputs import Outputs

__all__ = [
    "Aggregate",
    "Outputs",
    "WindowedRows",
    "avg_of",
    "count",
    "deduplicated",
    "interval_join",
    "lookup_join",
    "max_of",
    "min_of",
    "sum_of",
    "temporal_join",
    "window_join",
    "windowed",
]
