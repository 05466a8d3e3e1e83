"""The ledger: which epoch was finished last; and the lock that lets one process deliver at a time.

Both are files in one folder, beside the progress of the epoch that is being delivered, one set per
query and sink::

    <folder>/state/orders~shop.ledger      the newest epoch that was delivered to its end
    <folder>/state/orders~shop.progress    the epoch that was begun, and how far it is
    <folder>/state/orders~shop.lock        who delivers now

The lock is the operating system's (``flock``): it ends with the process, and it holds between
machines only as far as the file system's locks do.
"""

from __future__ import annotations

import errno
import fcntl
import os
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from beadline.files import join, open_files
from beadline.files.local import local_path
from beadline.ids import EpochId, QueryId
from beadline.sink import Seen
from beadline.sinks.write_ahead.records import VERSION, corrupt, read_lines, to_line

LEDGER = ".ledger"
PROGRESS = ".progress"
LOCK = ".lock"
_POLL_S = 0.01
_BUSY = (errno.EAGAIN, errno.EACCES)


@dataclass(frozen=True)
class StateFiles:
    """The files of one query and sink."""

    folder: str
    query: str
    sink: str

    def uri(self, suffix: str) -> str:
        """Return one of them; "~" cannot occur in a name."""
        return join(self.folder, f"{self.query}~{self.sink}{suffix}")

    def make(self) -> None:
        """Make the folder."""
        open_files(self.folder).make_folder(self.folder)

    def write_ledger(self, epoch: EpochId, rows: int) -> None:
        """Say that the epoch is finished: temporary file, fsync, rename, fsync of the folder."""
        record = {
            "version": VERSION,
            "incarnation": epoch.query.incarnation,
            "epoch": epoch.number,
            "nonce": epoch.nonce,
            "rows": rows,
            "decided_at_ms": epoch.decided_at_ms,
        }
        open_files(self.folder).write(self.uri(LEDGER), to_line(record))

    def finished(self) -> Seen | None:
        """Return the newest epoch that was finished."""
        return _first_record(self.uri(LEDGER))

    def strangers(self, query: QueryId) -> Seen | None:
        """Return what another incarnation of the query left, under this sink's name or another."""
        found = _of_query(self.folder, query)
        return next((seen for seen in found if seen.incarnation != query.incarnation), None)


def last_seen(folder: str, query: QueryId) -> Seen | None:
    """Return the newest epoch that was finished or begun; another incarnation's first.

    Of an epoch that was begun, the receiver may have rows: a start without it must be noticed.
    """

    def order(seen: Seen) -> tuple[bool, int]:
        return seen.incarnation != query.incarnation, seen.epoch

    return max(_of_query(folder, query), key=order, default=None)


def _of_query(folder: str, query: QueryId) -> list[Seen]:
    names = sorted(open_files(folder).names(folder))
    found = [
        _first_record(join(folder, name))
        for name in names
        if name.startswith(f"{query.name}~") and name.endswith((LEDGER, PROGRESS))
    ]
    return [seen for seen in found if seen is not None]


def _first_record(uri: str) -> Seen | None:
    """Both files begin with a record of an epoch; None if there is no such file."""
    data = open_files(uri).read(uri)
    if data is None:
        return None
    records, _ = read_lines(data, uri)
    try:
        first = records[0]
        return Seen(str(first["incarnation"]), int(first["epoch"]), str(first["nonce"]))
    except (IndexError, KeyError, TypeError, ValueError):
        raise corrupt(uri, "it does not begin with a record of an epoch") from None


class Lock:
    """One process, or thread with a lock of its own, delivers at a time."""

    def __init__(self, files: StateFiles) -> None:
        self.path = local_path(files.uri(LOCK))
        self._file = os.open(self.path, os.O_RDWR | os.O_CREAT, 0o666)

    @contextmanager
    def held(self, timeout_s: float) -> Iterator[bool]:
        """Take the lock, waiting so long; gives False if somebody else has it all that time."""
        deadline_s = time.monotonic() + timeout_s
        while not self._try():
            if time.monotonic() >= deadline_s:
                yield False
                return
            time.sleep(_POLL_S)
        try:
            # For the people who will ask who holds it.
            os.ftruncate(self._file, 0)
            os.pwrite(self._file, f"process {os.getpid()} on {socket.gethostname()}".encode(), 0)
            yield True
        finally:
            fcntl.flock(self._file, fcntl.LOCK_UN)

    def _try(self) -> bool:
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            if error.errno in _BUSY:
                return False
            raise
        return True

    @property
    def holder(self) -> str:
        """Who wrote his name in it last."""
        return os.pread(self._file, 200, 0).decode(errors="replace") or "another process"

    def close(self) -> None:
        """Give it up."""
        os.close(self._file)
