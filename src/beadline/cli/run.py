"""`beadline run`: start a job file, show its epochs as they are committed, stop it cleanly.

The first Ctrl-C or SIGTERM stops the query: an undecided epoch is aborted, a decided one finished,
and the exit code is 0. A second Ctrl-C leaves at once, as a crash would, and the next start settles
what was left; that is what the protocol is for.
"""

from __future__ import annotations

import signal
import sys
import traceback
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from types import FrameType
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.markup import escape

from beadline.cli._jobs import ConfOption, VerboseOption, job_session, settings_of, told
from beadline.cli.output import JsonOption, Output, output
from beadline.errors import UsageError
from beadline.observe import Event
from beadline.run.jobs import Job, build_stream, load_job, open_job
from beadline.run.quiet import quiet

if TYPE_CHECKING:
    from beadline.run.query import Query
    from beadline.stream import Stream

_LOOK_EVERY_S = 0.3
_SIGNALS = (signal.SIGINT, signal.SIGTERM)


@dataclass
class Watch:
    """Hears what the coordinator did, says it, and counts it for the last line."""

    out: Output
    stop: Stop
    epochs: int = 0
    generation: int = 0
    rows: Counter[str] = field(default_factory=Counter)

    def __call__(self, event: Event) -> None:
        """Be told one event, on the thread that runs the epoch."""
        self.generation = event.generation
        if event.kind == "committed":
            self.epochs += 1
            self.rows.update(event.details.get("rows", {}))
        try:
            self.out.show(_as_object(event), *_as_lines(event))
        except OSError:  # whoever read this has gone (`| head`); the epoch must not fail over it
            self.stop.asked = True

    def end(self, query: str, why: str) -> None:
        """Give the result: the last line."""
        result = {
            "event": "ended",
            "query": query,
            "why": why,
            "generation": self.generation,
            "epochs": self.epochs,
            "rows": dict(self.rows),
        }
        rows = _rows(self.rows)
        counted = "1 epoch" if self.epochs == 1 else f"{self.epochs:,} epochs"
        self.out.show(result, f"{why}: {counted} committed by this start{rows}")


@dataclass
class Stop:
    """Whether somebody wants the query to end."""

    asked: bool = False

    def __call__(self, number: int, frame: FrameType | None) -> None:
        """Be the signal's handler; what it prints could cut into a line that is being printed."""
        if self.asked and number == signal.SIGINT:
            raise KeyboardInterrupt
        self.asked = True

    @contextmanager
    def on_signals(self) -> Iterator[None]:
        """Listen from here on."""
        before = {number: signal.getsignal(number) for number in _SIGNALS}
        self.listen()
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    def listen(self) -> None:
        """Take the signals; again after Spark's start, which takes Ctrl-C for itself.

        PySpark's own handler would cancel the jobs of an epoch under a running query.
        """
        for number in _SIGNALS:
            signal.signal(number, self)


def run(
    job: Annotated[str, typer.Argument(help="A Python file with: def job(spark) -> Stream.")],
    checkpoint: Annotated[
        str | None, typer.Option(help="The query's folder; the job's CHECKPOINT otherwise.")
    ] = None,
    every: Annotated[
        str | None, typer.Option(help='Start an epoch at most so often, such as "1 second".')
    ] = None,
    available_now: Annotated[
        bool, typer.Option("--available-now", help="Process what is there, then end.")
    ] = False,
    output_mode: Annotated[
        str | None, typer.Option(help="append, update or complete, for aggregations.")
    ] = None,
    drop: Annotated[
        list[str] | None,
        typer.Option(help="Give up the decided rows of a sink that is gone, by its name."),
    ] = None,
    conf: ConfOption = None,
    verbose: VerboseOption = False,
    json: JsonOption = False,
) -> None:
    """Run a job file until it ends or is stopped; Ctrl-C stops it cleanly."""
    out = output(json)
    file = open_job(job)
    if every is not None and available_now:
        raise UsageError("take --every or --available-now, not both. Nothing was written.")
    settings = {**file.conf, **settings_of(conf)}
    if not verbose:
        quiet()
    out.say("[dim]starting Spark …[/]")
    stop = Stop()
    try:
        with stop.on_signals(), job_session(file, settings, "run") as spark:
            stop.listen()
            loaded = load_job(file)
            start = {
                **_trigger(loaded, every, available_now),
                "checkpoint": _checkpoint(loaded, checkpoint),
                "output_mode": output_mode or loaded.output_mode,
                "drop": tuple(drop or ()),
            }
            _run(build_stream(loaded, spark), start, out, stop)
    except Exception as error:
        if verbose:
            traceback.print_exception(error, file=sys.stderr)
        raise told(file, error) from error


def _run(stream: Stream, start: dict[str, Any], out: Output, stop: Stop) -> None:
    """Start the query, wait for its end or for a signal, and say how it ended."""
    watch = Watch(out, stop)
    why = "stopped"
    if not stop.asked:
        sinks = ", ".join(each.name for each in stream.outputs)
        out.say(f"[bold]{stream.name}[/], {stream.mode}, into {sinks}; Ctrl-C stops it")
        query = stream.start(listener=watch, **start)
        if _wait(query, stop):
            why = "finished"
        else:
            out.say("[dim]stopping: an undecided epoch is aborted, a decided one finished …[/]")
            query.stop()
            failure = query.exception()
            if failure is not None:
                raise failure
    watch.end(stream.name, why)


def _wait(query: Query, stop: Stop) -> bool:
    """Return whether the query ended by itself; raises what ended it."""
    while not stop.asked:
        if query.awaitTermination(_LOOK_EVERY_S):
            return True
    return False


def _checkpoint(job: Job, option: str | None) -> str:
    folder = option or job.checkpoint
    if not folder:
        raise UsageError(
            f"{job.path}: no checkpoint folder. Give --checkpoint DIR, or set CHECKPOINT in the "
            "job file; it must stay the same over restarts. Nothing was written."
        )
    return folder


def _trigger(job: Job, every: str | None, available_now: bool) -> dict[str, Any]:
    """The command line's trigger, as a whole, before the job's."""
    if every is not None or available_now:
        return {"every": every, "available_now": available_now}
    return {"every": job.every, "available_now": job.available_now}


def _as_object(event: Event) -> dict[str, Any]:
    """One line for programs; the event's own words come first."""
    head = {"event": event.kind, "query": event.query, "generation": event.generation}
    epoch = {} if event.epoch is None else {"epoch": event.epoch}
    return {**head, **epoch, "at_ms": event.at_ms, **event.details}


def _as_lines(event: Event) -> list[str]:
    """One line for people, or none: prepared and decided pass too quickly to be read."""
    details = event.details
    text = {
        "claimed": f"generation {event.generation} holds the log",
        "recovered": f"epoch {event.epoch}: decided by an older start, finished now",
        "swept": f"orphans of older starts aborted: {details.get('orphans')}",
        "committed": f"epoch {event.epoch} [green]committed[/]{_rows(details.get('rows', {}))}",
        "lost": f"epoch {event.epoch} [red]lost parts[/]: {details.get('parts')}",
        "replayed": f"epoch {event.epoch} replayed: {details.get('sinks')}",
        "sweep failed": f"[yellow]sweep failed[/]: {escape(str(details.get('error')))}",
    }.get(event.kind)
    return [] if text is None else [text]


def _rows(rows: dict[str, int]) -> str:
    return "".join(f"  {name} {count:,}" for name, count in sorted(rows.items()))
