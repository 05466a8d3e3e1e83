"""Case: an ack means that the rows survive a power cut, as far as files of this machine go.

A kill cannot show a missing fsync, because the kernel lives on. So every file and folder that
``prepare`` and ``commit`` write is noted as it is opened, made or renamed, and every fsync with the
state that it made durable; what is there in the end must be what was synced last. Writes by a
library of another language are seen only where the folder was made from Python.
"""

from __future__ import annotations

import os
import stat
import sys
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from fnmatch import fnmatch
from typing import Any
from unittest import mock

from beadline.testing.suite.harness import SinkHarness
from beadline.testing.suite.target import Target, does_not_apply

__all__ = ["test_what_is_acknowledged_survives_a_power_cut"]

_WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT
_SYNCS = ("fsync", "fdatasync")
_PLACES = {"os.mkdir": 0, "os.rename": 1, "os.link": 1}  # which argument names what is made
Node = tuple[int, int]  # device and inode
FileState = tuple[int, int]  # size and time of change


class Disk:
    """What was written to local disks while it was watched, and what of it was synced."""

    def __init__(self, volatile: Collection[str] = ()) -> None:
        """Nothing was seen yet; names like those in ``volatile`` may be lost."""
        self.volatile = volatile
        self.before: dict[str, tuple[Node, FileState] | None] = {}
        self.files: dict[Node, FileState] = {}
        self.names: dict[Node, frozenset[str]] = {}

    def note(self, path: Any) -> None:
        """A file or folder is about to be made, written or given this name."""
        if isinstance(path, (str, bytes, os.PathLike)):
            name = os.path.abspath(os.fsdecode(path))
            self.before.setdefault(name, _look(name))

    def synced(self, descriptor: int) -> None:
        """What is behind a descriptor is on the disk as it is now."""
        found = os.fstat(descriptor)
        if stat.S_ISDIR(found.st_mode):
            self.names[_node(found)] = frozenset(os.listdir(descriptor))
        else:
            self.files[_node(found)] = _state(found)

    def problems(self) -> list[str]:
        """What a power cut could take away: contents, and names in folders."""
        made = [path for path in sorted(self.before) if os.path.lexists(path)]
        return list(dict.fromkeys(problem for path in made for problem in self._problems(path)))

    def _problems(self, path: str) -> Iterator[str]:
        found = os.lstat(path)
        before = self.before.get(path)
        if not stat.S_ISDIR(found.st_mode) and not stat.S_ISREG(found.st_mode):
            return
        if any(fnmatch(os.path.basename(path), pattern) for pattern in self.volatile):
            return
        if before is None or before[0] != _node(found):
            folder, name = os.path.split(path)
            if name not in self.names.get(_node(os.stat(folder)), ()):
                yield f"the name {path}: its folder was not synced after it was given"
        elif before == (_node(found), _state(found)):
            return  # it was opened, and is as it was
        if stat.S_ISDIR(found.st_mode):
            if before is None:  # then all that is in it is new as well
                for name in os.listdir(path):
                    yield from self._problems(os.path.join(path, name))
        elif self.files.get(_node(found)) != _state(found):
            yield f"the content of {path}: it was not synced after the last write"


def _look(path: str) -> tuple[Node, FileState] | None:
    try:
        found = os.lstat(path)
    except OSError:
        return None
    return _node(found), _state(found)


def _node(found: os.stat_result) -> Node:
    return found.st_dev, found.st_ino


def _state(found: os.stat_result) -> FileState:
    return found.st_size, found.st_mtime_ns


_watching: Disk | None = None
_hooked = False


def _audit(event: str, arguments: tuple[Any, ...]) -> None:
    """Python's audit events name every file that is opened; a hook cannot be removed, only idle."""
    if _watching is None:
        return
    if event == "open" and isinstance(arguments[2], int) and arguments[2] & _WRITING:
        _watching.note(arguments[0])
    elif event in _PLACES:
        _watching.note(arguments[_PLACES[event]])


@contextmanager
def watched(disk: Disk) -> Iterator[None]:
    """Note in ``disk`` what is written and synced meanwhile, on any thread."""
    global _watching, _hooked
    if not _hooked:
        sys.addaudithook(_audit)
        _hooked = True
    patches = [mock.patch.object(os, name, _noting(name, disk)) for name in _SYNCS]
    for patch in patches:
        patch.start()
    _watching = disk
    try:
        yield
    finally:
        _watching = None
        for patch in patches:
            patch.stop()


def _noting(name: str, disk: Disk) -> Callable[[Any], None]:
    sync: Callable[[Any], None] = getattr(os, name)

    def noted(file: Any) -> None:
        sync(file)
        disk.synced(file if isinstance(file, int) else file.fileno())

    return noted


def test_what_is_acknowledged_survives_a_power_cut(harness: SinkHarness) -> None:
    """After ``prepare`` the log may decide, after ``commit`` Spark never redelivers the epoch."""
    warm = Target(harness)  # what is imported and cached at the first call is not the sink's
    warm.commit(0, warm.prepare_epoch(0, warm.rows(1)))
    target, disk = Target(harness), Disk(harness.volatile)
    with watched(disk):
        parts = target.prepare_epoch(0, target.rows(1, 2, 3), target.rows(4))
    assert not disk.problems(), "prepared, and a power cut would take away"
    with watched(disk):
        target.commit(0, parts)
    assert not disk.problems(), "committed, and a power cut would take away"
    if not disk.before:
        does_not_apply("nothing was written to a disk of this machine")
