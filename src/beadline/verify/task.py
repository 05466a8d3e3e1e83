"""What the processes of a verification exchange, in files of a round's folder."""

from __future__ import annotations

import json
import pickle
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from beadline.sink import Guarantee
from beadline.verify.compare import EpochEnd, SinkContents
from beadline.verify.source_range import RangeLimits, SourceRange

INSPECT, RUN = "inspect", "run"
# Sinks, sources and settings travel in these, with their passwords: the reader deletes the file.
TASK, FOUND, RANGES, RECORDED = "task.pickle", "found.pickle", "ranges.pickle", "recorded.pickle"
SECRET = (TASK, FOUND, RANGES, "due-*.pickle")
STOP = "stop"  # when it exists, a child stops its query and ends
CHECKPOINT = "checkpoint"


@dataclass(frozen=True)
class InspectedSink:
    """One sink of the job, as it was found."""

    name: str
    sink: Any
    exactly: bool


@dataclass(frozen=True)
class Inspection:
    """What an inspection of the job found."""

    query: str
    mode: Guarantee
    sinks: tuple[InspectedSink, ...]
    left_out: tuple[str, ...]
    ranges: tuple[SourceRange, ...]
    stateful: bool


@dataclass(frozen=True)
class Recording:
    """What an undisturbed run showed after each epoch, by sink, and where the epoch ended."""

    states: dict[int, dict[str, SinkContents]] = field(default_factory=dict)
    ends: dict[int, EpochEnd | None] = field(default_factory=dict)


@dataclass(frozen=True)
class Task:
    """The input of a verification process, in a pickle in its folder."""

    job: str
    conf: dict[str, Any]
    tag: str
    limits: RangeLimits
    connectors: tuple[str, ...] = ()
    output_mode: str | None = None
    ranges: tuple[SourceRange, ...] = ()
    sinks: dict[str, Any] = field(default_factory=dict)
    readers: dict[str, Any] = field(default_factory=dict)
    record: bool = False  # what shows after each epoch

    def save(self, folder: Path, name: str = TASK) -> None:
        """Save it for a child."""
        from pyspark import cloudpickle

        folder.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(cloudpickle.dumps(self))  # type: ignore[no-untyped-call]

    @classmethod
    def take(cls, folder: Path, name: str = TASK) -> Task:
        """Read it, in the child, and delete it."""
        path = folder / name
        task: Task = pickle.loads(path.read_bytes())  # noqa: S301 (our own)
        path.unlink()
        return task


def task_of(due: Path) -> str:
    """The task by which a driver that is started ahead makes its session."""
    return f"{due.name}.pickle"


def query_name(real: str, tag: str) -> str:
    """The job's name with the tag: what a server remembers about it is not about the real query."""
    return f"{real[: 59 - len(tag)]}-{tag}"


def epoch_end(checkpoint: Path, epoch: int) -> EpochEnd | None:
    """Return where an epoch ends, or None if Spark does not know it, or not any more."""
    try:
        text = (checkpoint / "offsets" / str(epoch)).read_text("utf-8")
        version, metadata, *ends = text.split("\n")
        return (version, int(json.loads(metadata).get("batchWatermarkMs", 0)), *ends)
    except (FileNotFoundError, ValueError, AttributeError):
        return None
