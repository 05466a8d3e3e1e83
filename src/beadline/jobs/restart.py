"""Restart strategies, as Flink has them: whether a query that failed is started again, and when.

Pure: given what happened and the time, they say how long to wait. A query is never started
again if it would fail in the same way (``UsageError``, ``GuaranteeRefused``), was taken over
(``Fenced``), or has lost its Spark.
"""

from __future__ import annotations

import re
import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, field

from beadline.errors import BadSetting, BadSink, Fenced, GuaranteeRefused, SparkGone, UsageError

_UNITS_S = {
    "ms": 0.001, "millisecond": 0.001, "s": 1.0, "second": 1.0, "min": 60.0, "minute": 60.0,
    "h": 3600.0, "hour": 3600.0, "d": 86400.0, "day": 86400.0,
}  # fmt: skip
_DURATION = re.compile(r"\s*(\d+(?:\.\d+)?)\s*([a-z]+)\s*\Z")


def seconds(text: str) -> float:
    """Read a duration such as ``"10 seconds"``.

    >>> seconds("1.5 minutes")
    90.0
    """
    found = _DURATION.match(text.lower())
    unit = found[2] if found else ""
    factor = _UNITS_S.get(unit, _UNITS_S.get(unit.removesuffix("s")))
    if found is None or factor is None:
        raise BadSetting(f'a duration is like "10 seconds", "500 ms" or "1 hour", not {text!r}')
    return float(found[1]) * factor


class Strategy(ABC):
    """When to start a query again."""

    attempts: int | None  # how many restarts there may be; no limit if None

    @property
    def reset_after_s(self) -> float | None:
        """After how long without a failure the count starts over; never if None."""
        return None

    @abstractmethod
    def delay_s(self, attempt: int) -> float:
        """Return how long to wait before the n-th restart, counted from 1."""


@dataclass(frozen=True)
class NoRestart(Strategy):
    """A failure ends the query."""

    attempts = 0

    def delay_s(self, attempt: int) -> float:
        """Never called."""
        return 0.0


@dataclass(frozen=True)
class FixedDelay(Strategy):
    """Start again after ``delay``, ``attempts`` times in the life of the job."""

    attempts: int = 1
    delay: str = "1 second"

    def __post_init__(self) -> None:
        """Refuse what is no number of attempts or no duration."""
        _check_attempts(self.attempts)
        seconds(self.delay)

    def delay_s(self, attempt: int) -> float:
        """Return the same each time."""
        return seconds(self.delay)


@dataclass(frozen=True)
class ExponentialBackoff(Strategy):
    """Wait ``initial``, then ``multiplier`` times as long each time, up to ``max``.

    After ``reset_after`` without a failure it starts over; ``attempts`` bounds the restarts until
    then, and without it there is no bound.
    """

    initial: str = "1 second"
    max: str = "1 minute"
    multiplier: float = 1.5
    attempts: int | None = None
    reset_after: str = "1 hour"

    def __post_init__(self) -> None:
        """Refuse what would not grow."""
        if self.attempts is not None:
            _check_attempts(self.attempts)
        if not 1 <= self.multiplier <= 1000:
            raise BadSetting(f"multiplier is 1 or more, not {self.multiplier}")
        if seconds(self.max) < seconds(self.initial):
            raise BadSetting(f"max ({self.max}) is less than initial ({self.initial})")
        seconds(self.reset_after)

    @property
    def reset_after_s(self) -> float | None:
        """After how long without a failure it starts over."""
        return seconds(self.reset_after)

    def delay_s(self, attempt: int) -> float:
        """Grow from attempt to attempt."""
        delay_s, most_s = seconds(self.initial), seconds(self.max)
        for _ in range(attempt - 1):
            if delay_s >= most_s or self.multiplier == 1:
                break
            delay_s *= self.multiplier
        return min(delay_s, most_s)


@dataclass
class Restarts:
    """The restarts of one query: how many there were, and whether there is another."""

    strategy: Strategy
    clock: Callable[[], float] = time.monotonic
    attempt: int = 0
    _started_at_s: float | None = field(default=None, repr=False)

    def started(self) -> None:
        """Note that the query runs."""
        self._started_at_s = self.clock()

    def after(self, failure: BaseException, *, ran: bool = True) -> float | None:
        """Return how long to wait before the next start; ``None`` if there is none.

        ``ran`` says that the query had run before in this process. A sink that was accepted then
        and is refused now is a server that is down, not a mistake in the job file.
        """
        away = ran and isinstance(failure, BadSink)
        if not isinstance(failure, Exception) or (isinstance(failure, _never()) and not away):
            return None
        started_at_s, self._started_at_s = self._started_at_s, None
        reset_after_s = self.strategy.reset_after_s
        if started_at_s is not None and reset_after_s is not None:
            self.attempt = 0 if self.clock() - started_at_s >= reset_after_s else self.attempt
        if self.strategy.attempts is not None and self.attempt >= self.strategy.attempts:
            return None
        self.attempt += 1
        return self.strategy.delay_s(self.attempt)


def _never() -> tuple[type[Exception], ...]:
    from py4j.protocol import Py4JNetworkError

    return (UsageError, GuaranteeRefused, Fenced, SparkGone, Py4JNetworkError)


def _check_attempts(attempts: int) -> None:
    if attempts < 1:
        raise BadSetting(f"attempts is 1 or more, not {attempts}")
