"""Progress: how far an epoch has been delivered, so that a restart goes on behind that.

One file per query and sink. Its first line says which epoch was begun, with which parts; it is
written, by a rename, before the first row goes out. Then one line is appended and fsynced for every
batch that the receiver has taken. A line that a crash tore was never relied on: its batch goes out
again, and that is the one that may arrive twice.

It also says into how many rows the epoch is cut (``cut``), so that a batch that goes out again has
the same id although the setting was changed. After a refusal nothing is on its way, and a new
setting counts.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, field

from beadline.files import open_files
from beadline.files.local import local_path
from beadline.ids import EpochId
from beadline.points import reach
from beadline.sink import Prepared, Seen, StagedPart
from beadline.sinks.write_ahead.ledger import PROGRESS, StateFiles
from beadline.sinks.write_ahead.records import VERSION, Record, corrupt, read_lines, to_line

Content = dict[int, tuple[int, str]]
ANY_CUT = 0


def content_of(parts: Sequence[Prepared[StagedPart]]) -> Content:
    """By what an epoch is known again: rows and digest of every part, by its partition."""
    return {p.id.partition: (p.committable.rows, p.committable.sha256) for p in parts}


@dataclass
class Progress:
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
    ) -> Progress:
        """Say, durably, that rows of this epoch go out from now on."""
        content = content_of(parts)
        record = {
            "version": VERSION,
            "incarnation": epoch.query.incarnation,
            "epoch": epoch.number,
            "nonce": epoch.nonce,
            "cut": cut,
            "parts": {str(partition): list(what) for partition, what in content.items()},
        }
        uri = files.uri(PROGRESS)
        open_files(uri).write(uri, to_line(record))
        found = cls.read(files)
        assert found is not None
        return found

    @classmethod
    def read(cls, files: StateFiles) -> Progress | None:
        """Read what is there, and cut off what a crash left half-written."""
        uri = files.uri(PROGRESS)
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
    def _read(cls, uri: str, descriptor: int) -> Progress:
        size_bytes = os.fstat(descriptor).st_size
        data = os.pread(descriptor, size_bytes, 0)
        records, whole = read_lines(data, uri)
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
            raise corrupt(uri, "its lines do not say what they should") from None
        return found

    def _take(self, record: Record) -> None:
        if "part" in record:
            self.done[int(record["part"])] = int(record["to"])
        else:
            self.cut = int(record["cut"])

    def advance(self, partition: int, to: int) -> None:
        """The receiver has taken the rows of a part up to this one: make it durable."""
        reach("ledger.before")
        self._append({"part": partition, "to": to})
        reach("ledger.after")

    def recut(self, cut: int) -> None:
        """From here on batches have so many rows; ``ANY_CUT``: as whoever comes next likes."""
        if cut != self.cut:
            self._append({"cut": cut})

    def _append(self, record: Record) -> None:
        line = to_line(record)
        if os.write(self.descriptor, line) != len(line):
            raise OSError(f"{self.uri} could not be written to its end: is the disk full?")
        os.fsync(self.descriptor)
        self.size_bytes += len(line)
        self._take(record)

    def is_current(self) -> bool:
        """Whether nobody else has written since; asked under the lock."""
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
        """Let go of the file."""
        os.close(self.descriptor)
