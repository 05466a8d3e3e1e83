"""Event time: windows with allowed lateness, timers, joins, and late rows."""

from __future__ import annotations

from beadline.event_time.aggregates import Aggregate, avg_of, count, max_of, min_of, sum_of
from beadline.event_time.asof import temporal_join
from beadline.event_time.custom import CustomAggregate
from beadline.event_time.dedup import deduplicated
from beadline.event_time.joins import interval_join, window_join
from beadline.event_time.keyed import KeyedContext, KeyedProcess
from beadline.event_time.keyed_stream import keyed_process
from beadline.event_time.lookup import lookup_join
from beadline.event_time.ordered import collect_of, first_of, last_of
from beadline.event_time.sketches import approx_distinct, quantiles
from beadline.event_time.watermarks import watermark
from beadline.event_time.windowed import WindowedRows, windowed
from beadline.outputs import Outputs

__all__ = [
    "Aggregate",
    "CustomAggregate",
    "KeyedContext",
    "KeyedProcess",
    "Outputs",
    "WindowedRows",
    "approx_distinct",
    "avg_of",
    "collect_of",
    "count",
    "deduplicated",
    "first_of",
    "interval_join",
    "keyed_process",
    "last_of",
    "lookup_join",
    "max_of",
    "min_of",
    "quantiles",
    "sum_of",
    "temporal_join",
    "watermark",
    "window_join",
    "windowed",
]
