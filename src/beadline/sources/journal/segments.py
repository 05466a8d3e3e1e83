"""The journal's files: segments of records, as they are read and cut.

record = length of the value, CRC-32 of the rest, microseconds since 1970, value
"""

from __future__ import annotations

import os
import struct
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from beadline.errors import BeadlineError

VALUE_BYTES_MAX = 512 << 20
SUFFIX = ".journal"
_HEAD = struct.Struct(">IIq")


class JournalProblem(BeadlineError):
    """The journal cannot be written or read."""


@dataclass(frozen=True)
class Record:
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
    named = [(path.stem.split("-"), path) for path in folder.glob(f"*-*{SUFFIX}")]
    return sorted(Segment(int(first), int(after), path) for (first, after), path in named)


def read(folder: Path, start: int, end: int) -> Iterator[Record]:
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


def _next(file: BinaryIO, at: int, path: Path) -> Record:
    head = file.read(_HEAD.size)
    if len(head) == _HEAD.size:
        length, checksum, received_us = _HEAD.unpack(head)
        value = file.read(length) if length <= VALUE_BYTES_MAX else b""
        if len(value) == length and zlib.crc32(value, zlib.crc32(head[8:])) == checksum:
            return Record(at, received_us, value)
    raise JournalProblem(f"{path}: the record at position {at} is damaged. Nothing was skipped.")


def packed(value: bytes, received_us: int) -> bytes:
    """Return a value as it stands in the file."""
    when = struct.pack(">q", received_us)
    checksum = zlib.crc32(value, zlib.crc32(when))
    return struct.pack(">II", len(value), checksum) + when + value


def cut(path: Path) -> int:
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
