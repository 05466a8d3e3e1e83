"""Less of Spark's own output where a person watches a command.

Spark logs every failure with its Java stack, although Beadline's own error says the same in a
sentence; and its progress bar overwrites our lines. Both are set when the JVM starts, the level by
a log4j file. Users with settings of their own (``log4j2.properties`` in Spark's configuration
folder, or the options in ``SPARK_SUBMIT_OPTS``) keep them.
"""

from __future__ import annotations

import logging
import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

_NO_BAR = "-Dspark.ui.showConsoleProgress=false"
_LOG_FILE = "-Dlog4j2.configurationFile="
_FILE = Path(__file__).with_name("quiet.log4j2.properties")


def quiet() -> None:
    """Make the next JVM log errors only, and none of those that Beadline reports itself."""
    # Py4J logs the traceback of every callback that raised; the error itself is raised elsewhere.
    logging.getLogger("py4j").setLevel(logging.CRITICAL)
    options = os.environ.get("SPARK_SUBMIT_OPTS", "")
    added = [] if "showConsoleProgress" in options else [_NO_BAR]
    if "log4j" not in options and not _own_settings():
        added.append(f"{_LOG_FILE}{_FILE.as_uri()}")
    os.environ["SPARK_SUBMIT_OPTS"] = " ".join(filter(None, [options, *added]))


def _own_settings() -> bool:
    home = os.environ.get("SPARK_HOME")
    folder = os.environ.get("SPARK_CONF_DIR") or (os.path.join(home, "conf") if home else None)
    return folder is not None and os.path.exists(os.path.join(folder, "log4j2.properties"))


# Spark adds a module to every JVM, the JDK warns about it in its first line, and no option prevents
# that. Further output is passed on as it comes: progress bars have no end of line.
_WITHOUT_WARNING = """
lines=0
while [ $lines -lt 5 ] && IFS= read -r line; do
    case $line in "WARNING: Using incubator modules:"*) break;; esac
    printf '%s\\n' "$line"
    lines=$((lines + 1))
done
exec cat
"""
_passing: list[subprocess.Popen[bytes]] = []  # kept: a JVM is not started twice


@contextmanager
def jvm_options() -> Iterator[dict[str, Any]]:
    """Yield how to start a JVM without the JDK's warning about Spark."""
    if os.name != "posix" or not (shutil.which("sh") and shutil.which("cat")):
        yield {}
        return
    # In a session of its own: a Ctrl-C is for the query, which still has output to print.
    passing = subprocess.Popen(
        ["sh", "-c", _WITHOUT_WARNING], stdin=subprocess.PIPE, stdout=2, start_new_session=True
    )
    _passing.append(passing)
    assert passing.stdin is not None
    with passing.stdin:
        yield {"stderr": passing.stdin}
