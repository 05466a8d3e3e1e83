"""Lengths of time as users write them, and everything that is not one."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from beadline.errors import BadSetting
from beadline.event_time.durations import Duration, microseconds, milliseconds

SECOND = 1_000_000


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("10 minutes", 600 * SECOND),
        ("1 minute", 60 * SECOND),
        ("1 hour 30 minutes", 5400 * SECOND),
        ("1 hour, 30 min", 5400 * SECOND),
        ("1h30m", 5400 * SECOND),
        (" 2 Days ", 172_800 * SECOND),
        ("1 week", 604_800 * SECOND),
        ("500 ms", SECOND // 2),
        ("2.3 ms", 2_300),
        ("1.1 s", 1_100_000),
        ("7 us", 7),
        (timedelta(seconds=1, microseconds=1), SECOND + 1),
    ],
)
def test_durations(text: Duration, expected: int) -> None:
    assert microseconds("size", text) == expected


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ("", "is not a duration"),
        ("10", "is not a duration"),
        ("minutes", "is not a duration"),
        ("10 minuets", "is not a duration"),
        ("10 minutes and more", "is not a duration"),
        ("-5 minutes", "is not a duration"),
        ("1e3 s", "is not a duration"),
        ("٣ seconds", "is not a duration"),
        ("1 month", "have no fixed length; use days"),
        ("2 years", "have no fixed length; use days"),
        ("0 seconds", "more than zero"),
        (timedelta(seconds=-1), "more than zero"),
        ("0.5 us", "the shortest duration is a microsecond"),
        ("999999999999 days", "no more than a thousand years"),
        (600, "takes a duration such as '10 minutes' or a timedelta, not int"),
        (None, "not NoneType"),
    ],
)
def test_what_is_no_duration(value: Any, message: str) -> None:
    with pytest.raises(BadSetting, match=rf"size=.*{message}.*Nothing was written\."):
        microseconds("size", value)


def test_zero_and_parts_of_milliseconds() -> None:
    assert milliseconds("watermark", "0 seconds", zero=True) == 0
    with pytest.raises(BadSetting, match="zero or more"):
        milliseconds("watermark", timedelta(-1), zero=True)
    with pytest.raises(BadSetting, match=r"whole milliseconds\. Nothing was written\."):
        milliseconds("watermark", "1500 us")
