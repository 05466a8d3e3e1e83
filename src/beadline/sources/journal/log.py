"""The journal: what arrived, in files, durable before it is offered to Spark.

Records follow each other in segments, files that are named by the position at which they begin, the
bytes that were written before, and by that at which the segment before ended. A position is durable
when everything before it is on the disk; only such positions are offered to Spark. After a crash
the last segment may end in torn records, which were never acknowledged: they are cut off when the
journal is opened again, and their positions are never used again, so that none ever stands for
two values.

After a failed write (a full disk), it is not known what the file holds beyond its durable end, nor
whether a later fsync would report it. So nothing is ever written there: the file is cut back, and
the next values go into a new segment. What was appended and not synced is not in the journal;
``sync`` raises, so that it is not acknowledged.

record = length of the value, CRC-32 of the rest, microseconds since 1970, value
"""

from __future__ import annotations

import itertools
import logging
import os
import struct
import threading
import time
import zlib
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from beadline.errors import BeadlineError
from beadline.files.local import sync_path
from beadline.points import reach
from beadline.shared.locks import wait_for_lock

logger = logging.getLogger("beadline")

SEGMENT_BYTES = 64 << 20
BUFFER_BYTES_MAX = 16 << 20  # more than this is written out before the next sync
VALUE_BYTES_MAX = 512 << 20
LOCK_TIMEOUT_S = 30.0
_SUFFIX = ".journal"
_LOCK = "lock"
_HEAD = struct.Struct(">IIq")


class JournalProblem(BeadlineError):
    """The journal cannot be written or read."""


@dataclass(frozen=True)
class JournalRecord:
    """One value, where it stands, and when it arrived."""

    position: int
    received_us: int
    value: bytes


@dataclass(frozen=True, order=True)
class Segment:
    """A file of records: its first position, and where the one before it ended."""

    first: int
    after: int
    path: Path

    @property
    def end(self) -> int:
        """The position behind its last byte."""
        return self.first + self.path.stat().st_size


def segments(folder: Path) -> list[Segment]:
    """The segments that are there, oldest first."""
    named = [(path.stem.split("-"), path) for path in folder.glob(f"*-*{_SUFFIX}")]
    return sorted(Segment(int(first), int(after), path) for (first, after), path in named)


def read(folder: Path, start: int, end: int) -> Iterator[JournalRecord]:
    """Yield the records between two positions; raises where one is missing or damaged."""
    at = start
    for segment in segments(folder):
        if at == segment.after and at < end:
            at = segment.first  # what is left out in between was torn off by a crash
        if not segment.first <= at < end:
            continue
        stop = min(end, segment.end)
        with segment.path.open("rb") as file:
            file.seek(at - segment.first)
            while at < stop:
                record = _next(file, at, segment.path)
                yield record
                at += _HEAD.size + len(record.value)
    if at != end:
        raise JournalProblem(
            f"journal {folder}: records from position {at} to {end} are gone. The checkpoint needs "
            "them: put the files back, or start over with a new checkpoint."
        )


def _next(file: BinaryIO, at: int, path: Path) -> JournalRecord:
    head = file.read(_HEAD.size)
    if len(head) == _HEAD.size:
        length, checksum, received_us = _HEAD.unpack(head)
        value = file.read(length) if length <= VALUE_BYTES_MAX else b""
        if len(value) == length and zlib.crc32(value, zlib.crc32(head[8:])) == checksum:
            return JournalRecord(at, received_us, value)
    raise JournalProblem(f"{path}: the record at position {at} is damaged. Nothing was skipped.")


def _packed(value: bytes, received_us: int) -> bytes:
    """Return a value as it stands in the file."""
    when = struct.pack(">q", received_us)
    checksum = zlib.crc32(value, zlib.crc32(when))
    return struct.pack(">II", len(value), checksum) + when + value


def _cut(path: Path) -> int:
    """Cut off the torn end of a segment; return the size of what is whole."""
    whole = 0
    with path.open("rb+") as file:
        size = os.fstat(file.fileno()).st_size
        while whole < size:
            try:
                record = _next(file, whole, path)
            except JournalProblem:
                break
            whole += _HEAD.size + len(record.value)
        file.truncate(whole)
        os.fsync(file.fileno())
    return whole


class Journal:
    """A journal that is written: by one process at a time, which a lock on its folder ensures."""

    _file: int
    _path: Path
    _first: int
    _after: int
    _written: int
    _durable: int

    def __init__(self, folder: Path, segment_bytes: int = SEGMENT_BYTES) -> None:
        """Lock the folder, waiting for its owner, and cut off what a crash left incomplete."""
        self.folder = folder
        self.stopping = threading.Event()
        self.problem: BaseException | None = None  # why the newest values are not in the journal
        self._segment_bytes = segment_bytes
        # Our own, not Python's: that one would write what failed once more, on close.
        self._buffer = bytearray()
        self._segment_due = False  # the next values go into a new segment
        self._lost = False  # values that ``append`` took are gone, and ``sync`` has not reported it
        self._closed = False
        folder.mkdir(parents=True, exist_ok=True)
        self._lock = _locked(folder)
        self._writing = threading.Lock()
        try:
            self._begin_segment(*self._next_position())
        except BaseException:
            os.close(self._lock)  # or a second try would wait for this one
            raise

    @property
    def durable(self) -> int:
        """The position up to which everything is on the disk."""
        return self._durable

    def append(self, value: bytes) -> None:
        """Append one value. It counts once the next ``sync`` has returned without raising."""
        if len(value) > VALUE_BYTES_MAX:
            raise JournalProblem(f"a value of {len(value)} bytes is too large for the journal")
        record = _packed(value, time.time_ns() // 1000)
        with self._writing:
            self._check_open()
            others = self._written + len(self._buffer) > self._durable
            self._buffer += record
            if len(self._buffer) > BUFFER_BYTES_MAX:
                with self._failing(others):
                    self._write_out()

    def sync(self) -> int:
        """Make everything durable that was appended; return the position. Then acknowledge.

        If it raises, nothing that was appended since the last sync is in the journal.
        """
        with self._writing:
            self._check_open()
            self._check_lost()
            if self._buffer or self._written > self._durable:
                with self._failing():
                    self._write_out()
                    reach("journal.written")
                    os.fsync(self._file)
                self._durable = self._written
                self.problem = None
                reach("journal.synced")
                # With the next value: a segment that cannot be made is no failure of this sync.
                self._segment_due = self._durable - self._first >= self._segment_bytes
            return self._durable

    def forget(self, before: int) -> None:
        """Delete the segments that end at or before a position."""
        found = segments(self.folder)
        for segment, following in itertools.pairwise(found):
            if following.first <= before:
                reach("journal.forget")
                segment.path.unlink(missing_ok=True)

    def close(self) -> None:
        """Make what is there durable, and release the folder's lock."""
        self.stopping.set()
        try:
            self.sync()
        finally:
            with self._writing:
                self._closed = True
                os.close(self._file)
                os.close(self._lock)

    def _check_open(self) -> None:
        if self._closed:
            raise JournalProblem(f"journal {self.folder} is closed: its query has ended")

    def _check_lost(self) -> None:
        """Raise it again: the caller that acknowledges may not have seen it."""
        if self._lost:
            with self._failing():
                self._lost = False
                raise JournalProblem(
                    f"journal {self.folder}: an append failed, and what was appended before it and "
                    "not synced is lost with it. Do not acknowledge it; have it sent again."
                ) from self.problem

    @contextmanager
    def _failing(self, others: bool = False) -> Iterator[None]:
        """On any error: forget what is not durable, and write nothing more behind it.

        ``others``: values are lost that this error does not report.
        """
        try:
            yield
        except BaseException as error:
            self.problem = error
            self._buffer.clear()
            self._written = self._durable
            self._segment_due = True
            self._lost = self._lost or others
            with suppress(OSError):  # tried again before the next segment begins
                self._cut_back()
            raise

    def _write_out(self) -> None:
        """Hand the buffer to the operating system, all of it."""
        if self._segment_due:
            self._begin_next_segment()
        left = memoryview(bytes(self._buffer))
        while left:
            left = left[os.write(self._file, left) :]
        self._written += len(self._buffer)
        self._buffer.clear()

    def _cut_back(self) -> None:
        os.ftruncate(self._file, self._durable - self._first)
        os.fsync(self._file)

    def _begin_next_segment(self) -> None:
        """Continue in a new segment, after what is durable; any error keeps the old one."""
        self._cut_back()
        if self._durable == self._first:  # the same positions: there must not be two such files
            self._path.unlink(missing_ok=True)
            start = (self._first, self._after)
        else:
            start = (self._durable, self._durable)
        old = self._file
        self._begin_segment(*start)
        os.close(old)
        self._segment_due = False

    def _next_position(self) -> tuple[int, int]:
        """Where the next segment begins, after all that was written, and where the whole ends."""
        found = segments(self.folder)
        if not found:
            return 0, 0
        last, end = found[-1], found[-1].end
        if last.first == end:
            last.path.unlink()
            return last.first, last.after
        whole = last.first + _cut(last.path)
        if whole < end:
            logger.warning("%s: %s torn bytes of a crash were cut off", last.path, end - whole)
        return end, whole

    def _begin_segment(self, first: int, after: int) -> None:
        path = self.folder / f"{first:020d}-{after:020d}{_SUFFIX}"
        file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o644)
        try:
            reach("journal.segment")
            sync_path(self.folder)
        except OSError:
            os.close(file)
            path.unlink(missing_ok=True)  # empty; a next try makes it again
            raise
        self._file, self._path = file, path
        self._after = after
        self._first = self._written = self._durable = first


def _locked(folder: Path) -> int:
    """A second writer would offer other records under the same positions."""
    descriptor = os.open(folder / _LOCK, os.O_RDWR | os.O_CREAT, 0o644)
    if wait_for_lock(descriptor, LOCK_TIMEOUT_S):
        return descriptor
    os.close(descriptor)
    raise JournalProblem(
        f"journal {folder} is being written by another process. Each query needs a journal of its "
        "own; an older start of this one must be stopped first."
    )
