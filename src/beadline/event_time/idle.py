"""Which of a query's inputs are idle, and to what time each is to be advanced. Pure.

The smallest watermark of all inputs counts. An input that has had no rows for the duration of its
``idle=`` is excluded: its time is advanced to the smallest watermark of the others. If all inputs
are idle, none is advanced: no row shows that event time has passed.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True)
class InputSeen:
    """An input's rows in one epoch; ``newest_ms`` is None if there were none with a time."""

    rows: int
    newest_ms: int | None
    delay_ms: int
    idle_ms: int | None = None


@dataclass
class InputClock:
    """What is known of one input since the query was started."""

    delay_ms: int
    idle_ms: int | None
    since_s: float  # when it last had rows, by the monotonic clock
    newest_ms: int | None = None  # the largest time of its rows
    tick_ms: int | None = None  # the time to which it was advanced

    @property
    def watermark_ms(self) -> int | None:
        """The time before which no more rows are expected of it; None before the first rows."""
        known = [time for time in (self.newest_ms, self.tick_ms) if time is not None]
        return max(known) - self.delay_ms if known else None

    def is_idle(self, now_s: float) -> bool:
        """Whether it has had no rows for the duration of its ``idle=``."""
        return self.idle_ms is not None and (now_s - self.since_s) * 1000 >= self.idle_ms


@dataclass
class InputClocks:
    """All inputs of one running query."""

    started_s: float
    inputs: dict[str, InputClock] = field(default_factory=dict)

    def note(self, seen: Mapping[str, InputSeen], now_s: float) -> None:
        """Record the inputs' rows of an epoch."""
        for name, one in seen.items():
            clock = self.inputs.get(name)
            if clock is None:
                clock = InputClock(one.delay_ms, one.idle_ms, self.started_s)
                self.inputs[name] = clock
            if one.rows:
                clock.since_s = now_s
            if one.newest_ms is not None:
                clock.newest_ms = max(one.newest_ms, clock.newest_ms or one.newest_ms)

    def ticks(self, now_s: float) -> dict[str, int]:
        """Return the inputs to advance, and to which time; each time is returned once."""
        idle = {name: clock for name, clock in self.inputs.items() if clock.is_idle(now_s)}
        others = [c.watermark_ms for name, c in self.inputs.items() if name not in idle]
        if not others or None in others:  # all are idle, or an input has had no rows yet
            return {}
        to_ms = min(other for other in others if other is not None)
        found = {}
        for name, clock in idle.items():
            mine = clock.watermark_ms
            if mine is None or mine < to_ms:
                found[name] = clock.tick_ms = to_ms + clock.delay_ms
        return found
