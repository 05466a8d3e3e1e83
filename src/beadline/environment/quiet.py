"""Spark's own noise, kept low where a person watches a command.

Spark logs every failure with its Java stack, although Beadline's error, shown beside it, says the
same in a sentence; and its progress bar writes over our lines. Both are decided when the JVM
starts, the level by a file of log4j. Users with settings of their own (``log4j2.properties`` in
Spark's configuration folder, or the options in ``SPARK_SUBMIT_OPTS``) keep them.
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
    """Make the next JVM log errors only, and none of those that Beadline tells itself."""
    # Py4J logs the trace of every callback that raised; the error itself is raised elsewhere.
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


# Spark adds a module to every JVM over which the JDK complains in its first line, and there is no
# option against that. What follows is passed on as it comes: progress bars have no end of line.
_WITHOUT_WARNING = """
lines=0
while [ $lines -lt 5 ] && IFS= read -r line; do
    case $line in "WARNING: Using incubator modules:"*) break;; esac
    printf '%s\\n' "$line"
    lines=$((lines + 1))
done
exec cat
"""
_passing: list[subprocess.Popen[bytes]] = []  # for as long as we live: a JVM is not started twice


@contextmanager
def jvm_options() -> Iterator[dict[str, Any]]:
    """Yield how to start a JVM that does not begin with the JDK's complaint about Spark."""
    if os.name != "posix" or not (shutil.which("sh") and shutil.which("cat")):
        yield {}
        return
    # In a session of its own: a Ctrl-C is for the query, which still has something to say.
    passing = subprocess.Popen(
        ["sh", "-c", _WITHOUT_WARNING], stdin=subprocess.PIPE, stdout=2, start_new_session=True
    )
    _passing.append(passing)
    assert passing.stdin is not None
    with passing.stdin:
        yield {"stderr": passing.stdin}
