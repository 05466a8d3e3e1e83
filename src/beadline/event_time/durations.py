"""Durations as users write them: ``"10 minutes"``, ``"1 hour 30 minutes"``, ``"500 ms"``."""

from __future__ import annotations

import re
from datetime import timedelta
from decimal import Decimal

from beadline.errors import NOTHING_WRITTEN, BadSetting

Duration = str | timedelta

_UNITS_US = {
    "microsecond": 1,
    "us": 1,
    "millisecond": 1_000,
    "ms": 1_000,
    "second": 1_000_000,
    "sec": 1_000_000,
    "s": 1_000_000,
    "minute": 60_000_000,
    "min": 60_000_000,
    "m": 60_000_000,
    "hour": 3_600_000_000,
    "h": 3_600_000_000,
    "day": 86_400_000_000,
    "d": 86_400_000_000,
    "week": 604_800_000_000,
    "w": 604_800_000_000,
}
_PART = re.compile(r"\s*([0-9]+(?:\.[0-9]+)?)\s*([a-zA-Z]+)\s*,?")


# Times are microseconds in 64 bits, to which durations are added.
_LONGEST_US = 1000 * 366 * 86_400_000_000


def microseconds(name: str, value: Duration, *, zero: bool = False) -> int:
    """Return a duration in microseconds; ``name`` is the argument, for the error."""
    if isinstance(value, timedelta):
        found = value // timedelta(microseconds=1)
    elif isinstance(value, str):
        found = _parse(name, value)
    else:
        raise BadSetting(
            f"{name}= takes a duration such as '10 minutes' or a timedelta, "
            f"not {type(value).__name__}. {NOTHING_WRITTEN}"
        )
    if found < 0 or (found == 0 and not zero):
        least = "zero or more" if zero else "more than zero"
        raise _wrong(name, value, f"a duration of {least} is needed here")
    if found > _LONGEST_US:
        raise _wrong(name, value, "a duration of no more than a thousand years is needed here")
    return found


def milliseconds(name: str, value: Duration, *, zero: bool = False) -> int:
    """Return a duration in milliseconds, the resolution of Spark's watermarks and timers."""
    found = microseconds(name, value, zero=zero)
    if found % 1000:
        raise _wrong(name, value, "Spark's clocks have whole milliseconds")
    return found // 1000


def _parse(name: str, text: str) -> int:
    at, total = 0, Decimal(0)
    while match := _PART.match(text, at):
        number, word = match.groups()
        unit = _UNITS_US.get(word.lower()) or _UNITS_US.get(word.lower().removesuffix("s"))
        if unit is None:
            if word.lower().rstrip("s") in ("month", "year"):
                raise _wrong(name, text, "months and years have no fixed length; use days")
            break
        total += Decimal(number) * unit
        at = match.end()
    if at == 0 or text[at:].strip():
        raise BadSetting(
            f"{name}={text!r} is not a duration: write a number and a unit, such as '10 minutes', "
            f"'1 hour 30 minutes' or '500 ms'. {NOTHING_WRITTEN}"
        )
    if total != int(total):
        raise _wrong(name, text, "the shortest duration is a microsecond")
    return int(total)


def _wrong(name: str, value: Duration, why: str) -> BadSetting:
    return BadSetting(f"{name}={str(value)!r}: {why}. {NOTHING_WRITTEN}")
