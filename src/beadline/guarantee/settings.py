"""Spark settings that change what a query can guarantee. A table: each line says when it applies.

Those that would break a rule of the protocol are refused by ``spark/checks.py`` instead.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

from beadline.guarantee.report import Finding, FindingKind
from beadline.sink import Guarantee

Conf = Mapping[str, str]


@dataclass(frozen=True)
class RiskySetting:
    """One setting: for which values and plans it matters, and what it does."""

    key: str
    applies: Callable[[str], bool]
    level: Guarantee
    why: str
    cure: str
    stateful_only: bool = False


def _is(word: str) -> Callable[[str], bool]:
    return lambda value: value.strip().lower() == word


def _below(least: int) -> Callable[[str], bool]:
    return lambda value: value.strip().isdecimal() and int(value) < least


RISKY_SETTINGS = (
    RiskySetting(
        "spark.speculation",
        _is("true"),
        Guarantee.EXACTLY_ONCE,
        "speculation runs slow tasks twice: exactly-once decides on one attempt and sweeps the "
        "other; at-least-once may show the rows of both",
        "with at_least_once(), set spark.speculation to false",
    ),
    RiskySetting(
        "spark.sql.streaming.minBatchesToRetain",
        _below(2),
        Guarantee.AT_MOST_ONCE,
        "the newest epoch can only be redelivered if the offsets and the state before it are kept",
        "leave it at Spark's default of 100; 2 is the least",
    ),
    RiskySetting(
        "spark.sql.streaming.statefulOperator.checkCorrectness.enabled",
        _is("false"),
        Guarantee.AT_MOST_ONCE,
        "Spark's check is off for chains of stateful operators that wrongly drop rows as late",
        "leave it at true",
        stateful_only=True,
    ),
    RiskySetting(
        "spark.sql.streaming.stateStore.stateSchemaCheck",
        _is("false"),
        Guarantee.AT_MOST_ONCE,
        "a changed query may read the old query's state under another layout, and compute wrong "
        "results",
        "leave it at true",
        stateful_only=True,
    ),
    RiskySetting(
        "spark.sql.streaming.multipleWatermarkPolicy",
        _is("max"),
        Guarantee.EXACTLY_ONCE,
        "the fastest input sets the watermark: all rows of a slower one may be late, and late rows "
        "are dropped, or go to the late output",
        'leave it at min; for an input without rows there is watermark(..., idle="1 minute")',
        stateful_only=True,
    ),
    RiskySetting(
        "spark.sql.streaming.unsupportedOperationCheck",
        _is("false"),
        Guarantee.AT_MOST_ONCE,
        "Spark's check of the plan is off, so plans that lose rows are accepted",
        "leave it at true",
    ),
)
RISKY_KEYS = tuple(setting.key for setting in RISKY_SETTINGS)


def judge_settings(conf: Conf, stateful: bool) -> Iterator[Finding]:
    """Yield a finding for each setting that applies."""
    for setting in RISKY_SETTINGS:
        value = conf.get(setting.key)
        if value is None or not setting.applies(value) or (setting.stateful_only and not stateful):
            continue
        part = f"{setting.key}={value}"
        yield Finding(
            FindingKind.SETTING, part, setting.level, setting.why, setting.cure, warning=True
        )
