"""What all drivers that get killed share: a light Spark, events on stdout, an exit code.

Each event of the query is one line of JSON, flushed at once, so that the supervisor knows how far
it had got when it died. Its environment says where it dies (``beadline.points``).
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from beadline.errors import BeadlineError
from beadline.observe import Event
from beadline.verify.processes import kill_group

if TYPE_CHECKING:
    from beadline.spark.query import Query

# Tasks are retried, as on a cluster: a killed Python worker must cost an attempt, not the query.
MASTER = "local[2,4]"
# A JVM that lives for seconds does best with the quick compiler and leaves nothing in /tmp.
_JAVA = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC -XX:-UsePerfData -Djava.io.tmpdir={temporary}"
_POLL_S = 0.1
_STANDBY_POLL_S = 0.01
STANDBY = "BEADLINE_STANDBY"  # names the file that appears when a start is due


def light_settings(scratch: Path) -> dict[str, str | int]:
    """A light Spark; small splits, so that one input file becomes several parts and files."""
    temporary = tempfile.gettempdir()  # TMPDIR, which the supervisor removes
    return {
        "spark.master": MASTER,
        "spark.ui.enabled": "false",
        "spark.driver.memory": "512m",
        "spark.driver.extraJavaOptions": _JAVA.format(temporary=temporary),
        "spark.sql.shuffle.partitions": 2,
        "spark.sql.files.maxPartitionBytes": 8192,
        "spark.sql.files.openCostInBytes": 0,
        "spark.local.dir": temporary,
        "spark.sql.warehouse.dir": str(scratch / "warehouse"),
    }


def emit(line: dict[str, Any]) -> None:
    """Write one line of JSON."""
    sys.stdout.write(json.dumps(line, default=str) + "\n")
    sys.stdout.flush()


def tell(event: Event) -> None:
    """Write an event of the query."""
    emit(asdict(event))


def stand_by() -> None:
    """Wait, with Spark running, until this start is due; not at all if it was not started ahead."""
    due = os.environ.get(STANDBY)
    parent = os.getppid()
    while due is not None and not os.path.exists(due):
        if os.getppid() != parent:
            kill_group(os.getpid())  # its supervisor is gone: it will never be due
        time.sleep(_STANDBY_POLL_S)


def run_until(query: Query, stop: Path, poll: Callable[[], None] = lambda: None) -> None:
    """Wait until the query ends, or stop it when the file ``stop`` appears."""
    while not query.awaitTermination(_POLL_S):
        poll()
        if stop.exists():
            query.stop()
            failure = query.exception()
            if failure is not None:
                raise failure
            return


def run_as_program(run: Callable[[], None]) -> None:
    """Run; an error of Beadline is written as an event, and the process exits with its code."""
    try:
        run()
    except BeadlineError as error:
        emit({"kind": "failed", "error": type(error).__name__, "message": str(error)})
        sys.exit(error.exit_code)
