"""Where slots are kept: in files under the checkpoint."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Protocol, TypeVar

from beadline.files import FileSystem, join
from beadline.files.base import TEMPORARY

T = TypeVar("T")
LOG_FOLDER = "beadline/log"  # below the checkpoint, next to Spark's own folders
_SLOT_DIGITS = 19


class Store(Protocol):
    """Slots that can be created once, read, listed and deleted."""

    def create(self, slot: int, data: bytes) -> bool:
        """Create the slot durably; False if it is taken. An exception leaves that open."""

    def read(self, slot: int) -> bytes | None:
        """Return the slot's bytes, or None if it is empty."""

    def slots(self) -> list[int]:
        """Return the taken slots, in order."""

    def delete(self, slot: int) -> None:
        """Empty a slot."""

    def path(self, slot: int) -> str:
        """Return the slot's name for error messages."""

    def sync(self) -> None:
        """Make every slot that can be read durable."""

    def tidy(self) -> None:
        """Remove files that crashes left under temporary names; only after our own claim."""

    def close(self) -> None:
        """End the threads; a later call starts them again."""


class FileStore:
    """One file per slot, in one folder.

    Every call runs on the store's own thread: ``query.stop()`` interrupts the thread on which Spark
    calls back, and Hadoop's client then throws in the middle of a write (rule 3).
    """

    def __init__(self, files: FileSystem, folder: str) -> None:
        """Create the folder if it does not exist."""
        self._files = files
        self._folder = folder
        self._thread: ThreadPoolExecutor | None = None

    def _call(self, function: Callable[[], T]) -> T:
        if self._thread is None:
            self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="beadline-log")
        return self._thread.submit(function).result()

    def make_folder(self) -> None:
        """Make the folder of the log."""
        self._call(lambda: self._files.make_folder(self._folder))

    def create(self, slot: int, data: bytes) -> bool:
        """Create the slot durably; False if it is taken."""
        return self._call(lambda: self._files.create_exclusive(self.path(slot), data))

    def read(self, slot: int) -> bytes | None:
        """Return the slot's bytes, or None if it is empty."""
        return self._call(lambda: self._files.read(self.path(slot)))

    def slots(self) -> list[int]:
        """Return the taken slots; temporary and unknown files are skipped."""
        names = self._call(lambda: self._files.names(self._folder))
        return sorted(int(name) for name in names if len(name) == _SLOT_DIGITS and name.isdigit())

    def delete(self, slot: int) -> None:
        """Empty a slot."""
        self._call(lambda: self._files.delete(self.path(slot)))

    def path(self, slot: int) -> str:
        """Return the slot's URI."""
        return join(self._folder, f"{slot:0{_SLOT_DIGITS}d}")

    def sync(self) -> None:
        """Sync the folder: a slot is durable before it has its name."""
        self._call(lambda: self._files.sync_folder(self._folder))

    def tidy(self) -> None:
        """Remove temporary files. A fenced driver that is still writing one fails, harmlessly."""
        for name in self._call(lambda: self._files.names(self._folder)):
            if name.startswith(TEMPORARY):
                uri = join(self._folder, name)
                self._call(lambda uri=uri: self._files.delete(uri))  # type: ignore[misc]

    def close(self) -> None:
        """End the thread; the next call begins another."""
        thread, self._thread = self._thread, None
        if thread is not None:
            thread.shutdown(wait=False)
