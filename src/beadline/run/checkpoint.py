"""Spark's own checkpoint, as far as the protocol reads it.

It is never written from here; one kind of leaving is taken away, over which Spark would not start.
"""

from __future__ import annotations

import hashlib
import re
from typing import TYPE_CHECKING

from beadline.files import FileSystem, join, open_files

if TYPE_CHECKING:
    from beadline.run.source_topics import SourceTopics

# Of an epoch's number; with a second dot, Hadoop's checksum of such a file.
_UNFINISHED = re.compile(r"\.{1,2}\d+\.(.+\.)?(tmp|crc)")
LOG_FOLDER = "beadline/log"  # below the checkpoint, beside Spark's own folders


class SparkProgress:
    """Reads ``offsets/`` and ``commits/`` of one checkpoint."""

    def __init__(
        self,
        checkpoint: str,
        files: FileSystem | None = None,
        topics: SourceTopics | None = None,
    ) -> None:
        """``checkpoint`` is a qualified URI; ``topics`` are those of the query's sources."""
        self._checkpoint = checkpoint
        self.topics = topics
        self._files = files or open_files(checkpoint)

    def last_committed(self) -> int:
        """Return the last epoch that Spark will never give again; -1 for none."""
        names = self._files.names(join(self._checkpoint, "commits"))
        return max((int(name) for name in names if name.isdigit()), default=-1)

    def offsets(self, epoch: int) -> str | None:
        """Return the digest of Spark's offsets of an epoch, or None if it was never planned."""
        data = self._files.read(join(self._checkpoint, "offsets", str(epoch)))
        return None if data is None else hashlib.sha256(data).hexdigest()

    def sources(self) -> dict[str, str]:
        """Return which instance of each source is read now; see ``Progress``."""
        return {} if self.topics is None else self.topics.now()

    def forget_unfinished(self) -> None:
        """Remove the beginnings of a first epoch's offsets; only after our own claim.

        Spark writes offsets under a hidden name and renames them. Since 4.1 it refuses to begin
        where the folder of the offsets has no epoch and is not empty, so a death in just that
        moment would stop the query for good. Whoever still writes there fails, and was fenced.
        """
        folder = join(self._checkpoint, "offsets")
        names = self._files.names(folder)
        if all(_UNFINISHED.fullmatch(name) for name in names):
            for name in names:
                self._files.delete(join(folder, name))

    def sync(self, epoch: int) -> None:
        """Make durable what the decision of an epoch rests on; Spark leaves it in the cache.

        Otherwise a power cut could leave a decision of an epoch that Spark has never heard of. On
        other file systems a closed file is as durable as it gets.
        """
        if not self._checkpoint.startswith("file:"):
            return
        paths = [f"offsets/{epoch}"]
        if self._files.exists(join(self._checkpoint, "commits", str(epoch - 1))):
            paths.append(f"commits/{epoch - 1}")
        for source in self._files.names(join(self._checkpoint, "sources")):
            entries = self._files.names(join(self._checkpoint, "sources", source))
            numbered = [e for e in entries if e.removesuffix(".compact").isdigit()]
            if numbered:
                newest = max(numbered, key=lambda entry: int(entry.removesuffix(".compact")))
                paths.append(f"sources/{source}/{newest}")
        self._files.sync_files(self._checkpoint, paths)
