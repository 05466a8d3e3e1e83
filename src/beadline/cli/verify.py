"""`beadline verify`: inject faults into a job of your own, and compare with an undisturbed run.

The real targets are not touched, unless `--in-place` is given: every sink writes to a scratch
target, and every source is a copy of what it holds now. Exits with 1 on any violation, and with 5
if nothing is proven: a run that did not end in time on a busy machine is no violation.
"""

from __future__ import annotations

import json as json_module
import secrets
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import typer
from rich.markup import escape

from beadline.cli._jobs import ConfOption, settings_of
from beadline.cli.output import Console, ForPeople, JsonOption, output
from beadline.environment.java import require_java
from beadline.errors import UsageError
from beadline.jobs.loading import open_job
from beadline.verify import class_archive, faults
from beadline.verify.report import Verification, views
from beadline.verify.run import Options, Verifier
from beadline.verify.source_range import RangeLimits

_TIMEOUT_HELP = (
    "Seconds for each start of the job; one that has not ended by then is inconclusive. Default: "
    "10 times the undisturbed run, and at least 240."
)
_KILLS_MANY = 10  # with fewer, the archive takes more time than it saves
FilesOption = Annotated[
    int, typer.Option(help="Take at most this many files of a source; 0 for all.")
]
RecordsOption = Annotated[
    int, typer.Option(help="Take at most this many records of a Kafka source; 0 for all.")
]
OutputModeOption = Annotated[
    str | None, typer.Option(help="For aggregations: append, update or complete.")
]
Step = Callable[[int, int, str], None]


def verify(
    job: Annotated[
        str,
        typer.Argument(help="A TOML file, or a Python file that defines job(spark) -> Stream."),
    ],
    kills: Annotated[
        int | None,
        typer.Option(help="How many times to kill with -9; default: at every point, and a few."),
    ] = None,
    seed: Annotated[
        int | None, typer.Option(help="Seed of the faults; default: a new one.")
    ] = None,
    only: Annotated[
        str | None, typer.Option(help="Inject only these faults, in this order, comma-separated.")
    ] = None,
    minutes: Annotated[float, typer.Option(help="Inject no fault after this many minutes.")] = 15.0,
    timeout: Annotated[float | None, typer.Option(help=_TIMEOUT_HELP)] = None,
    epochs: Annotated[int, typer.Option(help="Cut the range into about this many epochs.")] = 12,
    files: FilesOption = 120,
    records: RecordsOption = 20_000,
    output_mode: OutputModeOption = None,
    in_place: Annotated[
        bool, typer.Option("--in-place", help="Write to the real targets, which must be empty.")
    ] = False,
    keep: Annotated[bool, typer.Option("--keep", help="Keep scratch targets and logs.")] = False,
    fail_fast: Annotated[
        bool, typer.Option("--fail-fast", help="Stop at the first violation.")
    ] = False,
    report: Annotated[
        Path | None, typer.Option(help="Write the report to this file, as JSON.")
    ] = None,
    html: Annotated[
        Path | None, typer.Option(help="Write the report to this file, as an HTML page.")
    ] = None,
    conf: ConfOption = None,
    json: JsonOption = False,
) -> None:
    """Kill a job at every crash point, and check that every row is in its sinks exactly once."""
    out = output(json)
    _check(kills, minutes, timeout, epochs, files, records, report, html)
    asked = Options(
        job=job,
        seed=secrets.randbelow(2**31) if seed is None else seed,
        kills=kills,
        minutes=minutes,
        limits=RangeLimits(epochs, files, records),
        only=tuple(faults.parse(only)) if only is not None else (),
        conf=settings_of(conf),
        output_mode=output_mode,
        in_place=in_place,
        keep=keep,
        fail_fast=fail_fast,
        timeout_s=timeout,
    )
    made = _verified(asked, out)
    _write(made, report, html)
    out.show(made.as_dict(), *views(made))
    if made.exit_code:
        raise typer.Exit(made.exit_code)


def _verified(asked: Options, out: Console) -> Verification:
    open_job(asked.job)
    require_java()
    class_archive.use(make=asked.kills is None or asked.kills >= _KILLS_MANY)
    # Like Ctrl-C: child processes are ended, and scratch targets are removed.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    with _progress(out) as step:
        return Verifier(asked, out.say, step).run()


def _check(
    kills: int | None,
    minutes: float,
    timeout: float | None,
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
            raise UsageError(f"{name} must be {least} or more, not {value}. Nothing was written.")
    if not minutes > 0:
        raise UsageError(f"--minutes must be above 0, not {minutes:g}. Nothing was written.")
    if timeout is not None and not timeout > 0:
        raise UsageError(f"--timeout must be above 0, not {timeout:g}. Nothing was written.")
    for path in reports:
        if path is not None and not path.absolute().parent.is_dir():
            raise UsageError(f"the folder of the report {path} is missing. Nothing was written.")


def _write(made: Verification, report: Path | None, html: Path | None) -> None:
    if report is not None:
        text = json_module.dumps(made.as_dict(), indent=2, default=str)
        report.write_text(text + "\n", "utf-8")
    if html is not None:
        from beadline.verify.html import page

        html.write_text(page(made), "utf-8")


class _Lines:
    """Progress for a log: one line whenever a new step begins."""

    def __init__(self, out: Console) -> None:
        self._out = out
        self._began_s = time.monotonic()

    def __call__(self, done: int, total: int, what: str) -> None:
        """Report the progress."""
        spent_s = time.monotonic() - self._began_s
        self._out.say(f"{spent_s:5.0f} s  {done}/{total} done; now: {escape(what)}")


@contextmanager
def _progress(out: Console) -> Iterator[Step]:
    """Yield a progress bar on a terminal, lines in a pipe or file, and nothing for programs."""
    if not isinstance(out, ForPeople):
        yield lambda done, total, what: None
        return
    if not out.console.is_terminal:
        yield _Lines(out)
        return
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn())
    with Progress(*columns, TimeElapsedColumn(), console=out.console, transient=True) as bar:
        shown = bar.add_task("starting", total=None)

        def step(done: int, total: int, what: str) -> None:
            bar.update(shown, completed=done, total=total, description=what)

        yield step
