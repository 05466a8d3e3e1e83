"""For tests, Beadline's own and its users': real servers, and suites that a sink must pass."""

from __future__ import annotations

from beadline.testing.epochs import CRASH, EpochsRun, run_epochs

__all__ = ["CRASH", "EpochsRun", "run_epochs"]
