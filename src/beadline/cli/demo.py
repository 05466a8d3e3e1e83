"""`beadline demo`: kill -9 twice, count, and see that nothing is lost and nothing is double.

No server and no set-up: a generator writes input files, a query brings the good rows to files and
adds totals per key to SQLite, and is killed with SIGKILL at the two worst moments: when everything
is prepared and nothing decided, and when everything is decided and nothing visible. `--naive` runs
the same job on Spark's plain `foreachBatch`, killed at comparable moments, for the difference.
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
# The third epoch that each start sees: by then one has watched it go well.
KILLS = ("decide.before#3", "decide.after#3")
NAIVE_KILLS = (f"{AFTER_FILES}#3", f"{AFTER_TOTALS}#3")

NaiveOption = Annotated[
    bool, typer.Option("--naive", help="The same with plain foreachBatch: see the duplicates.")
]
KeepOption = Annotated[bool, typer.Option("--keep", help="Keep the folder, to look at the files.")]


def demo(naive: NaiveOption = False, json: JsonOption = False, keep: KeepOption = False) -> None:
    """Run a query, kill it with -9 twice, and count what came out."""
    require_java()
    out = output(json)
    folder = Path(tempfile.mkdtemp(prefix="beadline-demo-")).absolute()
    try:
        result, table, exactly_once = run(Workload(folder, 1, ROWS_PER_FILE), naive, out)
        if keep:
            result["folder"] = str(folder)
        out.show(result, table, verdict(naive, exactly_once))
        if keep:
            out.say(f"Everything is in {folder}")
    finally:
        if not keep:
            shutil.rmtree(folder, ignore_errors=True)
    if not (exactly_once or naive):
        raise typer.Exit(1)


def run(workload: Workload, naive: bool, out: Console) -> tuple[dict[str, Any], Table, bool]:
    """Three starts, two kills, one count."""
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
    """Drivers that are started ahead; a naive one learns where to die as it starts."""
    return Supervisor(workload, story.hear, expected=1 if naive else len(KILLS) + 1)


def _opening(naive: bool) -> str:
    how = "Spark's plain foreachBatch" if naive else "Beadline"
    return (
        f"{EPOCHS} input files, each an epoch → good rows to files, totals per key to SQLite, by "
        f"[bold]{how}[/]; killed with -9 twice on the way."
    )


def verdict(naive: bool, exactly_once: bool) -> str:
    """The last sentence."""
    if naive:
        return (
            "[yellow]This was plain foreachBatch, as promised: after each kill Spark "
            "redelivers the epoch, and what was already written is written a second time.[/] "
            "The same without --naive: every row once."
        )
    if exactly_once:
        return "[bold green]Killed twice, and every row is there once.[/]"
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
