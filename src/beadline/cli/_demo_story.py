"""Live output of the demo: epochs, kills, restarts, and what recovery did.

Finished lines stay on the screen; a live line below them shows how far the current run has got.
With `--json` nothing of this is printed.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from rich.live import Live
from rich.spinner import Spinner
from rich.text import Text

from beadline.cli.output import Console, ForPeople
from beadline.demo.naive import AFTER_FILES, AFTER_TOTALS
from beadline.demo.workload import CLEAN, TOTALS

_MOMENTS = {
    "decide.before": "every part is prepared, nothing is decided",
    "decide.after": "the epoch is decided, nothing of it is visible",
    AFTER_FILES: "the files are written, the totals are not",
    AFTER_TOTALS: "files and totals are written, Spark does not know it yet",
}


class Story:
    """Prints nothing: for programs."""

    def starting(self) -> None:
        """A driver is about to start."""

    def hear(self, event: dict[str, Any]) -> None:
        """The running driver emitted an event."""

    def killed(self, place: str) -> None:
        """The driver is dead."""


class LiveStory(Story):
    """Prints the story on a console. Events arrive on another thread, one at a time."""

    def __init__(self, live: Live) -> None:
        """``live`` displays the line that changes."""
        self._live = live
        self._began_s = time.monotonic()
        self._starts = 0
        self._rows: dict[int, dict[str, int]] = {}  # by epoch: rows of the finished ones
        self._undecided: int | None = None  # the epoch that is prepared but not decided
        self._epoch = 0

    def starting(self) -> None:
        """Announce it, because starting takes a few seconds."""
        self._starts += 1
        what = "starting" if self._starts == 1 else "[yellow]starting again[/]"
        self._say(f"{what}: a new driver, a new JVM")
        self._status("Spark is starting")

    def killed(self, place: str) -> None:
        """Print, in red, when the driver was killed and what state that leaves behind."""
        self._say(f"[bold red]kill -9 in epoch {self._epoch}[/]: [red]{_MOMENTS[place]}[/]")

    def hear(self, event: dict[str, Any]) -> None:
        """Describe an event in words."""
        epoch, details = event["epoch"], event["details"]
        if epoch is not None:
            self._epoch = epoch
        match event["kind"]:
            case "claimed":
                self._status("the log is claimed, older drivers are fenced")
            case "recovered":
                self._say(f"[cyan]recovery: epoch {epoch} was decided, and is now finished[/]")
            case "swept":
                self._swept(details["orphans"])
            case "prepared":
                self._undecided = epoch
                self._status(f"epoch {epoch}: {sum(details['acks'].values())} parts prepared")
            case "decided":
                self._undecided = None
                self._status(f"epoch {epoch}: decided")
            case "written":
                self._status(f"epoch {epoch}: {details['sink']} written")
            case "committed":
                self._done(epoch, "committed", details["rows"])
            case "done":
                self._done(epoch, "written", details["rows"])

    def _swept(self, orphans: int) -> None:
        parts = f"{orphans} prepared part{'s' if orphans > 1 else ''} swept"
        if self._undecided is None:
            self._say(f"[cyan]recovery: {parts}[/]")
            return
        self._say(
            f"[cyan]recovery: epoch {self._undecided} was not decided: {parts}, redelivered[/]"
        )
        self._undecided = None

    def _done(self, epoch: int, word: str, rows: dict[str, int]) -> None:
        self._rows[epoch] = rows
        self._say(
            f"epoch {epoch}: [green]{word}[/], {rows.get(CLEAN, 0):,} rows to files, "
            f"{rows.get(TOTALS, 0)} keys updated in SQLite"
        )
        self._status("the next epoch is running")

    def _say(self, line: str) -> None:
        seconds = time.monotonic() - self._began_s
        self._live.console.print(f"[dim]{seconds:5.1f} s[/]  {line}", highlight=False)

    def _status(self, what: str) -> None:
        done = sum(rows.get(CLEAN, 0) for rows in self._rows.values())
        text = f"{len(self._rows)} epochs, {done:,} rows in files · {what}"
        self._live.update(Spinner("dots", Text(text, style="dim")))


@contextmanager
def story_for(out: Console) -> Iterator[Story]:
    """Yield the story that suits the output: live for people, silent for programs."""
    if not isinstance(out, ForPeople):
        yield Story()
        return
    with Live(console=out.console, transient=True, refresh_per_second=10) as live:
        yield LiveStory(live)
