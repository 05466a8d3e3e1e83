"""``WriteAheadSink``: rows are durable first, and delivered to anything at all afterwards.

One job per module::

    sink           the sink: what is refused, staged, promised
    epoch          one commit: round by round, under the lock, looking at what is done before each
    rounds         one round: batches handed over, and what is made of the answers
    lanes          the batches of a part, cut from its file
    receiver       what a user writes: a function or a ``Receiver``, given ``Delivery`` objects
    http_receiver  ``HttpReceiver``, the one that is built in
    json_rows      rows as JSON
    progress       how far an epoch has been delivered: an append-only file
    ledger         which epoch was finished last; the lock that lets one process deliver at a time
    records        lines with a checksum, of which both files are made
    readable       rows that no receiver could be given, found while nothing is decided
"""

from __future__ import annotations

from beadline.sinks.write_ahead.http_receiver import HttpReceiver
from beadline.sinks.write_ahead.receiver import AlreadyTaken, Delivery, Receiver, Refused, TryAgain
from beadline.sinks.write_ahead.sink import WriteAheadSink

__all__ = [
    "AlreadyTaken",
    "Delivery",
    "HttpReceiver",
    "Receiver",
    "Refused",
    "TryAgain",
    "WriteAheadSink",
]
