"""``WriteAheadSink``: rows are durable first, and delivered to anything at all afterwards.

``sink`` is what is refused, staged and promised; ``commit`` delivers an epoch, batch by batch;
``state`` is what is remembered of that in files; ``endpoint`` is what a user writes, a function or
an ``Endpoint``, and ``http_endpoint`` the one that is built in.
"""

from __future__ import annotations

from beadline.sinks.write_ahead.endpoint import AlreadyTaken, Delivery, Endpoint, Rejected, TryAgain
from beadline.sinks.write_ahead.http_endpoint import HttpEndpoint
from beadline.sinks.write_ahead.sink import WriteAheadSink

__all__ = [
    "AlreadyTaken",
    "Delivery",
    "Endpoint",
    "HttpEndpoint",
    "Rejected",
    "TryAgain",
    "WriteAheadSink",
]
