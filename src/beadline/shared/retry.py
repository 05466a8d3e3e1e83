"""Retries with a deadline: what every sink does when the system behind it does not do as asked.

Each system has errors of its own, so each sink judges them; what follows from the verdict is the
same everywhere. What may be temporary is tried again until a deadline, counted from the first
failure. What is permanent (a wrong password, a table that is gone) is raised at once. An answer
that is not understood may be either, and is tried again until a deadline too.
"""

from __future__ import annotations

import enum
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TypeVar

T = TypeVar("T")


class Verdict(enum.Enum):
    """What an error says about the next try."""

    BUSY = "the system answers: not now"
    AWAY = "there is no answer"
    UNCLEAR = "an answer that is not understood"
    FINAL = "the next answer would be the same"


JudgeError = Callable[[Exception], Verdict]


class Unavailable(Exception):
    """No answer, or "not now"; the same act may succeed later, and may have been done.

    ``answered`` says that it was the system itself that said so.
    """

    def __init__(self, text: str, answered: bool = False) -> None:
        super().__init__(text)
        self.answered = answered


class Rejected(Exception):
    """The system answered, and would answer the same again."""


class Denied(Rejected):
    """It answered that this user may not, which says nothing about what it was asked to take."""


def verdict(error: BaseException) -> Verdict:
    """Judge the two errors above, for sinks whose clients raise no others."""
    if not isinstance(error, Unavailable):
        return Verdict.FINAL
    return Verdict.BUSY if error.answered else Verdict.AWAY


# At a start, an address that does not answer is more often wrong than down.
NO_ANSWER_S = 5.0
_PAUSES_S = (0.05, 0.1, 0.2, 0.5, 1.0)


def running(timeout_s: float) -> dict[Verdict, float]:
    """Return how long each verdict is waited for while a query runs, in seconds."""
    return dict.fromkeys((Verdict.BUSY, Verdict.AWAY, Verdict.UNCLEAR), timeout_s)


def starting(timeout_s: float) -> dict[Verdict, float]:
    """Return the same for a start: a server that says that it is starting up is waited for."""
    soon_s = min(timeout_s, NO_ANSWER_S)
    return {Verdict.BUSY: timeout_s, Verdict.AWAY: soon_s, Verdict.UNCLEAR: soon_s}


class Retries:
    """Growing pauses up to a deadline; ``limits`` are seconds per verdict."""

    def __init__(
        self, limits: Mapping[Verdict, float], pauses_s: Sequence[float] | None = None
    ) -> None:
        """The time runs from the first failure, not from now; the last pause is repeated."""
        self._limits = limits
        self._pauses_s = _PAUSES_S if pauses_s is None else pauses_s
        self._first_s: float | None = None
        self._tries = 0

    def progressed(self) -> None:
        """Reset after progress: the next failure is a new one."""
        self._first_s, self._tries = None, 0

    def again(self, verdict: Verdict, after_s: float = 0.0) -> bool:
        """Wait, and return True for another try; False at once if there is no time for one.

        ``after_s`` is how long the system itself asked to wait; the deadline stays.
        """
        now_s = time.monotonic()
        # From the first failure: an act may have been at work for long when it fails.
        self._first_s = now_s if self._first_s is None else self._first_s
        left_s = self._first_s + self._limits.get(verdict, 0.0) - now_s
        if left_s <= 0:
            return False
        pause_s = self._pauses_s[min(self._tries, len(self._pauses_s) - 1)]
        time.sleep(min(left_s, max(pause_s, after_s)))
        self._tries += 1
        return True


def polls(timeout_s: float, pause_s: float) -> Callable[[], bool]:
    """Return the pause of a loop that waits for something; False when its time is up."""
    return partial(Retries({Verdict.BUSY: timeout_s}, (pause_s,)).again, Verdict.BUSY)


def retry(act: Callable[[], T], judge: JudgeError, limits: Mapping[Verdict, float]) -> T:
    """Return what ``act`` returns, or raise its last error.

    For acts that may be done twice: an answer that is lost says nothing of what was done.
    """
    retries = Retries(limits)
    while True:
        try:
            return act()
        except Exception as error:
            if not retries.again(judge(error)):
                raise
