"""Epoch events: what the coordinator did, reported to listeners."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Event:
    """One thing that happened to one query; ``kind`` is a word of the protocol."""

    kind: str
    query: str
    generation: int
    epoch: int | None = None
    details: dict[str, Any] = field(default_factory=dict)
    at_ms: int = field(default_factory=lambda: int(time.time() * 1000))


Listener = Callable[[Event], None]
Tell = Callable[..., None]  # the kind of event, its epoch, and what is to be said of it


def ignore(event: Event) -> None:
    """Listen to nothing."""
