"""Several calls at once, not on the thread that Spark may interrupt."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Protocol, TypeVar

T = TypeVar("T")


class Helpers(Protocol):
    """How the protocol runs several things at once."""

    def run_all(self, calls: Sequence[Callable[[], T]]) -> list[T]:
        """Run every call to its end, then return the results or raise the first error."""

    def stopping(self) -> bool:
        """Whether the query is being stopped."""


class InOrder:
    """Runs calls one after the other, for model tests."""

    def run_all(self, calls: Sequence[Callable[[], T]]) -> list[T]:
        """Run the calls in order."""
        return [call() for call in calls]

    def stopping(self) -> bool:
        """Never."""
        return False


class Threads:
    """Runs calls on threads of Beadline's own."""

    def __init__(self, stopping: Callable[[], bool] = lambda: False) -> None:
        """``stopping`` is asked while an unknown outcome is waited for."""
        self.stopping = stopping
        self._pool = ThreadPoolExecutor(max_workers=16, thread_name_prefix="beadline")

    def run_all(self, calls: Sequence[Callable[[], T]]) -> list[T]:
        """Run the calls at once; every one ends before the first error is raised."""
        futures = [self._pool.submit(call) for call in calls]
        for future in futures:
            future.exception()
        return [future.result() for future in futures]

    def close(self) -> None:
        """End the threads."""
        self._pool.shutdown(wait=False)
