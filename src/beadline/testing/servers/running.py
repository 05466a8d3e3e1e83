"""What all servers for tests do alike: a folder of their own, a start, a stop, and a client."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Protocol, TypeVar

from beadline.errors import MissingExtra
from beadline.extras import require
from beadline.testing.servers.base import ServerUnavailable


class Startable(Protocol):
    """What can be started and stopped."""

    def start(self) -> None:
        """Return when it answers."""

    def stop(self) -> None:
        """End it; its folder stays."""


S = TypeVar("S", bound=Startable)


@contextmanager
def work_folder(name: str, given: Path | None = None) -> Iterator[Path]:
    """A temporary folder that goes with the server, unless one is given, which stays."""
    work = given or Path(tempfile.mkdtemp(prefix=f"beadline-{name}-"))
    try:
        yield work
    finally:
        if given is None:
            shutil.rmtree(work, ignore_errors=True)


@contextmanager
def running(server: S) -> Iterator[S]:
    """Start a server for the length of a `with`; a start that fails half-way is stopped too."""
    try:
        server.start()
        yield server
    finally:
        server.stop()


def need_client(extra: str) -> None:
    """A test cannot talk to a server without its client: then the server cannot be had."""
    try:
        require(extra)
    except MissingExtra as missing:
        raise ServerUnavailable(str(missing)) from missing
