"""`beadline analyze`: what a job guarantees, before it is deployed."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from beadline.cli._jobs import (
    ConfOption,
    JobArgument,
    VerboseOption,
    as_beadline_error,
    job_session,
    settings_of,
    show_trace,
)
from beadline.cli.output import JsonOption, output
from beadline.environment.quiet import quiet
from beadline.errors import GuaranteeRefused
from beadline.jobs.loading import open_job
from beadline.sink import Guarantee

if TYPE_CHECKING:
    from beadline.guarantee import Report

_COLORS = {
    Guarantee.EXACTLY_ONCE: "green",
    Guarantee.AT_LEAST_ONCE: "yellow",
    Guarantee.AT_MOST_ONCE: "red",
}


def analyze(
    job: JobArgument,
    restart: Annotated[
        float, typer.Option(help="The longest restart to plan for, in seconds.", min=0)
    ] = 600.0,
    conf: ConfOption = None,
    verbose: VerboseOption = False,
    json: JsonOption = False,
) -> None:
    """Report what each query of a job guarantees and what limits it; exits with 3 if refused.

    A query is refused if `run` would not start it. Reads the job's plan and settings, and asks the
    servers of its sinks. Nothing is written.
    """
    from beadline.spark.analyze import analyze as judged

    out = output(json)
    file = open_job(job)
    if not verbose:
        quiet()
    out.say("[dim]starting Spark …[/]")
    try:
        settings = {**file.conf, **settings_of(conf)}
        with job_session(file, settings, "analyze") as spark:
            reports = [
                judged(plan.stream, restart, plan.checkpoint, plan.options)
                for plan in file.plan(spark)
            ]
    except Exception as error:
        if verbose:
            show_trace(file, error)
        raise as_beadline_error(file, error) from error
    for report in reports:
        out.show(report.to_dict(), *views(report))
    if file.several:  # the last line is about all of them
        worst = min(reports, key=lambda report: report.level)
        refused = any(report.refused for report in reports)
        whole = {"level": str(worst.level), "refused": refused}
        out.show({"job": str(file.path), **whole, "queries": [each.query for each in reports]})
    if any(report.refused for report in reports):
        raise typer.Exit(GuaranteeRefused.exit_code)


def views(report: Report) -> list[RenderableType]:
    """Return the report as a sentence and a table."""
    heading = Text.assemble(
        "query ", (report.query, "bold"), " is ", (str(report.level), _COLORS[report.level])
    )
    if report.level < report.asked:
        heading.append(f", but was meant to be {report.asked}")
        heading.append("; run would refuse it" if report.refusals else ", which was allowed")
    for problem in report.problems:
        heading.append(f"\nrun would refuse it: {problem}", style="red")
    table = Table(expand=False)
    for title in ("part", "guarantee", "why, and what would help"):
        table.add_column(title, overflow="fold")
    for found in (*report.limits, *(f for f in report.findings if f not in report.limits)):
        why = Text(found.why)
        if found.cure:
            why.append(f"\n→ {found.cure}", style="cyan")
        level = Text(str(found.level), style=_COLORS[found.level])
        if found.warning and found not in report.limits:
            level.append("\nbut note:", style="yellow")
        table.add_row(Text(found.part), level, why)
    return [heading, table]
