"""Endpoints for the tests of ``WriteAheadSink``, and the calls that a query would make on it."""

from __future__ import annotations

import fcntl
import json
import os
import pickle
import signal
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa

from beadline.ids import QueryId
from beadline.sink import Outcome, Part, Prepared, Refuse, StagedPart
from beadline.sinks.write_ahead import Delivery, Endpoint, WriteAheadSink
from beadline.testing.suite.target import QUERY, epoch_id, part_id, pickled


def received(path: str | Path) -> list[dict[str, Any]]:
    """What an endpoint's file holds, in the order of arrival."""
    file = Path(path)
    if not file.exists():
        return []
    return [json.loads(line) for line in file.read_text("utf-8").splitlines()]


def take(path: str | Path, delivery: Delivery, honours_ids: bool) -> None:
    """Append the rows, each with its id; one batch at a time, as a real endpoint would."""
    Path(path).parent.mkdir(parents=True, exist_ok=True)
    with open(path, "a", encoding="utf-8") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        known = {entry["id"] for entry in received(path)} if honours_ids else set()
        for id_, row in zip(delivery.ids, delivery.rows, strict=True):
            if id_ not in known:
                file.write(json.dumps({"id": id_, "row": row}) + "\n")


@dataclass(frozen=True)
class FileEndpoint(Endpoint):
    """Keeps what it got in a file; drops repeats by id, or not."""

    path: str
    honours_ids: bool = True

    @property
    def name(self) -> str:
        return "file"

    def deliver(self, delivery: Delivery) -> None:
        take(self.path, delivery, self.honours_ids)


@dataclass(frozen=True)
class Deadly(Endpoint):
    """Kills its own process, once, at the batch that begins with this row of this part.

    ``when`` is before or after the rows are in the file; the mark says that it has happened.
    """

    path: str
    first_row: int
    when: str
    part: int = 0

    @property
    def name(self) -> str:
        return "deadly"

    def deliver(self, delivery: Delivery) -> None:
        mark = Path(self.path + ".died")
        due = (delivery.part, delivery.first_row) == (self.part, self.first_row)
        due = due and not mark.exists()
        if due and self.when == "before":
            self._die(mark)
        take(self.path, delivery, honours_ids=False)
        if due:
            self._die(mark)

    def _die(self, mark: Path) -> None:
        mark.parent.mkdir(parents=True, exist_ok=True)
        mark.touch()
        os.kill(os.getpid(), signal.SIGKILL)


SCHEMA = pa.schema([("n", pa.int64()), ("word", pa.string())])


def rows(*numbers: int) -> list[dict[str, Any]]:
    """Rows of these numbers."""
    return [{"n": number, "word": f"w{number}"} for number in numbers]


def numbers(path: str | Path) -> list[int]:
    """The numbers of the rows that arrived, in order."""
    return [entry["row"]["n"] for entry in received(path)]


def prepare(
    sink: WriteAheadSink,
    epoch: int,
    *shares: list[dict[str, Any]],
    query: QueryId = QUERY,
    generation: int = 1,
    refuse: Refuse | None = None,
) -> list[Prepared[StagedPart]]:
    """Prepare an epoch in these parts."""
    found = []
    for partition, share in enumerate(shares):
        id_ = part_id(epoch, partition, generation=generation, query=query)
        batches = pa.Table.from_pylist(share, SCHEMA).to_batches(max_chunksize=3)
        part = Part(id_) if refuse is None else Part(id_, refuse=refuse)
        staged = sink.prepare(iter(batches), part)
        if staged is not None:
            found.append(Prepared(id_, staged.rows, staged))
    return found


def commit(sink: WriteAheadSink, epoch: int, parts: list[Prepared[StagedPart]]) -> set[Outcome]:
    """Commit once."""
    return set(sink.commit(epoch_id(epoch), parts).outcomes.values())


def commit_in_child(
    sink: WriteAheadSink, epoch: int, parts: list[Prepared[StagedPart]], crash: str = ""
) -> subprocess.Popen[bytes]:
    """Begin to commit in a process of its own, which may be told to kill itself at a point."""
    child = subprocess.Popen(
        [sys.executable, "-c", "from tests.unit.write_ahead_endpoints import main; main()"],
        stdin=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env={
            **os.environ,
            "PYTHONPATH": os.pathsep.join(filter(None, sys.path)),
            "BEADLINE_CRASH": crash,
        },
    )
    assert child.stdin is not None
    child.stdin.write(pickled((sink, epoch, parts)))
    child.stdin.close()
    return child


def ended(child: subprocess.Popen[bytes]) -> int:
    """Wait for a child; return its code, -9 if it was killed."""
    code = child.wait(timeout=60)
    assert child.stderr is not None
    with child.stderr as errors:
        told = errors.read().decode()
    assert code in (0, -signal.SIGKILL), told
    return code


def main() -> None:
    """In the child: commit what comes in."""
    sink, epoch, parts = pickle.load(sys.stdin.buffer)
    assert commit(sink, epoch, parts) <= {Outcome.COMMITTED, Outcome.ALREADY_COMMITTED}
