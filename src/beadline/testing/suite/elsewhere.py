"""Commit in a process that is started after the preparing one, which may be dead by then.

It is given what such a process has: the sink, pickled as it goes to executors, and the parts as
JSON, as the decision log keeps them. It runs in another folder, so that a relative path in a
committable is found out.
"""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from typing import Any

from beadline.ids import PartId
from beadline.sink import AnySink, Outcome, Prepared
from beadline.testing.suite.target import PreparedParts, epoch_id, pickled

TIMEOUT_S = 120
_RUN = "from beadline.testing.suite.elsewhere import main; main()"
_ANSWER = "outcome: "


@dataclass(frozen=True)
class _Order:
    sink: AnySink
    epoch: int
    parts: list[tuple[PartId, int, dict[str, Any]]]


def commit_elsewhere(sink: AnySink, epoch: int, parts: PreparedParts) -> set[Outcome]:
    """Commit in a new process; return the outcomes that it reports."""
    order = _Order(sink, epoch, [(p.id, p.rows, p.committable.to_json()) for p in parts])
    done = subprocess.run(
        [sys.executable, "-c", _RUN],
        input=pickled(order),
        capture_output=True,
        timeout=TIMEOUT_S,
        cwd=tempfile.gettempdir(),
        env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
        check=False,
    )
    assert done.returncode == 0, f"committing elsewhere failed:\n{done.stderr.decode()}"
    lines = done.stdout.decode().splitlines()
    return {Outcome(line.removeprefix(_ANSWER)) for line in lines if line.startswith(_ANSWER)}


def main() -> None:
    """In the other process: commit what comes in, and say what became of it."""
    order: _Order = pickle.load(sys.stdin.buffer)  # noqa: S301 (from our own parent)
    parts = [
        Prepared(id_, rows, order.sink.committable.from_json(stored))
        for id_, rows, stored in order.parts
    ]
    result = order.sink.commit(epoch_id(order.epoch), parts)
    for part in parts:
        print(f"{_ANSWER}{result.outcomes[part.id].value}")
