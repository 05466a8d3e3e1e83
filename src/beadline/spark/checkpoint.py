"""Spark's own checkpoint, as far as the protocol reads it.

It is never written from here; only one kind of leftover is removed, with which Spark would not
start.
"""

from __future__ import annotations

import hashlib
import re
from typing import TYPE_CHECKING

from py4j.protocol import Py4JError

from beadline.errors import PlannedByAnother
from beadline.files import FileSystem, join, open_files

if TYPE_CHECKING:
    from pyspark.sql.streaming.query import StreamingQuery

    from beadline.sources.kafka.topics import SourceTopics

# Of an epoch's number; the second alternative is Hadoop's checksum of such a file.
_UNFINISHED = re.compile(r"\.{1,2}\d+\.(.+\.)?(tmp|crc)")


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
        """Return the last epoch that Spark never redelivers; -1 for none."""
        names = self._files.names(join(self._checkpoint, "commits"))
        return max((int(name) for name in names if name.isdigit()), default=-1)

    def offsets(self, epoch: int) -> str | None:
        """Return the digest of Spark's offsets of an epoch, or None if it was never planned."""
        data = self._files.read(join(self._checkpoint, "offsets", str(epoch)))
        return None if data is None else hashlib.sha256(data).hexdigest()

    def sources(self) -> dict[str, str]:
        """Return which instance of each source is read now; see ``Progress``."""
        return {} if self.topics is None else self.topics.now()

    def offsets_planned(self, epoch: int, planned: str | None) -> str:
        """Return the digest of Spark's offsets of an epoch that is running.

        Spark checks that ``offsets/<epoch>`` is not there and then renames a file to it, so a
        driver that is paused between the two will, when it wakes, replace what a newer one has
        planned. The rows of this epoch are those that *our* Spark has planned, so the file must
        still say the same: otherwise a restart would continue from other positions. ``planned`` is
        what our Spark has in memory; None if it does not show it.
        """
        data = self._files.read(join(self._checkpoint, "offsets", str(epoch)))
        lines = [] if data is None else data.decode().splitlines()
        if data is None or not _says(planned, lines):
            what = "are gone" if data is None else "were replaced by another driver of this query"
            raise PlannedByAnother(
                f"the source positions of epoch {epoch} in {self._checkpoint} {what} after they "
                "were planned. Nothing more of the epoch is decided or shown until it is planned "
                "again."
            )
        return hashlib.sha256(data).hexdigest()

    def forget_unfinished(self) -> None:
        """Remove unfinished offsets of a first epoch; only after our own claim.

        Spark writes offsets under a hidden name and renames them. Since 4.1 it refuses to begin
        where the folder of the offsets has no epoch and is not empty, so a death at just that
        moment would block the query permanently. A driver that is still writing there fails; it was
        fenced.
        """
        folder = join(self._checkpoint, "offsets")
        names = self._files.names(folder)
        if all(_UNFINISHED.fullmatch(name) for name in names):
            for name in names:
                self._files.delete(join(folder, name))

    def sync(self, epoch: int) -> None:
        """Make durable what the decision of an epoch depends on; Spark leaves it in the cache.

        Otherwise a power cut could leave a decision about an epoch that Spark does not know. On
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


def planned_sources(checkpoint: str) -> int | None:
    """Return how many sources the newest epoch was planned with; None if that is not known."""
    files = open_files(checkpoint)
    folder = join(checkpoint, "offsets")
    try:
        numbers = [int(name) for name in files.names(folder) if name.isdigit()]
        data = files.read(join(folder, str(max(numbers)))) if numbers else None
    except OSError:  # what cannot be read is reported where it is needed
        return None
    version, _, *lines = ["", ""] if data is None else data.decode().splitlines()
    return len(lines) if version == "v1" else None


def planned_offsets(query: StreamingQuery | None, epoch: int) -> str | None:
    """Return, as text, the source positions in Spark's memory; None if it does not show them.

    They are not part of Spark's public API, so a Spark without them is trusted.
    """
    if query is None:
        return None
    try:
        running = query._jsq.streamingQuery()
        context = running.getLatestExecutionContext()
        if context.batchId() != epoch:
            return None
        # In the order of the sources, as they are written; by itself it is a map.
        planned = context.endOffsets().toOffsetSeq(running.sources(), context.offsetSeqMetadata())
        return str(planned.toString())
    except Py4JError:
        return None


def _says(planned: str | None, lines: list[str]) -> bool:
    """Whether an offset log's file holds the positions planned.

    Spark writes a line for each source, and shows them as a list; in both, "-" is none yet.
    """
    if planned is None or lines[:1] != ["v1"]:
        return True
    return planned == f"[{', '.join(lines[2:])}]"
