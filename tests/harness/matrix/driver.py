"""The process of a cell that gets killed: ``python -m tests.harness.matrix.driver FOLDER``."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

from beadline.verify.driver import emit, light_settings, run_as_program, run_until, stand_by, tell
from tests.harness.matrix import jobs

_EVERY = "100 milliseconds"


def main(folder: Path) -> None:
    """Run the cell's job until it is told to stop."""
    from beadline import at_least_once, exactly_once
    from beadline.environment.session import session

    cell = json.loads((folder / "cell.json").read_text("utf-8"))
    connectors = ("kafka",) if "kafka" in (cell["source"], cell["sink"]) else ()
    spark = session("beadline-matrix", connectors, **light_settings(folder / "scratch"))
    stand_by()  # a journal has one writer
    frame = jobs.shaped(cell["sink"], jobs.numbers(cell["source"], spark, cell["from"]))
    function = {"exactly_once": exactly_once, "at_least_once": at_least_once}[cell["function"]]
    again = f"-{os.getpid()}" if cell["source"] in jobs.FORGETFUL else ""
    # The weakest that there is, on both sides: what it promises is told, and judged elsewhere.
    stream = function(frame, cell["name"] + again, allow="at-most-once").to(
        jobs.made(cell["sink"], cell["to"]), allow="at-most-once", shared_disk=True
    )
    emit({"kind": "promised", "level": str(stream.guarantee().level)})
    query = stream.start(str(folder / f"checkpoint{again}"), every=_EVERY, listener=tell)
    run_until(query, folder / "stop")
    spark.stop()


if __name__ == "__main__":
    run_as_program(lambda: main(Path(sys.argv[1])))
