"""The process of a cell that gets killed: ``python -m beadline.chaos.matrix.child FOLDER N``."""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path

from beadline.chaos.driver import emit, settings, tell
from beadline.chaos.matrix import jobs
from beadline.errors import BeadlineError

_EVERY = "100 milliseconds"


def main(folder: Path, start: str) -> None:
    """Run the cell's job until somebody wants it to stop."""
    from beadline import at_least_once, exactly_once
    from beadline.environment.session import session

    cell = json.loads((folder / "cell.json").read_text("utf-8"))
    connectors = ("kafka",) if "kafka" in (cell["source"], cell["sink"]) else ()
    spark = session("beadline-matrix", connectors, **settings(folder / "scratch"))
    frame = jobs.shaped(cell["sink"], jobs.numbers(cell["source"], spark, cell["from"]))
    function = {"exactly_once": exactly_once, "at_least_once": at_least_once}[cell["function"]]
    again = f"-{start}" if cell["source"] in jobs.FORGETFUL else ""
    # The weakest that there is, on both sides: what it promises is told, and judged elsewhere.
    stream = function(frame, cell["name"] + again, allow="at-most-once").to(
        jobs.made(cell["sink"], cell["to"]), allow="at-most-once", shared_disk=True
    )
    emit({"kind": "promised", "level": str(stream.guarantee().level)})
    query = stream.start(str(folder / f"checkpoint{again}"), every=_EVERY, listener=tell)
    while not (folder / "stop").exists():
        if query.awaitTermination(0.1):
            break
        time.sleep(0.05)
    query.stop()
    failure = query.exception()
    if failure is not None:
        raise failure
    spark.stop()


if __name__ == "__main__":
    try:
        main(Path(sys.argv[1]), sys.argv[2])
    except BeadlineError as error:
        emit({"kind": "failed", "message": str(error)})
        sys.exit(error.exit_code)
