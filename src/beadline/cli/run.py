"""`beadline run`: start a job file, show its epochs as they are committed, stop it cleanly.

The first Ctrl-C or SIGTERM stops the query: an undecided epoch is aborted, a decided one finished,
and the exit code is 0. A second Ctrl-C leaves at once, as a crash would, and the next start settles
what was left; that is what the protocol is for.
"""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from typing import Annotated

import typer

from beadline.cli._jobs import ConfOption, VerboseOption, job_session, settings_of, show_trace, told
from beadline.cli._running import Stop, run_all
from beadline.cli.output import JsonOption, output
from beadline.environment.quiet import quiet
from beadline.errors import UsageError
from beadline.jobs.loading import JobFile, Planned, open_job

__all__ = ["Stop", "run"]


def run(
    job: Annotated[
        str, typer.Argument(help="A TOML file, or Python with: def job(spark) -> Stream.")
    ],
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
        typer.Option(
            help="Once: give up the rows that a sink lacks or cannot take, by its name; NAME@17 "
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
    options = _Options(checkpoint, every, available_now, output_mode, tuple(drop or ()))
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
        raise told(file, error) from error


@dataclass(frozen=True)
class _Options:
    """What the command line says of a query; it wins over the job file."""

    checkpoint: str | None
    every: str | None
    available_now: bool
    output_mode: str | None
    drop: tuple[str, ...]

    def check(self, file: JobFile) -> None:
        """Each is about one query, so a job of several must have it in the file."""
        given = [each.name for each in fields(self) if getattr(self, each.name)]
        if given and file.several:
            raise UsageError(
                f"{file.path} has several queries, and --{given[0].replace('_', '-')} is about "
                f"one: set the key {given[0]!r} in each of its [[queries]]. Nothing was written."
            )
        if not self.checkpoint and file.no_checkpoint is not None:
            raise _no_checkpoint(file.no_checkpoint)

    def over(self, plan: Planned) -> Planned:
        """Return the query as it is to be started; the trigger is one thing."""
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
        "checkpoint) in the job file; it must stay the same over restarts. Nothing was written."
    )
