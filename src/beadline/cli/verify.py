"""`beadline verify`: kill, pause and cut a job of your own, and compare with a run left alone.

Nothing of the real targets is touched, unless `--in-place` says so: every sink writes to a scratch
target, and every source is a copy of what it holds now. Exits with 1 on any violation.
"""

from __future__ import annotations

import json as json_module
import secrets
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import typer

from beadline.chaos import class_archive
from beadline.chaos.verify import faults
from beadline.chaos.verify.report import Report, views
from beadline.chaos.verify.run import Verifier
from beadline.chaos.verify.source_range import Limits
from beadline.chaos.verify.wish import Wish
from beadline.cli._jobs import ConfOption, settings_of
from beadline.cli.output import ForPeople, JsonOption, Output, output
from beadline.errors import UsageError
from beadline.run.java import require_java
from beadline.run.jobs import open_job

_KILLS_MANY = 10  # with fewer, the archive takes longer than it saves
Step = Callable[[int, int, str], None]


def verify(
    job: Annotated[str, typer.Argument(help="Python with: def job(spark) -> Stream; or .toml.")],
    kills: Annotated[
        int | None,
        typer.Option(help="How many times to kill with -9; at every point and a few if left out."),
    ] = None,
    seed: Annotated[int | None, typer.Option(help="Of the faults; a new one if left out.")] = None,
    only: Annotated[
        str | None, typer.Option(help="These faults alone, in this order, with commas between.")
    ] = None,
    minutes: Annotated[float, typer.Option(help="Begin no fault after so long.")] = 15.0,
    epochs: Annotated[int, typer.Option(help="Cut the range into about so many epochs.")] = 12,
    files: Annotated[
        int, typer.Option(help="Take at most so many files of a source; 0 for all.")
    ] = 120,
    records: Annotated[
        int, typer.Option(help="Take at most so many records of a Kafka source; 0 for all.")
    ] = 20_000,
    output_mode: Annotated[
        str | None, typer.Option(help="append, update or complete, for aggregations.")
    ] = None,
    in_place: Annotated[
        bool, typer.Option("--in-place", help="Write to the real targets, which must be empty.")
    ] = False,
    keep: Annotated[bool, typer.Option("--keep", help="Leave scratch targets and logs.")] = False,
    fail_fast: Annotated[
        bool, typer.Option("--fail-fast", help="Stop at the first violation.")
    ] = False,
    report: Annotated[Path | None, typer.Option(help="Write the report here, as JSON.")] = None,
    html: Annotated[Path | None, typer.Option(help="Write the report here, as one page.")] = None,
    conf: ConfOption = None,
    json: JsonOption = False,
) -> None:
    """Kill a job at every crash point, and see that its sinks show every row once."""
    out = output(json)
    _check(kills, minutes, epochs, files, records, report, html)
    wish = Wish(
        job=job,
        seed=secrets.randbelow(2**31) if seed is None else seed,
        kills=kills,
        minutes=minutes,
        limits=Limits(epochs, files, records),
        only=tuple(faults.parse(only)) if only is not None else (),
        conf=settings_of(conf),
        output_mode=output_mode,
        in_place=in_place,
        keep=keep,
        fail_fast=fail_fast,
    )
    open_job(job)
    require_java()
    class_archive.use(make=kills is None or kills >= _KILLS_MANY)
    # As Ctrl-C: what was started is ended, and scratch targets are removed.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    with _progress(out) as step:
        made = Verifier(wish, out.say, step).run()
    _write(made, report, html)
    out.show(made.as_dict(), *views(made))
    if not made.fine:
        raise typer.Exit(1)


def _check(
    kills: int | None,
    minutes: float,
    epochs: int,
    files: int,
    records: int,
    *reports: Path | None,
) -> None:
    for name, value, least in (
        ("--kills", 1 if kills is None else kills, 1),
        ("--epochs", epochs, 1),
        ("--files", files, 0),
        ("--records", records, 0),
    ):
        if value < least:
            raise UsageError(f"{name} is {least} or more, not {value}. Nothing was written.")
    if not minutes > 0:
        raise UsageError(f"--minutes is above 0, not {minutes:g}. Nothing was written.")
    for path in reports:
        if path is not None and not path.absolute().parent.is_dir():
            raise UsageError(f"there is no folder for the report {path}. Nothing was written.")


def _write(made: Report, report: Path | None, html: Path | None) -> None:
    if report is not None:
        text = json_module.dumps(made.as_dict(), indent=2, default=str)
        report.write_text(text + "\n", "utf-8")
    if html is not None:
        from beadline.chaos.verify.html import page

        html.write_text(page(made), "utf-8")


@contextmanager
def _progress(out: Output) -> Iterator[Step]:
    """A bar for people; programs wait for the result."""
    if not isinstance(out, ForPeople):
        yield lambda done, total, what: None
        return
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn())
    with Progress(*columns, TimeElapsedColumn(), console=out.console, transient=True) as bar:
        shown = bar.add_task("starting", total=None)

        def step(done: int, total: int, what: str) -> None:
            bar.update(shown, completed=done, total=total, description=what)

        yield step
