"""Local files. A hard link is the only local create-if-absent that has one winner.

Hadoop's ``rename`` without overwrite had two winners in 7 of 300 races on ``file:``, and its
``create(overwrite=false)`` in 98 (measured while the protocol was designed). So: a temporary
file, fsync, a hard link, which fails if the name is taken, and fsync of the folder.
"""

from __future__ import annotations

import errno
import os
import shutil
import tempfile
import uuid
from concurrent.futures import ThreadPoolExecutor

from beadline.files.base import CREATE_TRIES_MAX, TEMPORARY, FileSystem, FoundFile, split_uri
from beadline.points import reach


class TemporaryGone(FileNotFoundError):
    """Another process has tidied up: nothing was linked."""


def local_path(uri: str) -> str:
    """Return the operating system's path of a ``file:`` URI."""
    return split_uri(uri)[1]


def sync_path(path: str | os.PathLike[str]) -> None:
    """Fsync a file or a folder by its name."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def write_durably(path: str, data: bytes) -> None:
    """Write a new file and fsync it."""
    with open(path, "xb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())


def can_link(uri: str) -> bool:
    """Whether hard links work where ``uri`` is or will be; leaves nothing behind."""
    folder = local_path(uri)
    while not os.path.isdir(folder) and folder != os.path.dirname(folder):
        folder = os.path.dirname(folder)
    try:
        with tempfile.NamedTemporaryFile(dir=folder, prefix=TEMPORARY) as file:
            os.link(file.name, file.name + "-link")
            os.unlink(file.name + "-link")
    except PermissionError as error:
        return not os.access(folder, os.W_OK) or error.errno != errno.EPERM
    except OSError as error:
        return error.errno not in (errno.ENOTSUP, errno.ENOSYS, errno.EMLINK)
    return True


def _raise_unless_gone(error: OSError) -> None:
    """Raise what ``os.walk`` would skip: what cannot be read is not absent (rule 12)."""
    if not isinstance(error, (FileNotFoundError, NotADirectoryError)):
        raise error


class LocalFiles(FileSystem):
    """The operating system's own files."""

    def create_exclusive(self, uri: str, data: bytes) -> bool:
        """Temporary file, fsync, hard link, fsync of the folder."""
        path = local_path(uri)
        tries = 0
        while True:
            tries += 1
            try:
                created = self._link_new(path, data)
                break
            except TemporaryGone:
                if tries == CREATE_TRIES_MAX:
                    raise
        if created:
            sync_path(os.path.dirname(path))
        return created

    def _link_new(self, path: str, data: bytes) -> bool:
        folder, name = os.path.split(path)
        temporary = os.path.join(folder, f"{TEMPORARY}{name}-{uuid.uuid4().hex}")
        try:
            write_durably(temporary, data)
            reach("append.written")
            try:
                os.link(temporary, path)
            except FileExistsError:
                return False
            except FileNotFoundError as error:
                raise TemporaryGone(*error.args) from error
            reach("append.linked")
        finally:
            if os.path.exists(temporary):
                os.unlink(temporary)
        return True

    def write(self, uri: str, data: bytes) -> None:
        """Write beside it and rename over it."""
        path = local_path(uri)
        temporary = os.path.join(os.path.dirname(path), f"{TEMPORARY}{uuid.uuid4().hex}")
        write_durably(temporary, data)
        os.replace(temporary, path)
        sync_path(os.path.dirname(path))

    def read(self, uri: str) -> bytes | None:
        """Return the content, or None if there is no such file."""
        try:
            with open(local_path(uri), "rb") as file:
                return file.read()
        except FileNotFoundError:
            return None

    def names(self, uri: str) -> list[str]:
        """Return the names in a folder; none if there is no such folder."""
        try:
            return os.listdir(local_path(uri))
        except FileNotFoundError:
            return []

    def walk(self, uri: str) -> list[FoundFile]:
        """Return every file below a folder; none if there is no such folder."""
        top = local_path(uri)
        found = []
        for folder, _, names in os.walk(top, onerror=_raise_unless_gone):
            for name in names:
                path = os.path.join(folder, name)
                try:
                    found.append(FoundFile(os.path.relpath(path, top), os.path.getsize(path)))
                except FileNotFoundError:
                    continue  # renamed or deleted by another process since the folder was read
        return found

    def exists(self, uri: str) -> bool:
        """Whether a file or folder is there; raise if that cannot be seen."""
        try:
            os.lstat(local_path(uri))
        except (FileNotFoundError, NotADirectoryError):
            return False
        return True

    def make_folder(self, uri: str) -> None:
        """Make a folder and its parents, durably."""
        path = local_path(uri)
        missing = []
        while not os.path.isdir(path):
            missing.append(path)
            path = os.path.dirname(path)
        for folder in reversed(missing):
            os.makedirs(folder, exist_ok=True)
            sync_path(os.path.dirname(folder))

    def make_child(self, uri: str) -> bool:
        """Make a folder durably, but none of its parents."""
        path = local_path(uri)
        try:
            os.mkdir(path)
        except FileExistsError:
            return True
        except FileNotFoundError:
            return False
        try:
            sync_path(os.path.dirname(path))
        except FileNotFoundError:
            return False
        return True

    def rename(self, source: str, target: str) -> bool:
        """Rename; a source that is gone was renamed by another process."""
        if self.exists(target):
            return False
        try:
            os.rename(local_path(source), local_path(target))
        except FileNotFoundError:
            return False
        return True

    def delete(self, uri: str) -> None:
        """Delete a file or a whole folder; no error if it is not there."""
        path = local_path(uri)
        if os.path.isdir(path) and not os.path.islink(path):
            shutil.rmtree(path, ignore_errors=True)
            return
        try:
            os.unlink(path)
        except FileNotFoundError:
            return

    def sync_files(self, uri: str, paths: list[str]) -> None:
        """Fsync files and the folders that name them, several at a time."""
        top = local_path(uri)
        full = [os.path.join(top, path) for path in paths]
        folders = {os.path.dirname(path) for path in full} | {top}
        if len(full) <= 4:  # threads would take longer to begin than the work takes
            for path in (*full, *folders):
                sync_path(path)
            return
        with ThreadPoolExecutor(max_workers=8) as pool:
            list(pool.map(sync_path, full))
            list(pool.map(sync_path, folders))

    def sync_folder(self, uri: str) -> None:
        """Fsync the folder."""
        sync_path(local_path(uri))

    def same_volume(self, one: str, other: str) -> bool:
        """Compare devices."""
        return os.stat(local_path(one)).st_dev == os.stat(local_path(other)).st_dev
