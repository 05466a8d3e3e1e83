"""The command line of a small Java server that starts quickly and lives for minutes."""

from __future__ import annotations

import os
import shutil
from collections.abc import Sequence
from pathlib import Path

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
    """The `java` of JAVA_HOME, as Spark itself chooses it, or else of the PATH."""
    home = os.environ.get("JAVA_HOME")
    found = str(Path(home) / "bin" / "java") if home else shutil.which("java")
    if not found or not os.access(found, os.X_OK):
        where = f"in JAVA_HOME ({home})" if home else "on the PATH, and JAVA_HOME is not set"
        raise ServerUnavailable(f"no `java` {where}: install a JDK or JRE, 17 or newer")
    return found


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
