"""What `beadline run` shows of a query: its events as they come, and the last line."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

from rich.markup import escape

from beadline.cli.output import Output
from beadline.observe import Event

# Queries run on threads of their own, and a line must not be cut by another's.
_one_at_a_time = threading.Lock()


@dataclass
class Watch:
    """Hears what the coordinator did, says it, and counts it for the last line."""

    out: Output
    query: str
    prefix: str = ""
    gone: Callable[[], None] = lambda: None  # whoever read this has gone
    redact: Callable[[str], str] = str
    epochs: int = 0
    generation: int = 0
    restarts: int = 0
    rows: Counter[str] = field(default_factory=Counter)

    def __call__(self, event: Event) -> None:
        """Be told one event, on the thread that runs the epoch."""
        self.generation = event.generation
        if event.kind == "committed":
            self.epochs += 1
            self.rows.update(event.details.get("rows", {}))
        if "error" in event.details:
            said = self.redact(str(event.details["error"]))
            event = replace(event, details={**event.details, "error": said})
        try:
            self.show(_as_object(event), *_as_lines(event))
        except OSError:  # nobody reads on (`| head`); the epoch must not fail over it
            self.gone()

    def restarting(self, failure: BaseException, attempt: int, delay_s: float) -> None:
        """Say that the query failed, and is started again."""
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
        """Give the result of this query, and say it."""
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
        """Print the object, or the lines with the query's name before them."""
        with _one_at_a_time:
            self.out.show(result, *(f"{self.prefix}{line}" for line in lines))


def _as_object(event: Event) -> dict[str, Any]:
    """One line for programs; the event's own words come first."""
    head = {"event": event.kind, "query": event.query, "generation": event.generation}
    epoch = {} if event.epoch is None else {"epoch": event.epoch}
    return {**head, **epoch, "at_ms": event.at_ms, **event.details}


def _as_lines(event: Event) -> list[str]:
    """One line for people, or none: prepared and decided pass too quickly to be read."""
    details = event.details
    text = {
        "claimed": f"generation {event.generation} holds the log{_incomplete(details)}",
        "recovered": f"epoch {event.epoch}: decided by an older start, finished now",
        "swept": f"orphans of older starts aborted: {details.get('orphans')}",
        "committed": f"epoch {event.epoch} [green]committed[/]{_rows(details.get('rows', {}))}",
        "waiting": f"{_place(event)}[yellow]{details.get('doing')}[/], {details.get('seconds')} s",
        "added": f"sink {details.get('sink')} is new: it has rows from epoch {event.epoch} on",
        "removed": f"sink {details.get('sink')} is not among the sinks any more",
        "dropped": f"[red]given up[/]: rows of {details.get('epochs')} in {details.get('sink')}",
        "lost": f"epoch {event.epoch} [red]lost parts[/]: {details.get('parts')}",
        "replayed": f"epoch {event.epoch} replayed: {details.get('sinks')}",
        "spark restarted": "an older driver was in the way; Spark's query is started again",
        "sweep failed": f"[yellow]sweep failed[/]: {escape(str(details.get('error')))}",
    }.get(event.kind)
    return [] if text is None else [text]


def _incomplete(details: dict[str, Any]) -> str:
    """The sinks that do not have all rows of the query."""
    later = {name: epoch for name, epoch in details.get("since", {}).items() if epoch}
    said = [f"{name} has rows from epoch {epoch} on" for name, epoch in later.items()]
    said += [f"{name} lacks {epochs}" for name, epochs in details.get("lacks", {}).items()]
    return "".join(f"; {one}" for one in said)


def _place(event: Event) -> str:
    return "" if event.epoch is None else f"epoch {event.epoch}: "


def _rows(rows: dict[str, int]) -> str:
    return "".join(f"  {name} {count:,}" for name, count in sorted(rows.items()))
