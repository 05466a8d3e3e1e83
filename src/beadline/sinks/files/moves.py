"""The renames of a commit: from pending to finished, once, whichever process does it and however
often.

Files leave a pending folder only once it has been renamed to ``.moving``, and it is renamed only
while every file is there. So a file that is missing from ``.moving`` was finished; a reader may
have consumed and deleted it since, and it must not come back: if the target's mark says that this
epoch was begun in it. If it does not, the files went with another target. A file that is missing
from a folder which is not ``.moving`` never was finished: that is the proof that a part is lost.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import ClassVar, TypeVar

from beadline.files import FileSystem, join, split_uri
from beadline.files.base import FoundFile
from beadline.sink import (
    CommitFailed,
    Committable,
    EpochId,
    Json,
    Outcome,
    PartId,
    Prepared,
    reach,
    way_out,
)
from beadline.sinks.files.marks import Marks, half_gone

MOVING = ".moving"
THREADS_MAX = 16
RENAME_TRIES_MAX = 3
_TARGET_GONE = "the target was deleted while the files of this epoch were moved into it"
T = TypeVar("T")


def parent(uri: str) -> str:
    """Return the folder that holds a file or folder; the root's is the root.

    >>> parent("file:/data/out"), parent("hdfs://host:9000/out"), parent("file:/")
    ('file:/data', 'hdfs://host:9000/', 'file:/')
    """
    scheme, rest = split_uri(uri)
    authority, path = "", rest
    if rest.startswith("//"):
        host, _, below = rest[2:].partition("/")
        authority, path = f"//{host}", f"/{below}"
    head = path.rstrip("/").rpartition("/")[0]
    return f"{scheme}:{authority}{head or '/'}"


@dataclass(frozen=True)
class PendingFiles(Committable):
    """Where the files are going, where they are, and what they are: (relative path, bytes).

    Both folders are qualified URIs: a process without Spark may take another default file system.
    ``rows`` were counted in the files; -1 if they were not.
    """

    version: ClassVar[int] = 2

    target: str
    folder: str
    files: tuple[tuple[str, int], ...]
    rows: int = -1

    @property
    def rows_held(self) -> int | None:
        """What the files hold."""
        return None if self.rows < 0 else self.rows

    def is_same(self, other: Committable) -> bool:
        """One folder is one attempt's."""
        return isinstance(other, PendingFiles) and self.folder == other.folder

    @classmethod
    def upgrade(cls, version: int, fields: Json) -> Json:
        """Version 1 did not count."""
        return fields


class Moving:
    """The renames of one commit. Two processes may be at it at once: each file has one winner."""

    def __init__(
        self, files: FileSystem, target: str, marks: Marks, epoch: EpochId, sink: str
    ) -> None:
        self.sink = sink
        self.files = files
        self.target = target
        self.marks = marks
        self.epoch = epoch
        self.renames: list[tuple[str, str]] = []
        self.folders: set[str] = set()

    def missing(self, part: Prepared[PendingFiles]) -> list[str]:
        """The files that have left a ``.moving`` folder and are not in the target."""
        moving = part.committable.folder + MOVING
        if not self.files.exists(moving):
            return []
        here = {file.path for file in walk(self.files, moving)}
        gone = [path for path, _ in part.committable.files if path not in here]
        return [path for path in gone if not self.files.exists(self._final(part.id, path))]

    def open(self, part: Prepared[PendingFiles]) -> Outcome:
        """Put a part's folder into the state in which files may leave it; plan the renames."""
        folder, wanted = part.committable.folder, dict(part.committable.files)
        moving = folder + MOVING
        names = {path: self._final(part.id, path) for path in wanted}
        if not self.files.exists(moving):
            found = {file.path: file.size for file in walk(self.files, folder)}
            if wanted.items() <= found.items():
                self._rename_folder(folder, moving)
            elif not self.files.exists(moving):
                return self._look_for(part, names)
        self.folders.update(parent(final) for final in names.values())
        here = [file.path for file in walk(self.files, moving) if file.path in wanted]
        self.renames += [(join(moving, path), names[path]) for path in sorted(here)]
        return Outcome.COMMITTED if here else Outcome.ALREADY_COMMITTED

    def finish(self) -> None:
        """Rename every planned file, durably; the first alone, then many at a time."""
        self._make_folders({parent(final) for _, final in self.renames})
        for source, final in self.renames[:1]:
            self._rename(source, final)
        each(self._next, self.renames[1:])
        each(self._sync_folder, sorted(self.folders))

    def _next(self, rename: tuple[str, str]) -> None:
        reach("files.renaming")
        self._rename(*rename)

    def _rename(self, source: str, final: str) -> None:
        for _ in range(RENAME_TRIES_MAX):
            if self.files.rename(source, final) or not self.files.exists(source):
                return
            if self.files.exists(final):
                break
            self._make_folder(parent(final))  # a reader tidied the empty folder away
        raise self._failed(f"{source} cannot be renamed to {final}")

    def _rename_folder(self, folder: str, moving: str) -> None:
        done = self.files.rename(folder, moving)
        if not done and self.files.exists(folder) and not self.files.exists(moving):
            raise self._failed(f"{folder} cannot be renamed to {moving}")
        # Before any file leaves it: a power cut must not undo this and keep the files' renames.
        self.files.sync_folder(parent(folder))

    def _look_for(self, part: Prepared[PendingFiles], names: Mapping[str, str]) -> Outcome:
        """Neither pending whole nor being moved: finished by another process, or lost."""
        mark = self.marks.of(part.id.sink, self.epoch.query.incarnation)
        if mark is not None and mark.epoch >= self.epoch.number:
            return Outcome.ALREADY_COMMITTED
        finished = [path for path, final in names.items() if self.files.exists(final)]
        if len(finished) == len(names):
            return Outcome.ALREADY_COMMITTED
        if not finished:
            return Outcome.LOST
        raise self._failed(
            f"{len(finished)} of {len(names)} files are finished, the others are neither pending "
            f"nor in the target; {part.committable.folder} was deleted from outside. Nothing "
            f"more was written. Missing are: {sorted(names.keys() - {*finished})[:5]}"
        )

    def _final(self, id_: PartId, path: str) -> str:
        """A name that no other file ever has: Spark's own holds the UUID of its job."""
        folder, _, name = path.rpartition("/")
        label = f"{id_.query}-{id_.epoch:09d}-{id_.incarnation[:8]}-g{id_.generation}-{name}"
        return join(self.target, *((folder,) if folder else ()), label)

    def _make_folders(self, folders: Iterable[str]) -> None:
        each(self._make_folder, sorted(folders))

    def _make_folder(self, folder: str) -> None:
        """Make a folder below the target; one that is gone must not come back with a gap."""
        if folder == self.target:
            if not self.files.exists(folder):
                raise half_gone(self.epoch, self.sink, self.target, _TARGET_GONE)
        elif not self.files.make_child(folder):
            self._make_folder(parent(folder))
            self.files.make_child(folder)

    def _sync_folder(self, folder: str) -> None:
        try:
            self.files.sync_folder(folder)
        except FileNotFoundError:
            return  # its files are finished, and a reader has taken the whole folder away

    def _failed(self, what: str) -> CommitFailed:
        return CommitFailed(
            f"query {self.epoch.query.name!r}, epoch {self.epoch.number}, target {self.target}: "
            f"{what}. The epoch is decided, and no finished file was touched; once the cause is "
            f"removed, the next start finishes it. {way_out(self.sink, self.epoch.number)} Those "
            "of its files that are in the target stay."
        )


def each(act: Callable[[T], None], items: Sequence[T]) -> None:
    """Do something to each; where there are many, many at a time."""
    if len(items) < THREADS_MAX:
        for item in items:
            act(item)
        return
    with ThreadPoolExecutor(max_workers=THREADS_MAX) as pool:
        for future in [pool.submit(act, item) for item in items]:
            future.result()


def walk(files: FileSystem, folder: str) -> list[FoundFile]:
    """Every file below a folder that is not hidden, by the rule of Spark's own readers."""
    found = files.walk(folder)
    return [file for file in found if not any(map(_hidden, file.path.split("/")))]


def _hidden(name: str) -> bool:
    return name.startswith(".") or (name.startswith("_") and "=" not in name)


def ancestors(paths: Iterable[str]) -> list[str]:
    """Folders that hold only folders: the middle of ``a=1/b=2/part-…``."""
    found: set[str] = set()
    for path in paths:
        names = path.split("/")[:-2]
        found.update("/".join(names[: end + 1]) for end in range(len(names)))
    return sorted(found)


def discard(files: FileSystem, parts: Sequence[Prepared[PendingFiles]]) -> None:
    """Delete the folders of parts, in whatever state; no error if they are gone."""
    for part in parts:
        files.delete(part.committable.folder + MOVING)
        files.delete(part.committable.folder)
