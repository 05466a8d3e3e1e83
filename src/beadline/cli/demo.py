"""`beadline demo`: kill -9 twice, count, and see that nothing is lost or duplicated.

It needs no server and no setup: a generator writes input files, and a query writes the good rows to
files and adds totals per key to SQLite. The query is killed with SIGKILL at the two worst moments:
when everything is prepared and nothing decided, and when everything is decided and nothing visible.
`--naive` runs the same job with Spark's plain `foreachBatch`, killed at comparable moments, for
comparison.
"""

from __future__ import annotations

import shutil
import tempfile
import time
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.table import Table

from beadline.cli._demo_story import Story, story_for
from beadline.cli.output import Console, JsonOption, output
from beadline.demo.check import Tally, check
from beadline.demo.naive import AFTER_FILES, AFTER_TOTALS
from beadline.demo.supervisor import RunFailed, Supervisor
from beadline.demo.workload import Workload
from beadline.environment.java import require_java
from beadline.verify.plan import Kill

EPOCHS = 7
ROWS_PER_FILE = 500
# The third epoch of each start: by then the viewer has seen some epochs succeed.
KILLS = ("decide.before#3", "decide.after#3")
NAIVE_KILLS = (f"{AFTER_FILES}#3", f"{AFTER_TOTALS}#3")

NaiveOption = Annotated[
    bool, typer.Option("--naive", help="Run it with plain foreachBatch, to see the duplicates.")
]
KeepOption = Annotated[bool, typer.Option("--keep", help="Keep the folder with the files.")]


def demo(naive: NaiveOption = False, json: JsonOption = False, keep: KeepOption = False) -> None:
    """Run a query, kill it with -9 twice, and count what came out."""
    require_java()
    out = output(json)
    folder = Path(tempfile.mkdtemp(prefix="beadline-demo-")).absolute()
    try:
        result, table, exactly_once = run(Workload(folder, 1, ROWS_PER_FILE), naive, out)
        if keep:
            result["folder"] = str(folder)
        out.show(result, table, closing_sentence(naive, exactly_once))
        if keep:
            out.say(f"Everything is in {folder}")
    finally:
        if not keep:
            shutil.rmtree(folder, ignore_errors=True)
    if not (exactly_once or naive):
        raise typer.Exit(1)


def run(workload: Workload, naive: bool, out: Console) -> tuple[dict[str, Any], Table, bool]:
    """Start the query three times, kill it twice, and count once."""
    began = time.monotonic()
    workload.make().add(EPOCHS)
    out.say(_opening(naive))
    with story_for(out) as story, _supervisor(workload, naive, story) as supervisor:
        for place in NAIVE_KILLS if naive else KILLS:
            story.starting()
            run = supervisor.run_naive(place) if naive else supervisor.run(Kill.parse(place))
            if not run.reached:
                raise RunFailed(f"the driver ended without reaching {place}; nothing was killed")
            story.killed(place.partition("#")[0])
        story.starting()
        supervisor.run_naive() if naive else supervisor.run()
        kills = sum(outcome.kills for outcome in supervisor.outcomes)
    report = check(workload)
    result = {
        "mode": "naive" if naive else "exactly-once",
        "kills": kills,
        **report.as_dict(),
        "seconds": round(time.monotonic() - began, 1),
    }
    return result, _table(report, kills), report.exactly_once


def _supervisor(workload: Workload, naive: bool, story: Story) -> Supervisor:
    """Return a supervisor that starts drivers ahead; a naive one needs its kill point at start."""
    return Supervisor(workload, story.hear, expected=1 if naive else len(KILLS) + 1)


def _opening(naive: bool) -> str:
    how = "Spark's plain foreachBatch" if naive else "Beadline"
    return (
        f"{EPOCHS} input files, one epoch each → good rows to files, totals per key to SQLite, "
        f"with [bold]{how}[/]; killed with -9 twice on the way."
    )


def closing_sentence(naive: bool, exactly_once: bool) -> str:
    """Return the closing sentence."""
    if naive:
        return (
            "[yellow]This was plain foreachBatch, with the duplicates to expect: after each kill "
            "Spark redelivers the epoch, and rows already written are written a second time.[/] "
            "Without --naive, every row is there exactly once."
        )
    if exactly_once:
        return "[bold green]Killed twice, and every row is there exactly once.[/]"
    return "[bold red]Rows were lost or duplicated: this is a bug in Beadline, please report it.[/]"


def _table(report: Tally, kills: int) -> Table:
    table = Table(title=f"{kills} times kill -9", title_justify="left")
    for column in ("sink", "rows in", "rows out", "lost", "duplicated"):
        table.add_column(column, justify="left" if column == "sink" else "right")
    for name, sink in report.sinks.items():
        table.add_row(
            name,
            f"{report.rows_in:,}",
            f"{sink.rows_out:,}",
            _judged(sink.lost),
            _judged(sink.duplicated),
        )
    right = "[green]right[/]" if report.totals_right else "[red]wrong[/]"
    table.caption = f"totals per key: {right}; bad rows dropped: {report.rows_bad:,}"
    table.caption_justify = "left"
    return table


def _judged(count: int) -> str:
    return f"[red]{count:,}[/]" if count else "[green]0[/]"
