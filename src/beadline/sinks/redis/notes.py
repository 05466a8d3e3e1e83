"""What was acknowledged, noted beside the staged parts: so that a loss does not go unnoticed.

A Redis that lost its newest writes, or all, or was restored from a backup, would take the next
epoch without a word. So the number of the newest epoch that it acknowledged is kept in a small
file, and compared with its ledger before each commit and at each start. The file is never ahead.
"""

from __future__ import annotations

from collections.abc import Iterator

from beadline.files import join, open_files
from beadline.ids import QueryId

_END = ".acknowledged"
_SEPARATOR = "~"


def noted(folder: str, query: QueryId, sink: str) -> int:
    """Return the newest epoch that was acknowledged; -1 if none is known."""
    data = open_files(folder).read(join(folder, _name(query, sink)))
    return int(data) if data and data.isdigit() else -1


def note(folder: str, query: QueryId, sink: str, epoch: int) -> None:
    """Keep an epoch's number, unless a newer one is kept."""
    if epoch > noted(folder, query, sink):
        files = open_files(folder)
        files.make_folder(folder)
        files.write(join(folder, _name(query, sink)), b"%d" % epoch)


def all_noted(folder: str, query: QueryId) -> Iterator[tuple[str, int]]:
    """Yield every sink of which something is noted for this query, with its epoch."""
    begin = _SEPARATOR.join((query.name, query.incarnation, ""))
    for name in open_files(folder).names(folder):
        if name.startswith(begin) and name.endswith(_END):
            sink = name[len(begin) : -len(_END)]
            yield sink, noted(folder, query, sink)


def _name(query: QueryId, sink: str) -> str:
    return _SEPARATOR.join((query.name, query.incarnation, sink)) + _END
