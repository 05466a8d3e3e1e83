"""File systems, as far as the log and the file sinks need them.

Local files go through the operating system, everything else through the Hadoop client that
comes with Spark. The one operation that matters is ``create_exclusive``: create-if-absent that
is really atomic and durable against power loss (rule 2). A scheme whose rule is not tested is
refused for exactly-once (``has_atomic_create``).
"""

from __future__ import annotations

import os

from beadline.files.base import FileSystem, split_uri
from beadline.files.local import LocalFiles

__all__ = [
    "FileSystem",
    "has_atomic_create",
    "join",
    "open_files",
    "qualify",
    "same_folder",
    "split_uri",
]

# The schemes whose create-if-absent is tested, by races of real processes, to have one winner.
TESTED_SCHEMES = ("file", "hdfs")


def has_atomic_create(uri: str) -> bool:
    """Whether ``create_exclusive`` on this file system keeps rule 2, and is tested to."""
    return split_uri(uri)[0] in TESTED_SCHEMES


def qualify(path: str | os.PathLike[str]) -> str:
    """Return the full URI of a path, as Spark would understand it, without a slash at its end.

    >>> qualify("file:///data/out/")
    'file:/data/out'
    """
    path = os.fspath(path)
    scheme, rest = split_uri(path)
    if scheme == "file":
        return "file:" + os.path.abspath(rest)
    from beadline.files import hadoop

    if scheme is None:
        return hadoop.qualify(path) if hadoop.is_running() else "file:" + os.path.abspath(path)
    return path.rstrip("/")


def open_files(uri: str, *, patient: bool = True) -> FileSystem:
    """Return the file system of a qualified URI.

    One that does not answer is asked for minutes, as it may be starting; only for seconds if not
    ``patient``.
    """
    scheme, _ = split_uri(uri)
    if scheme == "file":
        return LocalFiles()
    from beadline.files.hadoop import HadoopFiles

    return HadoopFiles(uri, patient=patient)


def same_folder(one: str, other: str) -> bool:
    """Whether two qualified URIs lead to one folder now: the same name, or a link to the other."""
    if one == other:
        return True
    if not all(split_uri(uri)[0] == "file" for uri in (one, other)):
        return False
    return os.path.realpath(split_uri(one)[1]) == os.path.realpath(split_uri(other)[1])


def join(uri: str, *names: str) -> str:
    """Join a URI and names below it."""
    return "/".join((uri.rstrip("/"), *names))
