"""The files of an epoch that is redelivered: all of them must still exist.

Spark's checkpoint names them, but if one is gone Spark silently plans the epoch without it. So
before an epoch is prepared that an earlier start has planned, the source's own log is compared with
what exists. An epoch that is planned now is not checked: its files were listed a moment ago, and a
file that disappears before it is read fails its task.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator, Sequence
from typing import Any
from urllib.parse import unquote

from beadline.errors import SourceGone
from beadline.files import FileSystem, join, open_files

logger = logging.getLogger("beadline")

_COMPACT = ".compact"
_SHOWN_MAX = 5


class PlannedFiles:
    """What earlier starts have planned."""

    def __init__(self, checkpoint: str, folders: Sequence[int]) -> None:
        """``folders`` are those below ``sources/``, in the order of the lines of the offset log."""
        self._checkpoint = checkpoint
        self._folders = folders
        self._files = open_files(checkpoint)
        self._planned = -1
        self.look()

    def look(self) -> None:
        """Record what is planned so far, before Spark plans more."""
        names = self._files.names(join(self._checkpoint, "offsets"))
        self._planned = max((int(name) for name in names if name.isdigit()), default=-1)

    def check(self, epoch: int) -> None:
        """Raise if a file is gone of an epoch that was planned before this start."""
        if epoch > self._planned:
            return
        try:
            gone = [path for path in self._paths(epoch) if not open_files(path).exists(path)]
        except ValueError as error:
            logger.warning(
                "epoch %s is redelivered, and it is not known whether its files still exist: %s",
                epoch, error,
            )  # fmt: skip
            return
        if gone:
            more = f" and {len(gone) - _SHOWN_MAX} more" if len(gone) > _SHOWN_MAX else ""
            raise SourceGone(
                f"epoch {epoch} was planned with source files that are gone: "
                f"{', '.join(gone[:_SHOWN_MAX])}{more}. Spark would redeliver the epoch without "
                "their rows, so nothing was prepared or decided without them. Restore the files, "
                "then start again."
            )

    def _paths(self, epoch: int) -> Iterator[str]:
        ends = self._ends(epoch)
        starts = self._ends(epoch - 1) if epoch else [-1] * len(ends)
        for folder, start, end in zip(self._folders, starts, ends, strict=True):
            for batch in range(start + 1, end + 1):
                yield from self._logged(join(self._checkpoint, "sources", str(folder)), batch)

    def _ends(self, epoch: int) -> list[int]:
        """The newest entry of each source's log that belongs to an epoch; -1 for other kinds."""
        data = self._files.read(join(self._checkpoint, "offsets", str(epoch)))
        if data is None:
            raise ValueError(f"Spark's checkpoint has no offsets of epoch {epoch}")
        version, _, *lines = data.decode().splitlines()
        if version != "v1" or len(lines) != len(self._folders):
            raise ValueError(f"Spark's offset log is {version} with {len(lines)} sources")
        return [_log_offset(line) for line in lines]

    def _logged(self, folder: str, batch: int) -> Iterator[str]:
        """The paths of one entry of a file source's log, which may be in a later, compacted one."""
        entries = _entries(self._files, join(folder, str(batch)))
        if entries is None:
            found = [n.removesuffix(_COMPACT) for n in self._files.names(folder) if _COMPACT in n]
            later = sorted(int(n) for n in found if n.isdigit() and int(n) >= batch)
            whole = _entries(self._files, join(folder, f"{later[0]}{_COMPACT}")) if later else None
            entries = [e for e in whole or () if e["batchId"] == batch]
        if not entries:
            raise ValueError(f"the log of a file source, {folder}, has no entry {batch}")
        # As a URI in the log, and everywhere else as it is written.
        yield from (unquote(entry["path"]) for entry in entries)


def _log_offset(line: str) -> int:
    """Only Spark's file source has offsets in this form; "-" is a source that has none yet."""
    try:
        found = json.loads(line)
    except ValueError:
        return -1
    return int(found["logOffset"]) if isinstance(found, dict) and "logOffset" in found else -1


def _entries(files: FileSystem, path: str) -> list[dict[str, Any]] | None:
    data = files.read(path)
    if data is None:
        return None
    version, *lines = data.decode().splitlines()
    if version != "v1":
        raise ValueError(f"{path} is of version {version!r}, and only v1 is known")
    return [json.loads(line) for line in lines if line]
