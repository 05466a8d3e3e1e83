"""What a file system must offer; paths are qualified URIs such as ``file:/data/out``."""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from contextlib import suppress
from dataclasses import dataclass

TEMPORARY = ".beadline-tmp-"  # how a file begins that has not yet been given its name
CREATE_TRIES_MAX = 5  # a newer claim removes what others have under temporary names
_URI = re.compile(r"([A-Za-z][A-Za-z0-9+.-]+):(.*)\Z", re.DOTALL)


def split_uri(uri: str) -> tuple[str | None, str]:
    """Return scheme and rest; no scheme for a plain path.

    >>> split_uri("file:///tmp/x")
    ('file', '/tmp/x')
    """
    match = _URI.match(uri)
    if match is None:
        return None, uri
    scheme, rest = match.groups()
    if scheme == "file" and rest.startswith("//"):
        rest = "/" + rest.lstrip("/")
    return scheme, rest


@dataclass(frozen=True)
class FoundFile:
    """A file below a folder: its path relative to that folder, and its size."""

    path: str
    size: int


class FileSystem(ABC):
    """The few operations that the log and the file sinks need."""

    @abstractmethod
    def create_exclusive(self, uri: str, data: bytes) -> bool:
        """Create a durable file with this content, or answer False if the name is taken.

        Any exception leaves open whether the file is there.
        """

    @abstractmethod
    def write(self, uri: str, data: bytes) -> None:
        """Put a file there whole, replacing what was there."""

    @abstractmethod
    def read(self, uri: str) -> bytes | None:
        """Return the content, or None if there is no such file."""

    @abstractmethod
    def names(self, uri: str) -> list[str]:
        """Return the names in a folder; none if there is no such folder."""

    def names_beside(self, uri: str) -> list[str]:
        """Return the same of a folder that may be another user's; none if it may not be listed."""
        with suppress(NotADirectoryError, PermissionError):
            return self.names(uri)
        return []

    @abstractmethod
    def walk(self, uri: str) -> list[FoundFile]:
        """Return every file below a folder, but for those that vanish meanwhile."""

    @abstractmethod
    def exists(self, uri: str) -> bool:
        """Whether a file or folder is there."""

    @abstractmethod
    def make_folder(self, uri: str) -> None:
        """Make a folder and its parents; no error if it is there."""

    @abstractmethod
    def make_child(self, uri: str) -> bool:
        """Make a folder, or find it there; False if the folder that would hold it is not there."""

    @abstractmethod
    def rename(self, source: str, target: str) -> bool:
        """Give a file another name that is free; False if the source is not there.

        Never replaces a target: callers use names that only one source can have.
        """

    @abstractmethod
    def delete(self, uri: str) -> None:
        """Delete a file or a whole folder; no error if it is not there."""

    @abstractmethod
    def sync_files(self, uri: str, paths: list[str]) -> None:
        """Make files below ``uri``, written by another process, durable, with their folders."""

    @abstractmethod
    def sync_folder(self, uri: str) -> None:
        """Make names in a folder durable."""

    @abstractmethod
    def same_volume(self, one: str, other: str) -> bool:
        """Whether a rename from one existing folder to the other can work."""
