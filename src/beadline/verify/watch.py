"""Readers that read every sink while everything else dies, and compare with what may show.

What shows at the end may be right though it was wrong for a while. So a thread reads all the time,
and once more after each fault; what it finds is noted under the current fault.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from beadline.shared.retry import polls
from beadline.verify import scratch
from beadline.verify.compare import Reference, RunProgress, Violation, ViolationKind, moment

_EVERY_S = 0.4
# A reader may have at most this share of the time: it must not be what slows the job down.
_SHARE = 0.25
_LOOK_AGAIN_S = 0.5
_ERRORS_MAX = 5


def _lost(found: list[Violation]) -> bool:
    return any(each.kind is ViolationKind.LOST for each in found)


def wait_until_stable(
    judge: Callable[[], list[Violation]],
    settle_s: float,
    passing: Callable[[list[Violation]], bool] = bool,
) -> list[Violation]:
    """Judge again while a violation may pass: brokers answer before committed records show."""
    again = polls(settle_s, _LOOK_AGAIN_S)
    while passing(found := judge()) and again():
        pass
    return found


class BackgroundReader:
    """Reads on its own thread, from ``start`` to ``stop``."""

    def __init__(self, name: str) -> None:
        """Name the thread; it does not run yet."""
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)

    def start(self) -> None:
        """Read in the background."""
        self._thread.start()

    def stop(self) -> None:
        """Read no more."""
        self._ended.set()
        if self._thread.is_alive():
            self._thread.join()

    def _run(self) -> None:
        """Read until ``_ended`` is set."""
        raise NotImplementedError


class SinkWatcher(BackgroundReader):
    """Looks at the sinks of one round until it is stopped."""

    def __init__(
        self,
        sinks: Mapping[str, Any],
        references: Mapping[str, Reference],
        progress: Callable[[], RunProgress],
        settle_s: float = 10.0,
    ) -> None:
        """What does not show in ``settle_s`` is lost."""
        super().__init__("verify-watch")
        self._sinks = sinks
        self._references = references
        self._progress = progress
        self._settle_s = settle_s
        self._lock = threading.Lock()
        self.fault = ""
        self.looks = 0
        self.errors: list[str] = []
        self.found: list[tuple[str, Violation]] = []

    def _run(self) -> None:
        while not self._ended.is_set():
            began_s = time.monotonic()
            try:
                self.look()
            except Exception as error:  # noqa: BLE001 (a server is away; the end is read anyway)
                if len(self.errors) < _ERRORS_MAX:
                    self.errors.append(f"{type(error).__name__}: {error}"[:300])
            self._ended.wait(max(_EVERY_S, (time.monotonic() - began_s) / _SHARE))

    def look(self) -> None:
        """Read every sink now."""
        with self._lock:
            for name, sink in self._sinks.items():
                if any(found.sink == name for _, found in self.found):
                    continue  # once wrong, it stays wrong
                before = self._progress()
                found = wait_until_stable(
                    partial(self._judge, name, sink, before), self._settle_s, _lost
                )
                self.found += [(self.fault, each) for each in found]

    def _judge(self, name: str, sink: Any, before: RunProgress) -> list[Violation]:
        reference = self._references[name]
        shown = scratch.shown(name, sink).rows
        after = self._progress()
        if not reference.comparable(before.alike and after.alike):
            return []
        self.looks += 1
        return moment(reference, before.certain, shown, after.decided)
