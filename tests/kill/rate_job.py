"""A driver whose source keeps no log of its own, so that Spark writes its logs the quick way.

``python -m tests.kill.rate_job FOLDER`` runs until a number of epochs are committed, and ends.
"""

from __future__ import annotations

import sys
import threading
from pathlib import Path

from beadline import exactly_once, session
from beadline.observe import Event
from beadline.sinks import FileSink
from beadline.verify.driver import emit, light_settings, run_as_program, tell

EPOCHS, ROWS = 10, 10
MANAGER = "manager"  # the event that names the class by which Spark writes its logs


def run(folder: Path) -> None:
    """Numbers to files, ten an epoch."""
    spark = session("rate", (), **light_settings(folder))
    reader = spark.readStream.format("rate-micro-batch").option("rowsPerBatch", ROWS)
    stream = exactly_once(reader.load(), "rate").to(FileSink(str(folder / "out")))
    enough = threading.Event()

    def listen(event: Event) -> None:
        tell(event)
        if event.kind == "committed" and (event.epoch or 0) + 1 >= EPOCHS:
            enough.set()

    query = stream.start(str(folder / "checkpoint"), listener=listen)
    log = query._spark._jsq.streamingQuery().offsetLog()
    emit({"kind": MANAGER, "name": log.fileManager().getClass().getSimpleName()})
    while not query.awaitTermination(0.1):
        if enough.is_set():
            query.stop()
            break
    failure = query.exception()
    if failure is not None:
        raise failure
    spark.stop()


if __name__ == "__main__":
    run_as_program(lambda: run(Path(sys.argv[1])))
