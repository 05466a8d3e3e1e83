"""Spark's own noise, kept low where a person watches a command.

Spark logs every failure with its Java stack, although Beadline's error, shown beside it, says the
same in a sentence. The level is settled when the JVM starts, by a file of log4j; who has settings
of their own (``log4j2.properties`` in Spark's configuration folder, or the option in
``SPARK_SUBMIT_OPTS``) keeps them.
"""

from __future__ import annotations

import logging
import os
from pathlib import Path

_OPTION = "-Dlog4j2.configurationFile="
_FILE = Path(__file__).with_name("quiet.log4j2.properties")


def quiet() -> None:
    """Make the next JVM log errors only, and none of those that Beadline tells itself."""
    # Py4J logs the trace of every callback that raised; the error itself is raised elsewhere.
    logging.getLogger("py4j").setLevel(logging.CRITICAL)
    options = os.environ.get("SPARK_SUBMIT_OPTS", "")
    if "log4j" in options or _own_settings():
        return
    os.environ["SPARK_SUBMIT_OPTS"] = f"{options} {_OPTION}{_FILE.as_uri()}".strip()


def _own_settings() -> bool:
    home = os.environ.get("SPARK_HOME")
    folder = os.environ.get("SPARK_CONF_DIR") or (os.path.join(home, "conf") if home else None)
    return folder is not None and os.path.exists(os.path.join(folder, "log4j2.properties"))
