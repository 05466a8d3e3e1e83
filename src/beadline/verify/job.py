"""The process that gets killed: ``python -m beadline.verify.job FOLDER [inspect|run]``.

``inspect`` examines the job, copies the ranges of its sources and reports what it found, in a
pickle: sinks travel that way to Spark's workers too. ``run`` processes the range, with scratch
sinks in place of the real ones; each event is one line of JSON on stdout, as in ``driver``.
"""

from __future__ import annotations

import argparse
import os
import pickle
import sys
import traceback
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from beadline.errors import BeadlineError, UsageError
from beadline.observe import Event
from beadline.sink import Guarantee
from beadline.verify import scratch
from beadline.verify.driver import (
    MASTER,
    STANDBY,
    emit,
    light_settings,
    run_until,
    stand_by,
    tell,
)
from beadline.verify.processes import kill_group
from beadline.verify.source_range import (
    Key,
    SourceRange,
    check_all_fixed,
    fix,
    found_again,
    key_of,
    redirected,
)
from beadline.verify.task import (
    CHECKPOINT,
    FOUND,
    INSPECT,
    RANGES,
    RECORDED,
    RUN,
    STOP,
    TASK,
    InspectedSink,
    Inspection,
    Recording,
    Task,
    epoch_end,
    query_name,
    task_of,
)

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from beadline.guarantee.sources import SourceFacts
    from beadline.jobs.loading import Job
    from beadline.stream import Stream


def _session(task: Task, folder: Path) -> SparkSession:
    """The session for the job, made once."""
    from pyspark.sql import SparkSession

    from beadline.environment.session import session
    from beadline.jobs.loading import open_job

    active = SparkSession.getActiveSession()
    if active is not None:
        return active
    conf = {**open_job(task.job).conf, **task.conf}
    # Its output may end up in a report, where a progress bar is noise.
    light = {**light_settings(folder), "spark.ui.showConsoleProgress": "false"}
    if str(conf.get("spark.master", "local")).startswith("local"):
        conf["spark.master"] = MASTER  # tasks are tried again: a worker's death costs an attempt
    return session("beadline verify", task.connectors, **{**light, **conf})


def _built(task: Task, folder: Path, swap: Any) -> tuple[Stream, list[SourceRange], Job]:
    """The job's stream on copies of its sources."""
    from beadline.jobs.loading import build_stream, load_job, open_job

    file = open_job(task.job)
    spark = _session(task, folder)
    job = load_job(file)
    with redirected(swap) as used:
        stream = build_stream(job, spark)
    check_all_fixed(stream.frame, used)
    return stream, used, job


def inspect(task: Task, folder: Path) -> None:
    """Examine the job and fix the range of its sources."""
    from pyspark import cloudpickle

    from beadline.spark.plan import is_stateful

    copies = folder / "copies"
    copies.mkdir(parents=True, exist_ok=True)
    fixed: dict[Key, SourceRange] = {}

    def swap(frame: DataFrame, seen: SourceFacts) -> SourceRange:
        key = key_of(seen)
        if key not in fixed:
            tag = f"{task.tag}r{len(fixed)}"  # two sources may copy the same topic
            fixed[key] = fix(frame, seen, copies, tag, task.limits)
            # At once: if the job is refused later, what was made is known, and removed.
            (folder / RANGES).write_bytes(pickle.dumps(tuple(fixed.values())))
        return fixed[key]

    stream, used, _ = _built(task, folder, swap)
    if not used:
        raise UsageError("the job reads no stream: there is nothing to verify.")
    sinks, left_out = [], []
    for output in stream.outputs:
        level = stream.mode if output.allow is None else min(stream.mode, output.allow)
        if type(output.sink).__name__ == "ConsoleSink":
            left_out.append(output.name)
            continue
        scratch.store_of(output.name, output.sink)  # or an error that says what it needs
        sinks.append(InspectedSink(output.name, output.sink, level is Guarantee.EXACTLY_ONCE))
    if not sinks:
        raise UsageError("no sink of the job can be read back: there is nothing to compare.")
    found = Inspection(
        stream.name,
        stream.mode,
        tuple(sinks),
        tuple(left_out),
        tuple(fixed.values()),
        is_stateful(stream.frame),
    )
    (folder / FOUND).write_bytes(cloudpickle.dumps(found))  # type: ignore[no-untyped-call]


@dataclass
class Recorder:
    """Emits every event, and records what shows after each epoch, on the epoch's thread."""

    readers: dict[str, Any]
    folder: Path
    recorded: Recording = field(default_factory=Recording)

    def __call__(self, event: Event) -> None:
        """Record, and emit the event."""
        if event.kind == "committed" and event.epoch is not None:
            self.recorded.states[event.epoch] = {
                name: scratch.shown(name, sink) for name, sink in self.readers.items()
            }
            self.recorded.ends[event.epoch] = epoch_end(self.folder / CHECKPOINT, event.epoch)
        tell(event)

    def save(self) -> None:
        """Save what was recorded."""
        (self.folder / RECORDED).write_bytes(pickle.dumps(self.recorded))


def run(task: Task, folder: Path) -> None:
    """Process the range, or continue until told to stop."""

    def swap(frame: DataFrame, seen: SourceFacts) -> SourceRange:
        return found_again(task.ranges, seen)

    stream, _, job = _built(task, folder, swap)
    outputs = tuple(
        replace(each, sink=task.sinks.get(each.name, each.sink)) for each in stream.outputs
    )
    stream = replace(stream, name=query_name(stream.name, task.tag), outputs=outputs)
    recorder = Recorder(task.readers, folder) if task.record else None
    parent = os.getppid()
    query = stream.start(
        str(folder / CHECKPOINT),
        available_now=True,
        output_mode=task.output_mode or job.output_mode,
        listener=recorder or tell,
    )

    def end_with_parent() -> None:
        if os.getppid() != parent:
            kill_group(os.getpid())  # its supervisor is gone and cannot end it

    run_until(query, folder / STOP, end_with_parent)
    if recorder is not None:
        recorder.save()
    # No spark.stop(): the JVM ends with this process, and nothing waits for it.


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the folder's task; exit with the code of Beadline's error, if there is one."""
    parser = argparse.ArgumentParser(prog="python -m beadline.verify.job")
    parser.add_argument("folder", type=Path)
    parser.add_argument("act", choices=(INSPECT, RUN))
    given = parser.parse_args(arguments)
    due = os.environ.get(STANDBY)
    task = Task.take(given.folder, task_of(Path(due)) if due else TASK)
    try:
        if due:
            _session(task, given.folder)
            stand_by()
            task = Task.take(given.folder)
        (inspect if given.act == INSPECT else run)(task, given.folder)
    except Exception as error:  # noqa: BLE001 (reported, and the process ends with it)
        sys.exit(_fail(task, error))


def _fail(task: Task, error: Exception) -> int:
    """Report an error without the job's secrets; return the exit code."""
    from beadline.jobs.loading import reason

    said = str(error) if isinstance(error, BeadlineError) else reason(error)
    message = _redacted(task, said)
    emit({"kind": "failed", "error": type(error).__name__, "message": message})
    if isinstance(error, BeadlineError):
        return error.exit_code
    sys.stderr.write(_redacted(task, "".join(traceback.format_exception(error))))
    return 1


def _redacted(task: Task, text: str) -> str:
    from beadline.jobs.loading import open_job

    try:
        return open_job(task.job).redact(text)
    except BeadlineError:  # the job file is wrong, and its own error holds no secret
        return text


if __name__ == "__main__":
    main()
