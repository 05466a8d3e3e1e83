"""What ``start`` was called with, as one value."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True)
class Settings:
    """What ``start`` was called with."""

    checkpoint: str
    every: str | None
    available_now: bool
    output_mode: str
    drop: tuple[str, ...]
    keep: int
    options: dict[str, str] = field(repr=False)  # may hold a secret
