"""Hooks for ``beadline.points.hooked``: what a test does when the code reaches a crash point."""

from __future__ import annotations

import threading
from collections.abc import Callable


def once(point: str, act: Callable[[], None]) -> Callable[[str], None]:
    """Return a hook that acts the first time that the point is reached, on any thread."""
    done = threading.Lock()

    def hook(name: str) -> None:
        if name == point and done.acquire(blocking=False):
            act()

    return hook
