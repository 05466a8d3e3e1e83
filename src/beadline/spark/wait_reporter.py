"""Emits `waiting` while a step takes long, so that a user can see what the query is waiting for.

A broker that is down in the middle of an epoch, an unknown outcome, a slow plan: the query waits
for all of them. One thread checks the clock now and then; an epoch itself only records when it
began.
"""

from __future__ import annotations

import threading
import time

from beadline.observe import Event, Listener, Tell

REPORT_AFTER_S = 10.0
REPORT_EVERY_S = 10.0

# What follows an event of the protocol, in words for the user.
_DOING = {
    "claimed": "finishing what older starts left",
    "trying": "finishing what older starts left; {sink} is tried before drop= gives anything up, "
    'which drop=["{sink}@{epoch}"] does at once',
    "prepared": "deciding",
    "decided": "committing",
    "lost": "computing lost parts again",
}


class WaitReporter:
    """Reports, every few seconds, what a long epoch is doing."""

    def __init__(self) -> None:
        self._epoch: int | None = None
        self._doing = ""
        self._since_s: float | None = None
        self._closed = threading.Event()
        self._thread: threading.Thread | None = None

    def listening(self, listener: Listener) -> Listener:
        """Return a listener that records what comes next, and passes every event on."""

        def both(event: Event) -> None:
            if event.kind == "claimed":
                self.began(None)
            if (doing := _DOING.get(event.kind)) is not None:
                self._doing = doing.format(epoch=event.epoch, sink=event.details.get("sink"))
            listener(event)

        return both

    def start(self, tell: Tell) -> None:
        """Start checking the clock; ``tell`` is the coordinator's."""
        self._thread = threading.Thread(
            target=self._run, args=(tell,), name="beadline-wait-reporter", daemon=True
        )
        self._thread.start()

    def began(self, epoch: int | None) -> None:
        """An epoch begins or, with None, a start."""
        self._epoch, self._doing = epoch, "preparing"
        self._since_s = time.monotonic()

    def ended(self) -> None:
        """It has finished, or failed."""
        self._since_s = None

    def close(self) -> None:
        """Stop reporting."""
        self._closed.set()

    def _run(self, tell: Tell) -> None:
        while not self._closed.wait(REPORT_EVERY_S):
            since_s = self._since_s
            if since_s is None:
                continue
            seconds = time.monotonic() - since_s
            if seconds >= REPORT_AFTER_S:
                tell("waiting", self._epoch, doing=self._doing, seconds=round(seconds))
