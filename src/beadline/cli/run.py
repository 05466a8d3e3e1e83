"""`beadline run`: start a job file, show its epochs as they are committed, stop it cleanly.

The queries of a job are started together. A query that fails is restarted according to the job's
restart strategy; if it fails for good, the others are stopped cleanly and the job fails with its
error.

The first Ctrl-C or SIGTERM stops the job: an undecided epoch is aborted, a decided one finished,
and the exit code is 0. A second Ctrl-C exits at once, as a crash would, and the next start finishes
or aborts what was left; that is what the protocol is for.
"""

from __future__ import annotations

import signal
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, fields, replace
from types import FrameType
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.markup import escape

from beadline.cli._jobs import (
    ConfOption,
    JobArgument,
    VerboseOption,
    as_beadline_error,
    job_session,
    settings_of,
    show_trace,
)
from beadline.cli.output import Console, JsonOption, output
from beadline.environment.quiet import quiet
from beadline.errors import UsageError
from beadline.jobs.loading import JobFile, PlannedQuery, check_all, open_job
from beadline.jobs.restart import Restarts
from beadline.observe import Event

if TYPE_CHECKING:
    from beadline.spark.query import Query

_LOOK_EVERY_S = 0.3
_SIGNALS = (signal.SIGINT, signal.SIGTERM)
# Each query runs on a thread of its own, and their lines of output must not mix.
_one_at_a_time = threading.Lock()


def run(
    job: JobArgument,
    checkpoint: Annotated[
        str | None,
        typer.Option(help="The query's checkpoint folder; by default the job's CHECKPOINT."),
    ] = None,
    every: Annotated[
        str | None, typer.Option(help='Start at most one epoch per interval, such as "1 second".')
    ] = None,
    available_now: Annotated[
        bool, typer.Option("--available-now", help="Process all available data, then end.")
    ] = False,
    output_mode: Annotated[
        str | None, typer.Option(help="For aggregations: append, update or complete.")
    ] = None,
    drop: Annotated[
        list[str] | None,
        typer.Option(
            help="Give up, once, the rows that the sink of this name lacks or cannot take; NAME@17 "
            "for one decided epoch. May be repeated."
        ),
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
    options = _StartOptions(checkpoint, every, available_now, output_mode, tuple(drop or ()))
    options.check(file)
    settings = {**file.conf, **settings_of(conf)}
    if not verbose:
        quiet()
    out.say("[dim]starting Spark …[/]")
    stop = Stop()
    try:
        with stop.on_signals(), job_session(file, settings, "run") as spark:
            stop.listen()
            plans = [options.over(plan) for plan in file.plan(spark)]
            run_all(plans, file, out, stop)
    except Exception as error:
        if verbose:
            show_trace(file, error)
        raise as_beadline_error(file, error) from error


@dataclass(frozen=True)
class _StartOptions:
    """The options of the command line, which take precedence over the job file."""

    checkpoint: str | None
    every: str | None
    available_now: bool
    output_mode: str | None
    drop: tuple[str, ...]

    def check(self, file: JobFile) -> None:
        """Raise if one is given for a job of several queries: each applies to one query."""
        given = [each.name for each in fields(self) if getattr(self, each.name)]
        if given and file.several:
            raise UsageError(
                f"{file.path} has several queries, and --{given[0].replace('_', '-')} applies to "
                f"one: set the key {given[0]!r} in each of its [[queries]]. Nothing was written."
            )
        if not self.checkpoint and file.no_checkpoint is not None:
            raise _no_checkpoint(file.no_checkpoint)

    def over(self, plan: PlannedQuery) -> PlannedQuery:
        """Return the query with these options; a trigger given here replaces the file's."""
        checkpoint = self.checkpoint or plan.checkpoint
        if not checkpoint:
            raise _no_checkpoint(plan.where)
        if self.every is not None or self.available_now:
            plan = replace(plan, every=self.every, available_now=self.available_now)
        return replace(
            plan,
            checkpoint=checkpoint,
            output_mode=self.output_mode or plan.output_mode,
            drop=self.drop or plan.drop,
        )


def _no_checkpoint(where: str) -> UsageError:
    return UsageError(
        f"{where}: no checkpoint folder. Give --checkpoint DIR, or set CHECKPOINT (in TOML: "
        "checkpoint) in the job file; it must stay the same across restarts. Nothing was written."
    )


@dataclass
class Stop:
    """Whether the job was asked to end."""

    asked: bool = False

    def __call__(self, number: int, frame: FrameType | None) -> None:
        """Handle a signal. It prints nothing: that could cut into a line being printed."""
        if self.asked and number == signal.SIGINT:
            raise KeyboardInterrupt
        self.asked = True

    def ask(self) -> None:
        """Ask the job to end."""
        self.asked = True

    @contextmanager
    def on_signals(self) -> Iterator[None]:
        """Handle the signals inside the block, and restore their handlers after it."""
        before = {number: signal.getsignal(number) for number in _SIGNALS}
        self.listen()
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    def listen(self) -> None:
        """Install the handlers; again after Spark has started, which installs one for Ctrl-C.

        PySpark's own handler would cancel the Spark jobs of a running epoch.
        """
        for number in _SIGNALS:
            signal.signal(number, self)


@dataclass
class Running:
    """One query of the job: running, waiting for its restart, or ended."""

    planned: PlannedQuery
    watch: EventPrinter
    restarts: Restarts
    query: Query | None = None
    start_at_s: float = 0.0
    ended: bool = False

    def look(self, wait_s: float) -> None:
        """Start it when it is time, check whether it ended; raise the error that ended it."""
        try:
            if self.query is None:
                self._start(wait_s)
            elif self.query.awaitTermination(wait_s):
                self.query, self.ended = None, True
        except Exception as failure:
            delay_s = self.restarts.after(failure, ran=self.watch.generation > 0)
            self.query = None
            if delay_s is None:
                self.ended = True
                raise
            self.watch.restarting(failure, self.restarts.attempt, delay_s)
            self.start_at_s = time.monotonic() + delay_s

    def _start(self, wait_s: float) -> None:
        left_s = self.start_at_s - time.monotonic()
        if left_s > 0:
            time.sleep(min(left_s, wait_s))
            return
        plan = self.planned
        self.query = plan.stream.start(
            str(plan.checkpoint),
            every=plan.every,
            available_now=plan.available_now,
            output_mode=plan.output_mode,
            drop=plan.drop,
            keep=plan.keep,
            options=plan.options,
            listener=self.watch,
        )
        self.restarts.started()

    def stop(self) -> None:
        """Stop it cleanly; raise the error that it had failed with before, if any."""
        if self.query is None:
            return
        query, self.query = self.query, None
        query.stop()
        failure = query.exception()
        if failure is not None:
            raise failure


def run_all(plans: list[PlannedQuery], file: JobFile, out: Console, stop: Stop) -> None:
    """Run the queries until all have ended, one fails for good, or a signal arrives."""
    width = max(len(plan.stream.name) for plan in plans)
    runs = []
    for plan in plans:
        name = plan.stream.name
        prefix = f"[cyan]{name:{width}}[/]  " if len(plans) > 1 else ""
        watch = EventPrinter(out, name, prefix, stop.ask, file.redact)
        runs.append(Running(plan, watch, Restarts(file.restart)))
        if not stop.asked:
            sinks = ", ".join(each.name for each in plan.stream.outputs)
            out.say(f"[bold]{name}[/], {plan.stream.mode}, into {sinks}; Ctrl-C stops it")
    results: list[dict[str, Any]] = []
    if len(plans) > 1 and not stop.asked:
        check_all(plans)
    try:
        _look_after(runs, stop, results)
    except Exception:  # not KeyboardInterrupt: a second Ctrl-C exits at once
        _stop(runs, out, results, failed=True)
        raise
    _stop(runs, out, results)
    if len(runs) > 1:
        why = "finished" if all(each["why"] == "finished" for each in results) else "stopped"
        out.show({"event": "job ended", "job": str(file.path), "why": why, "queries": results})


def _look_after(runs: list[Running], stop: Stop, results: list[dict[str, Any]]) -> None:
    while not stop.asked:
        left = [run for run in runs if not run.ended]
        if not left:
            return
        for run in left:
            if stop.asked:
                return
            run.look(_LOOK_EVERY_S / len(left))
            if run.ended:
                results.append(run.watch.end("finished"))


def _stop(
    runs: list[Running], out: Console, results: list[dict[str, Any]], *, failed: bool = False
) -> None:
    """Stop all queries that still run, even if one of them fails to stop."""
    if any(run.query is not None for run in runs):
        out.say("[dim]stopping: an undecided epoch is aborted, a decided one finished …[/]")
    failures: list[BaseException] = []
    for run in runs:
        if run.ended:
            continue
        try:
            run.stop()
        except Exception as failure:  # noqa: BLE001 (the others must be stopped too)
            failures.append(failure)
            continue
        if not failed or run.watch.generation:
            results.append(run.watch.end("stopped"))
    if failures and not failed:
        raise failures[0]


@dataclass
class EventPrinter:
    """Prints the events of one query, and counts them for the last line."""

    out: Console
    query: str
    prefix: str = ""
    gone: Callable[[], None] = lambda: None  # called when the output is no longer read
    redact: Callable[[str], str] = str
    epochs: int = 0
    generation: int = 0
    restarts: int = 0
    rows: Counter[str] = field(default_factory=Counter)

    def __call__(self, event: Event) -> None:
        """Print one event, on the thread that runs the epoch."""
        self.generation = event.generation
        if event.kind == "committed":
            self.epochs += 1
            self.rows.update(event.details.get("rows", {}))
        if "error" in event.details:
            said = self.redact(str(event.details["error"]))
            event = replace(event, details={**event.details, "error": said})
        try:
            self.show(_as_object(event), *_as_lines(event))
        except OSError:  # the reader is gone (`| head`); the epoch must not fail because of it
            self.gone()

    def restarting(self, failure: BaseException, attempt: int, delay_s: float) -> None:
        """Report that the query failed and will be restarted."""
        self.restarts += 1
        name, text = type(failure).__name__, self.redact(str(failure))
        result = {
            "event": "restarting",
            "query": self.query,
            "attempt": attempt,
            "delay_s": delay_s,
            "error": name,
            "message": text,
        }
        after = f"restart {attempt} in {delay_s:g} s"
        self.show(result, f"[yellow]failed[/], {after}: {name}: {escape(text)}")

    def end(self, why: str) -> dict[str, Any]:
        """Print and return the result of this query."""
        result = {
            "event": "ended",
            "query": self.query,
            "why": why,
            "generation": self.generation,
            "epochs": self.epochs,
            "rows": dict(self.rows),
        }
        if self.restarts:
            result["restarts"] = self.restarts
        counted = "1 epoch" if self.epochs == 1 else f"{self.epochs:,} epochs"
        self.show(result, f"{why}: {counted} committed by this start{_rows(self.rows)}")
        return result

    def show(self, result: dict[str, Any], *lines: str) -> None:
        """Print the object, or the lines prefixed with the query's name."""
        with _one_at_a_time:
            self.out.show(result, *(f"{self.prefix}{line}" for line in lines))


def _as_object(event: Event) -> dict[str, Any]:
    """Return the event as an object for programs."""
    head = {"event": event.kind, "query": event.query, "generation": event.generation}
    epoch = {} if event.epoch is None else {"epoch": event.epoch}
    return {**head, **epoch, "at_ms": event.at_ms, **event.details}


def _as_lines(event: Event) -> list[str]:
    """Return a line for people, or none: prepared and decided pass too quickly to be read."""
    details = event.details
    text = {
        "claimed": f"generation {event.generation} holds the log{_incomplete(details)}",
        "recovered": f"epoch {event.epoch}: decided by an older start, finished now",
        "swept": f"orphans of older starts aborted: {details.get('orphans')}",
        "committed": f"epoch {event.epoch} [green]committed[/]{_rows(details.get('rows', {}))}",
        "waiting": f"{_place(event)}[yellow]{details.get('doing')}[/], {details.get('seconds')} s",
        "added": f"sink {details.get('sink')} is new: it gets rows from epoch {event.epoch} on",
        "removed": f"sink {details.get('sink')} is no longer one of the query's sinks",
        "dropped": f"[red]given up[/]: rows of {details.get('epochs')} in {details.get('sink')}",
        "lost": f"epoch {event.epoch} [red]lost parts[/]: {details.get('parts')}",
        "replayed": f"epoch {event.epoch} replayed: {details.get('sinks')}",
        "spark restarted": "Spark's query ended over something that may pass, and is restarted",
        "sweep failed": f"[yellow]sweep failed[/]: {escape(str(details.get('error')))}",
    }.get(event.kind)
    return [] if text is None else [text]


def _incomplete(details: dict[str, Any]) -> str:
    """Return the sinks that do not have all rows of the query."""
    later = {name: epoch for name, epoch in details.get("since", {}).items() if epoch}
    said = [f"{name} has rows from epoch {epoch} on" for name, epoch in later.items()]
    said += [f"{name} lacks {epochs}" for name, epochs in details.get("lacks", {}).items()]
    return "".join(f"; {one}" for one in said)


def _place(event: Event) -> str:
    return "" if event.epoch is None else f"epoch {event.epoch}: "


def _rows(rows: dict[str, int]) -> str:
    return "".join(f"  {name} {count:,}" for name, count in sorted(rows.items()))
