"""Event time: windows that fire again, timers, joins, and the rows that come too late for them."""

from __future__ import annotations

from beadline.event_time.aggregates import Aggregate, avg_of, count, max_of, min_of, sum_of
from beadline.event_time.custom import CustomAggregate
from beadline.event_time.keyed import KeyedContext, KeyedProcess
from beadline.event_time.keyed_stream import keyed_process
from beadline.event_time.ordered import collect_of, first_of, last_of
from beadline.event_time.sketches import approx_distinct, quantiles
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
    "first_of",
    "keyed_process",
    "last_of",
    "max_of",
    "min_of",
    "quantiles",
    "sum_of",
    "windowed",
]
