"""What the server has acknowledged, kept beside the staged parts, so that a loss is noticed.

A Redis that lost its newest writes, or all, or was restored from a backup, would take the next
epoch silently. So the number of the newest epoch that it acknowledged is kept in a small file, and
compared with its ledger before each commit and at each start. The file is never ahead; it is read
before the ledger, as another driver may advance both in between.

Neither file nor folder knows the server's address: a replica that took over has another one, and
must be asked the same question. Nor could an address tell a server from one that replaced it. What
identifies it is what it holds.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from beadline.files import join, open_files
from beadline.sink import QueryId
from beadline.sinks.redis.ledger import Entry

NO_EPOCH = -1  # before the first epoch
_END = ".acknowledged"
_SEPARATOR = "~"


def acknowledged(folders: Iterable[str], query: QueryId, sink: str) -> int | None:
    """Return the newest epoch that was acknowledged, or ``NO_EPOCH``; None if nothing is known."""
    read = (open_files(folder).read(join(folder, _name(query, sink))) for folder in folders)
    found = [int(data) for data in read if data and re.fullmatch(rb"-1|\d+", data)]
    return max(found, default=None)


def remember(folder: str, query: QueryId, sink: str, epoch: int) -> None:
    """Keep an epoch's number, unless a newer one is kept."""
    known = acknowledged((folder,), query, sink)
    if known is None or epoch > known:
        files = open_files(folder)
        files.make_folder(folder)
        files.write(join(folder, _name(query, sink)), b"%d" % epoch)


def is_lost(newest: int | None, held: Entry | None, opened: bool) -> bool:
    """Whether an epoch that was acknowledged, or the mark of ``RedisSink.open``, is missing.

    ``newest`` is what it acknowledged; ``held`` is the ledger's entry, and ``opened`` whether the
    mark of ``RedisSink.open`` is there.
    """
    if newest is None:
        return False
    if held is None:
        return newest >= 0 or not opened
    return newest > held.epoch or (newest == held.epoch and not held.complete)


def loss(where: str, newest: int | None, held: Entry | None) -> str:
    """Say that the server has less than it once acknowledged; the caller adds what that means."""
    none = newest is None or newest < 0
    did = "was opened for this query" if none else f"has acknowledged epoch {newest}"
    has = f"epoch {held.epoch}" if held else "nothing of this query"
    if held is not None and not held.complete:
        has += " in part"
    return (
        f"{where} {did} and now holds {has}: it lost what it had acknowledged (restarted without "
        "its log, flushed, restored from an old backup, or a replica took over that had not "
        "received it), or it is another server. Restore it, or give the address of the right one; "
        "or start over, with the target emptied and a new checkpoint; or accept the loss with "
        "on_loss='continue', until the next epoch is there."
    )


def _name(query: QueryId, sink: str) -> str:
    return _SEPARATOR.join((query.name, query.incarnation, sink)) + _END
