"""Which of a query's inputs are idle, and to what time that of each is to be brought on. Pure.

The smallest watermark of all inputs counts. An input that brings nothing for as long as its
``idle=`` says is left out: its time is brought on to where the smallest watermark of the others is.
If all are idle, nothing is brought on: no time has passed that any row would show.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True)
class InputSeen:
    """What one epoch brought of an input; ``newest_ms`` is None if that was nothing."""

    rows: int
    newest_ms: int | None
    delay_ms: int
    idle_ms: int | None = None


@dataclass
class InputClock:
    """What is known of one input since the query was started."""

    delay_ms: int
    idle_ms: int | None
    since_s: float  # when it brought rows last, on the clock on the wall
    newest_ms: int | None = None  # the largest time of its rows
    tick_ms: int | None = None  # to which its time was brought on

    @property
    def watermark_ms(self) -> int | None:
        """Up to where no more rows are expected of it; None before the first."""
        known = [time for time in (self.newest_ms, self.tick_ms) if time is not None]
        return max(known) - self.delay_ms if known else None

    def is_idle(self, now_s: float) -> bool:
        """Whether it has brought nothing for long enough."""
        return self.idle_ms is not None and (now_s - self.since_s) * 1000 >= self.idle_ms


@dataclass
class InputClocks:
    """All inputs of one running query."""

    started_s: float
    inputs: dict[str, InputClock] = field(default_factory=dict)

    def note(self, seen: Mapping[str, InputSeen], now_s: float) -> None:
        """Take note of what an epoch brought."""
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
        """Return the inputs whose time is to be brought on, and to where; each is told once."""
        idle = {name: clock for name, clock in self.inputs.items() if clock.is_idle(now_s)}
        others = [c.watermark_ms for name, c in self.inputs.items() if name not in idle]
        if not others or None in others:  # nothing moves, or somebody's time is not known
            return {}
        to_ms = min(other for other in others if other is not None)
        found = {}
        for name, clock in idle.items():
            mine = clock.watermark_ms
            if mine is None or mine < to_ms:
                found[name] = clock.tick_ms = to_ms + clock.delay_ms
        return found
