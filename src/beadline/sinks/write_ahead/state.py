"""State: how far the endpoint has been served, in files, and the lock on them.

One set of files per query and sink, all in one folder::

    <folder>/state/orders~shop.ledger      the newest epoch that was delivered to its end
    <folder>/state/orders~shop.progress    the epoch that was begun, and how far it is
    <folder>/state/orders~shop.lock        who delivers now

Ledger and progress are lines with a checksum, so that a line half-written, or changed afterwards,
is not taken for the truth: eight hex digits, the CRC-32 of the rest, then a JSON object. The last
line of a file that is appended to may be torn by a crash: it was never acknowledged, so it is as if
it were not there. A bad line anywhere else is damage, and what it said is not guessed.

The first line of a progress file says which epoch was begun, with which parts; it is written, by a
rename, before the first row goes out. Then one line is appended and fsynced for every batch that
the endpoint has accepted. The batch of a torn line goes out again, and is the one that may arrive
twice. The file also says into how many rows the epoch is cut (``cut``), so that a batch that goes
out again has the same id although the setting was changed. After a rejection nothing is in flight,
and a new setting counts.

The lock is the operating system's (``flock``): it ends with the process, and it holds between
machines only as far as the file system's locks do.
"""

from __future__ import annotations

import fcntl
import json
import os
import socket
import zlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from beadline.files import join, open_files
from beadline.files.local import local_path
from beadline.shared.locks import wait_for_lock
from beadline.sink import CorruptRecord, EpochId, Prepared, QueryId, Seen, StagedPart, reach

StateLine = dict[str, Any]
Content = dict[int, tuple[int, str]]
_VERSION = 1
_LEDGER = ".ledger"
_PROGRESS = ".progress"
_LOCK = ".lock"
ANY_CUT = 0


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
            "version": _VERSION,
            "incarnation": epoch.query.incarnation,
            "epoch": epoch.number,
            "nonce": epoch.nonce,
            "rows": rows,
            "decided_at_ms": epoch.decided_at_ms,
        }
        open_files(self.folder).write(self.uri(_LEDGER), _to_line(record))

    def finished(self) -> Seen | None:
        """Return the newest epoch that was finished."""
        return _first_record(self.uri(_LEDGER))

    def of_another_incarnation(self, query: QueryId) -> Seen | None:
        """Return what another incarnation of the query left, under any sink's name."""
        found = _of_query(self.folder, query)
        return next((seen for seen in found if seen.incarnation != query.incarnation), None)


def last_seen(folder: str, query: QueryId) -> Seen | None:
    """Return the newest epoch that was finished or begun; another incarnation's first.

    Of an epoch that was begun, the endpoint may have rows: a start without it must be noticed.
    """

    def order(seen: Seen) -> tuple[bool, int]:
        return seen.incarnation != query.incarnation, seen.epoch

    return max(_of_query(folder, query), key=order, default=None)


def _of_query(folder: str, query: QueryId) -> list[Seen]:
    names = sorted(open_files(folder).names(folder))
    found = [
        _first_record(join(folder, name))
        for name in names
        if name.startswith(f"{query.name}~") and name.endswith((_LEDGER, _PROGRESS))
    ]
    return [seen for seen in found if seen is not None]


def _first_record(uri: str) -> Seen | None:
    """Both files begin with a record of an epoch; None if there is no such file."""
    data = open_files(uri).read(uri)
    if data is None:
        return None
    records, _ = _read_lines(data, uri)
    try:
        first = records[0]
        return Seen(str(first["incarnation"]), int(first["epoch"]), str(first["nonce"]))
    except (IndexError, KeyError, TypeError, ValueError):
        raise _corrupt(uri, "it does not begin with a record of an epoch") from None


class Lock:
    """One process, or thread with a lock of its own, delivers at a time."""

    def __init__(self, files: StateFiles) -> None:
        self.path = local_path(files.uri(_LOCK))
        self._file = os.open(self.path, os.O_RDWR | os.O_CREAT, 0o666)

    @contextmanager
    def held(self, timeout_s: float) -> Iterator[bool]:
        """Take the lock, waiting for it; yields False if another process held it all that time."""
        if not wait_for_lock(self._file, timeout_s):
            yield False
            return
        try:
            # For the people who will ask who holds it.
            os.ftruncate(self._file, 0)
            os.pwrite(self._file, f"process {os.getpid()} on {socket.gethostname()}".encode(), 0)
            yield True
        finally:
            fcntl.flock(self._file, fcntl.LOCK_UN)

    @property
    def holder(self) -> str:
        """Who took it last."""
        return os.pread(self._file, 200, 0).decode(errors="replace") or "another process"

    def close(self) -> None:
        """Release the lock, if it is held."""
        os.close(self._file)


def content_of(parts: Sequence[Prepared[StagedPart]]) -> Content:
    """What tells one content of an epoch from another: rows and digest of each partition."""
    return {p.id.partition: (p.committable.rows, p.committable.sha256) for p in parts}


@dataclass
class DeliveryProgress:
    """The epoch that was begun. Use it only while holding the lock."""

    uri: str
    seen: Seen
    content: Content
    cut: int
    done: dict[int, int] = field(default_factory=dict)
    size_bytes: int = 0
    # Kept open: a file of the same number must be the same file.
    descriptor: int = -1

    @classmethod
    def begin(
        cls, files: StateFiles, epoch: EpochId, parts: Sequence[Prepared[StagedPart]], cut: int
    ) -> DeliveryProgress:
        """Say, durably, that rows of this epoch go out from now on."""
        content = content_of(parts)
        record = {
            "version": _VERSION,
            "incarnation": epoch.query.incarnation,
            "epoch": epoch.number,
            "nonce": epoch.nonce,
            "cut": cut,
            "parts": {str(partition): list(what) for partition, what in content.items()},
        }
        uri = files.uri(_PROGRESS)
        open_files(uri).write(uri, _to_line(record))
        found = cls.read(files)
        assert found is not None
        return found

    @classmethod
    def read(cls, files: StateFiles) -> DeliveryProgress | None:
        """Read what is there, and cut off what a crash left half-written."""
        uri = files.uri(_PROGRESS)
        try:
            descriptor = os.open(local_path(uri), os.O_RDWR | os.O_APPEND)
        except FileNotFoundError:
            return None
        try:
            return cls._read(uri, descriptor)
        except BaseException:
            os.close(descriptor)
            raise

    @classmethod
    def _read(cls, uri: str, descriptor: int) -> DeliveryProgress:
        size_bytes = os.fstat(descriptor).st_size
        data = os.pread(descriptor, size_bytes, 0)
        records, whole = _read_lines(data, uri)
        if whole < size_bytes:
            os.ftruncate(descriptor, whole)  # or the next line would be glued to it
        try:
            first = records[0]
            seen = Seen(str(first["incarnation"]), int(first["epoch"]), str(first["nonce"]))
            content = {int(key): (int(v[0]), str(v[1])) for key, v in first["parts"].items()}
            found = cls(uri, seen, content, int(first["cut"]), {}, whole, descriptor)
            for record in records[1:]:
                found._take(record)
        except (IndexError, KeyError, TypeError, ValueError, AttributeError):
            raise _corrupt(uri, "its lines are malformed") from None
        return found

    def _take(self, record: StateLine) -> None:
        if "part" in record:
            self.done[int(record["part"])] = int(record["to"])
        else:
            self.cut = int(record["cut"])

    def advance(self, partition: int, to: int) -> None:
        """The endpoint has accepted the rows of a part up to this one: make it durable."""
        reach("ledger.before")
        self._append({"part": partition, "to": to})
        reach("ledger.after")

    def recut(self, cut: int) -> None:
        """From here on batches have ``cut`` rows; ``ANY_CUT``: as ``batch_rows`` says next time."""
        if cut != self.cut:
            self._append({"cut": cut})

    def _append(self, record: StateLine) -> None:
        line = _to_line(record)
        if os.write(self.descriptor, line) != len(line):
            raise OSError(f"{self.uri} could not be written to its end: is the disk full?")
        os.fsync(self.descriptor)
        self.size_bytes += len(line)
        self._take(record)

    def is_current(self) -> bool:
        """Whether no other process has written since; asked under the lock."""
        try:
            found = os.stat(local_path(self.uri))
        except FileNotFoundError:
            return False
        ours = os.fstat(self.descriptor)
        same = (found.st_dev, found.st_ino) == (ours.st_dev, ours.st_ino)
        return same and found.st_size == self.size_bytes

    def remove(self) -> None:
        """The ledger has the epoch now."""
        open_files(self.uri).delete(self.uri)

    def close(self) -> None:
        """Close the file, which stays."""
        os.close(self.descriptor)


def _to_line(record: StateLine) -> bytes:
    """Return the stored form, with its newline."""
    text = json.dumps(record, separators=(",", ":"), sort_keys=True).encode()
    return b"%08x %s\n" % (zlib.crc32(text), text)


def _from_line(line: bytes) -> StateLine | None:
    """Read a line without its newline; None if it is not whole."""
    if len(line) < 10 or line[8:9] != b" " or line[:8] != b"%08x" % zlib.crc32(line[9:]):
        return None
    try:
        record = json.loads(line[9:])
    except ValueError:
        return None
    return record if isinstance(record, dict) else None


def _read_lines(data: bytes, where: str) -> tuple[list[StateLine], int]:
    """Return the records, and how many bytes of the data they take; a torn end is left out."""
    records: list[StateLine] = []
    whole = 0
    while whole < len(data):
        end = data.find(b"\n", whole)
        record = _from_line(data[whole:end]) if end >= 0 else None
        if record is None:
            if end >= 0 and end + 1 < len(data):
                raise _corrupt(where, f"its line at byte {whole} is damaged")
            break
        records.append(record)
        whole = end + 1
    if records and records[0].get("version") != _VERSION:
        raise _corrupt(where, "it was written by another version of Beadline")
    return records, whole


def _corrupt(where: str, what: str) -> CorruptRecord:
    """The error for one of these files that cannot be trusted."""
    return CorruptRecord(
        f"{where} cannot be used: {what}. It says how far the endpoint has been served, so "
        "nothing was delivered. Restore it; or, if rows may be delivered a second time, delete it "
        "and start again."
    )
