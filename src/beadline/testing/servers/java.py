"""The command line of a small Java server that starts quickly and lives for minutes."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from beadline.environment.java import java_path
from beadline.errors import JavaProblem
from beadline.testing.servers.base import ServerUnavailable

# Short-lived servers on busy machines: the first compiler tier only, the collector without threads
# of its own, and no statistics file in the shared temp folder.
_QUICK_START = (
    "-XX:TieredStopAtLevel=1",
    "-XX:+UseSerialGC",
    "-XX:-UsePerfData",
    "-Djava.net.preferIPv4Stack=true",
    "-Djava.awt.headless=true",
)


def java() -> str:
    """The `java` that Spark itself would take; `ServerUnavailable` if there is none."""
    try:
        return str(java_path())
    except JavaProblem as problem:
        raise ServerUnavailable(str(problem)) from problem


def java_command(
    main: str,
    class_path: Sequence[Path | str],
    *arguments: str,
    heap_mb: int = 256,
    options: Sequence[str] = (),
) -> list[str]:
    """`java … main arguments`; a class path entry `folder/*` means every jar in that folder."""
    path = os.pathsep.join(str(entry) for entry in class_path)
    return [java(), f"-Xmx{heap_mb}m", *_QUICK_START, *options, "-cp", path, main, *arguments]
