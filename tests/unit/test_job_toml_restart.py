"""Restart strategies, with a clock of the test's own."""

from __future__ import annotations

import pytest
from py4j.protocol import Py4JNetworkError

from beadline.errors import (
    BadQuery,
    BadSetting,
    BadSink,
    CommitFailed,
    Fenced,
    GuaranteeRefused,
    PrepareFailed,
    UsageError,
)
from beadline.jobs.restart import (
    ExponentialBackoff,
    FixedDelay,
    NoRestart,
    Restarts,
    Strategy,
    seconds,
)

FAILURE = PrepareFailed("the server is away")


class Clock:
    def __init__(self) -> None:
        self.now_s = 1_000.0

    def __call__(self) -> float:
        return self.now_s


def delays(strategy: Strategy, failures: int, ran_s: float = 1.0) -> list[float | None]:
    """A query that fails, time and again, after it ran for a while."""
    clock = Clock()
    restarts = Restarts(strategy, clock)
    found = []
    for _ in range(failures):
        restarts.started()
        clock.now_s += ran_s
        found.append(restarts.after(FAILURE))
        clock.now_s += found[-1] or 0.0
    return found


def test_none() -> None:
    assert delays(NoRestart(), 2) == [None, None]


def test_fixed_delay_counts_for_the_life_of_the_job() -> None:
    assert delays(FixedDelay(2, "3 seconds"), 4, ran_s=1e9) == [3.0, 3.0, None, None]
    assert delays(FixedDelay(), 2) == [1.0, None]


def test_exponential_backoff_grows_to_its_maximum() -> None:
    strategy = ExponentialBackoff("1 second", "5 seconds", multiplier=2.0)
    assert delays(strategy, 5) == [1.0, 2.0, 4.0, 5.0, 5.0]
    assert strategy.delay_s(10**9) == 5.0
    assert ExponentialBackoff(multiplier=1.0).delay_s(10**9) == 1.0


def test_exponential_backoff_ends_after_its_attempts() -> None:
    strategy = ExponentialBackoff(multiplier=2.0, attempts=2)
    assert delays(strategy, 3) == [1.0, 2.0, None]


def test_a_long_run_resets_the_count() -> None:
    strategy = ExponentialBackoff(multiplier=2.0, attempts=2, reset_after="1 minute")
    assert delays(strategy, 5, ran_s=60) == [1.0] * 5
    assert delays(strategy, 3, ran_s=59) == [1.0, 2.0, None]


def test_time_in_which_it_did_not_run_resets_nothing() -> None:
    clock = Clock()
    restarts = Restarts(ExponentialBackoff(multiplier=2.0, reset_after="1 minute"), clock)
    restarts.started()
    assert restarts.after(FAILURE) == 1.0
    clock.now_s += 3600  # it could not be started for an hour
    assert restarts.after(FAILURE) == 2.0


@pytest.mark.parametrize("kind", [UsageError, BadQuery, GuaranteeRefused, Fenced])
def test_what_is_never_started_again(kind: type[Exception]) -> None:
    restarts = Restarts(FixedDelay(9))
    assert restarts.after(kind("no")) is None
    assert restarts.after(Py4JNetworkError("gone")) is None
    assert restarts.after(KeyboardInterrupt()) is None
    assert restarts.after(CommitFailed("later")) == 1.0


def test_a_server_that_is_away_at_the_restart() -> None:
    """At the first start it may be a mistake in the job file."""
    restarts = Restarts(FixedDelay(9))
    assert restarts.after(BadSink("not reachable"), ran=False) is None
    assert restarts.after(BadSink("not reachable"), ran=True) == 1.0


@pytest.mark.parametrize(
    ("text", "length_s"),
    [("1 second", 1), ("2 seconds", 2), ("500 ms", 0.5), ("1.5 Minutes", 90), ("1h", 3600),
     ("2 days", 172_800), ("10 s", 10), ("3 milliseconds", 0.003)],
)  # fmt: skip
def test_durations(text: str, length_s: float) -> None:
    assert seconds(text) == pytest.approx(length_s)


@pytest.mark.parametrize("text", ["", "soon", "1", "1 parsec", "-1 second", "1 second ago"])
def test_what_is_no_duration(text: str) -> None:
    with pytest.raises(BadSetting, match="a duration is like"):
        FixedDelay(1, text)


def test_settings_that_cannot_be_right() -> None:
    with pytest.raises(BadSetting, match="attempts"):
        FixedDelay(0)
    with pytest.raises(BadSetting, match="attempts"):
        ExponentialBackoff(attempts=-1)
    with pytest.raises(BadSetting, match="multiplier"):
        ExponentialBackoff(multiplier=0.5)
    with pytest.raises(BadSetting, match="less than initial"):
        ExponentialBackoff("1 minute", "1 second")
