"""What was acknowledged, noted beside the staged parts: so that a loss does not go unnoticed.

A Redis that lost its newest writes, or all, or was restored from a backup, would take the next
epoch without a word. So the number of the newest epoch that it acknowledged is kept in a small
file, and compared with its ledger before each commit and at each start. The file is never ahead;
who compares reads it before the ledger, as another driver may move both on in between.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from beadline.files import join, open_files
from beadline.ids import QueryId

OPENED = -1  # before the first epoch
_END = ".acknowledged"
_SEPARATOR = "~"


def noted(folders: Iterable[str], query: QueryId, sink: str) -> int | None:
    """Return the newest epoch that was acknowledged, or ``OPENED``; None if nothing is known."""
    read = (open_files(folder).read(join(folder, _name(query, sink))) for folder in folders)
    found = [int(data) for data in read if data and re.fullmatch(rb"-1|\d+", data)]
    return max(found, default=None)


def note(folder: str, query: QueryId, sink: str, epoch: int) -> None:
    """Keep an epoch's number, unless a newer one is kept."""
    known = noted((folder,), query, sink)
    if known is None or epoch > known:
        files = open_files(folder)
        files.make_folder(folder)
        files.write(join(folder, _name(query, sink)), b"%d" % epoch)


def _name(query: QueryId, sink: str) -> str:
    return _SEPARATOR.join((query.name, query.incarnation, sink)) + _END
