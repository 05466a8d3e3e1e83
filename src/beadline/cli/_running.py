"""The queries of a job while they run: started together, restarted one by one, ended together.

A query that fails is started again as the job's restart strategy says; one that fails for good
stops the others cleanly, and its error is the job's. A signal stops all.
"""

from __future__ import annotations

import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from types import FrameType
from typing import TYPE_CHECKING, Any

from beadline.cli._watch import Watch
from beadline.cli.output import Output
from beadline.jobs.loading import JobFile, Planned, check_all
from beadline.jobs.restart import Restarts

if TYPE_CHECKING:
    from beadline.spark.query import Query

_LOOK_EVERY_S = 0.3
_SIGNALS = (signal.SIGINT, signal.SIGTERM)


@dataclass
class Stop:
    """Whether somebody wants the job to end."""

    asked: bool = False

    def __call__(self, number: int, frame: FrameType | None) -> None:
        """Be the signal's handler; what it prints could cut into a line that is being printed."""
        if self.asked and number == signal.SIGINT:
            raise KeyboardInterrupt
        self.asked = True

    def ask(self) -> None:
        """Want the job to end."""
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


@dataclass
class Running:
    """One query of the job: running, waiting for its restart, or at its end."""

    planned: Planned
    watch: Watch
    restarts: Restarts
    query: Query | None = None
    start_at_s: float = 0.0
    ended: bool = False

    def look(self, wait_s: float) -> None:
        """Start it if it is time, see whether it ended; raises what ended it for good."""
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
        """End it cleanly; raises what went wrong with it before."""
        if self.query is None:
            return
        query, self.query = self.query, None
        query.stop()
        failure = query.exception()
        if failure is not None:
            raise failure


def run_all(plans: list[Planned], file: JobFile, out: Output, stop: Stop) -> None:
    """Run the queries until all have ended, one fails for good, or a signal comes."""
    width = max(len(plan.stream.name) for plan in plans)
    runs = []
    for plan in plans:
        name = plan.stream.name
        prefix = f"[cyan]{name:{width}}[/]  " if len(plans) > 1 else ""
        watch = Watch(out, name, prefix, stop.ask, file.redact)
        runs.append(Running(plan, watch, Restarts(file.restart)))
        if not stop.asked:
            sinks = ", ".join(each.name for each in plan.stream.outputs)
            out.say(f"[bold]{name}[/], {plan.stream.mode}, into {sinks}; Ctrl-C stops it")
    results: list[dict[str, Any]] = []
    if len(plans) > 1 and not stop.asked:
        check_all(plans)
    try:
        _look_after(runs, stop, results)
    except Exception:  # a second Ctrl-C is none, and leaves at once
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
    runs: list[Running], out: Output, results: list[dict[str, Any]], *, failed: bool = False
) -> None:
    """Stop what still runs, all of it, whatever one of them has to say."""
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
