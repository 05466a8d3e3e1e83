"""What state takes up on disk, and which of its versions are there."""

from __future__ import annotations

import re
from dataclasses import dataclass

from beadline.files import FileSystem, join
from beadline.state.metadata import STATE_FOLDER

# Spark's names: what changed in an epoch (`changelog` of RocksDB, `delta` of the other provider),
# or all that there is (`zip` with its `SSTs/`, `snapshot`); format v2 adds an id of its own.
_VERSION = re.compile(r"(\d+)(_[0-9a-fA-F-]+)?\.(changelog|delta|zip|snapshot)\Z")
_WHOLE = ("zip", "snapshot")


@dataclass(frozen=True)
class DiskUse:
    """One operator's state on disk.

    A version of the state is that after an epoch; ``oldest`` and ``newest`` are such epochs, and
    ``snapshot`` is the newest one of which there is a whole copy: a start reads that, and what has
    changed since.
    """

    size: int
    files: int
    oldest: int | None
    newest: int | None
    snapshot: int | None
    # Bytes by epoch: of what changed in it, and of the whole copy if one was made after it.
    changed: dict[int, int]


def disk_use(files: FileSystem, checkpoint: str, operator: int) -> DiskUse:
    """Return what one operator's state takes up, in all its partitions."""
    found = files.walk(join(checkpoint, STATE_FOLDER, str(operator)))
    changed: dict[int, int] = {}
    whole: set[int] = set()
    for one in found:
        match = _VERSION.match(one.path.rpartition("/")[2])
        if match is None:
            continue
        epoch = int(match[1]) - 1
        if match[3] in _WHOLE:
            whole.add(epoch)
        else:
            changed[epoch] = changed.get(epoch, 0) + one.size
    epochs = {*changed, *whole}
    return DiskUse(
        sum(one.size for one in found),
        len(found),
        min(epochs, default=None),
        max(epochs, default=None),
        max(whole, default=None),
        changed,
    )
