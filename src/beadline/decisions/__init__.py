"""The decision log: dense numbered slots for which claims and decisions compete."""

from __future__ import annotations

from beadline.decisions.log import KEEP_DEFAULT, DecisionLog, LogState
from beadline.decisions.record import (
    Claim,
    Decision,
    Pointer,
    Record,
    SinkHistory,
    StoredPart,
)
from beadline.decisions.store import FileStore, Store

__all__ = [
    "KEEP_DEFAULT",
    "Claim",
    "Decision",
    "DecisionLog",
    "FileStore",
    "LogState",
    "Pointer",
    "Record",
    "SinkHistory",
    "Store",
    "StoredPart",
]
