"""End-to-end exactly-once for PySpark Structured Streaming.

from beadline import exactly_once
from beadline.sinks import FileSink

query = exactly_once(orders, name="orders").to(FileSink("out")).start(checkpoint="checkpoint")
"""

from __future__ import annotations

from beadline.environment.session import session
from beadline.errors import BeadlineError
from beadline.sink import (
    Capabilities,
    CommitResult,
    FrameSink,
    Guarantee,
    Outcome,
    Part,
    Prepared,
    Seen,
    Sink,
)
from beadline.stream import Stream, at_least_once, exactly_once

__all__ = [
    "BeadlineError",
    "Capabilities",
    "CommitResult",
    "FrameSink",
    "Guarantee",
    "Outcome",
    "Part",
    "Prepared",
    "Seen",
    "Sink",
    "Stream",
    "at_least_once",
    "exactly_once",
    "session",
]
__version__ = "0.1.0"
