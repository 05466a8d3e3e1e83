"""`beadline epochs`: what happened to every epoch of a query, read from its checkpoint.

Read-only, and needs neither the job nor its sinks: at three in the morning the checkpoint may be
all that is at hand. The states it shows are explained in ``beadline.observe.history``.
"""

from __future__ import annotations

import json as json_module
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from datetime import datetime
from typing import Annotated, Any

import typer
from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from beadline.cli.output import JsonOption, output
from beadline.decisions import Claim, Decision, StoredPart
from beadline.environment.quiet import quiet
from beadline.observe.history import History, PastEpoch, read_history

_COLOURS = {"committed": "green", "decided": "yellow", "in doubt": "red"}
_MEANING = {
    "decided": "final; a driver is still committing it, or the next start finishes it",
    "in doubt": "planned, not decided; a driver is still working on it, or the next start aborts "
    "it and it is redelivered",
}
_COMMITTABLE_WIDTH_MAX = 400
_CLAIMS_SHOWN = 3


def epochs(
    checkpoint: Annotated[
        str, typer.Argument(help="The query's checkpoint folder: a path or a URI.")
    ],
    last: Annotated[int, typer.Option(min=1, help="How many of the newest epochs to show.")] = 20,
    epoch: Annotated[
        int | None, typer.Option(min=0, help="Show only this epoch, with its committables.")
    ] = None,
    json: JsonOption = False,
) -> None:
    """Show a query's epochs: state, parts, times, committables. Changes nothing."""
    quiet()  # a checkpoint on HDFS is read through a JVM
    history = read_history(checkpoint)
    chosen = history.epochs[-last:] if epoch is None else (history.epoch(epoch),)
    result = {
        **_head(history),
        "epochs": [_as_object(found) for found in chosen],
        "claims": [_claim(slot, claim) for slot, claim in history.claims],
    }
    if epoch is None:
        views: list[RenderableType] = [*_summary(history, chosen)]
    else:
        views = [*_one(history, chosen[0])]
    output(json).show(result, *views)


def _head(history: History) -> dict[str, Any]:
    newest = history.newest
    return {
        "checkpoint": history.checkpoint,
        "query": newest.query.name,
        "incarnation": newest.query.incarnation,
        "mode": newest.mode,
        "generation": newest.generation,
        "sinks": newest.sinks,
    }


def _claim(slot: int, claim: Claim) -> dict[str, Any]:
    fields = asdict(claim)
    fields.pop("query")
    return {"slot": slot, **fields}


def _as_object(epoch: PastEpoch) -> dict[str, Any]:
    """Return everything that is known about an epoch, with null for the unknown."""
    found = epoch.decision
    known: dict[str, Any] = {"epoch": epoch.number, "state": epoch.state, "slot": epoch.slot}
    times = {
        "started_at_ms": found and found.started_at_ms,
        "prepared_at_ms": found and found.prepared_at_ms,
        "decided_at_ms": found and found.at_ms,
        "finished_at_ms": epoch.finished_at_ms,
        "prepare_ms": epoch.prepare_ms,
        "commit_ms": epoch.commit_ms,
    }
    if found is None:
        return {**known, **times, "generation": None, "sinks": {}}
    return {
        **known,
        **times,
        "generation": found.generation,
        "nonce": found.nonce,
        "offsets": found.offsets,
        "parts": found.parts,
        "settings": found.settings,
        "replays": found.replays,
        "event_time": found.event_time,
        "sinks": {
            name: {
                "acks": len(parts),
                "rows": sum(part.rows for part in parts),
                "parts": [asdict(part) for part in parts],
            }
            for name, parts in found.sinks.items()
        },
    }


def _summary(history: History, chosen: tuple[PastEpoch, ...]) -> Iterator[RenderableType]:
    newest = history.newest
    yield Text.assemble((newest.query.name, "bold"), f", {newest.mode}")
    for _, claim in history.claims[-_CLAIMS_SHOWN:]:
        since = _clock(claim.at_ms, date=True)
        yield Text(
            f"  generation {claim.generation} since {since} on {claim.host}, process {claim.pid}"
        )
    for name, target in sorted(newest.sinks.items()):
        yield Text(f"  {name} → {target}", style="dim")
    if not chosen:
        yield Text("no epoch yet")
        return
    event_time = any(found.decision and found.decision.event_time for found in chosen)
    table = Table(box=None, pad_edge=False)
    names = ["epoch", "state", "generation", "parts", "decided at", "prepare", "commit"]
    for name in [*names, "watermark", "late"] if event_time else names:
        table.add_column(name, justify="left" if name in ("state", "parts") else "right")
    for epoch in chosen:
        table.add_row(*_row(epoch), *(_event_time(epoch.decision) if event_time else ()))
    yield table
    states = {epoch.state for epoch in chosen}
    for state, meaning in _MEANING.items():
        if state in states:
            yield Text.assemble((state, _COLOURS[state]), f": {meaning}")


def _row(epoch: PastEpoch) -> list[RenderableType]:
    found = epoch.decision
    return [
        str(epoch.number),
        Text(epoch.state, style=_COLOURS[epoch.state]),
        str(found.generation) if found else "",
        Text(_parts(found)) if found else "",
        _clock(found.at_ms) if found else "",
        _duration(epoch.prepare_ms),
        _duration(epoch.commit_ms),
    ]


def _event_time(decision: Decision | None) -> tuple[str, str]:
    """Return the watermark that an epoch ran with, and how many of its rows were late."""
    found = {} if decision is None else decision.event_time
    return _watermark(
        found.get("watermark_ms")
    ), f"{found.get('late_rows') or 0:,}" if found else ""


def _watermark(at_ms: int | None) -> str:
    """Return the watermark as text; before the first rows there is none."""
    return _clock(at_ms, date=True) if at_ms else ""


def _inputs(decision: Decision) -> Iterator[RenderableType]:
    """Yield the watermark, and each input's part in it where the query has several inputs."""
    found = decision.event_time
    if found:
        at, late = _watermark(found.get("watermark_ms")), found.get("late_rows") or 0
        yield Text(f"  watermark {at or 'none yet'}, {late:,} late rows")
    for name, one in found.get("inputs", {}).items():
        idle = ", idle" if one["idle"] else ""
        newest, mark = (_watermark(one[key]) for key in ("newest_ms", "watermark_ms"))
        yield Text(
            f"    input {name}: {one['rows']:,} rows{idle}, newest time {newest or 'none yet'}, "
            f"watermark {mark or 'none yet'}"
        )


def _parts(decision: Decision) -> str:
    """Return each sink's parts and rows. How many parts were possible is not shown: a sink may
    take all rows as one part, and an empty part does not count.
    """
    said = (
        f"{name} {_count(parts)} ({sum(part.rows for part in parts):,} rows)"
        for name, parts in sorted(decision.sinks.items())
    )
    return "\n".join(said)


def _count(parts: Sequence[StoredPart]) -> str:
    return f"{len(parts)} part" + ("" if len(parts) == 1 else "s")


def _one(history: History, epoch: PastEpoch) -> Iterator[RenderableType]:
    """Yield one epoch in full, for the person who has to understand it."""
    yield Text.assemble(
        (f"{history.newest.query.name}, epoch {epoch.number}: ", "bold"),
        (epoch.state, _COLOURS[epoch.state]),
        f" ({_MEANING[epoch.state]})" if epoch.state in _MEANING else "",
    )
    found = epoch.decision
    if found is None:
        yield Text("  its decision is no longer retained" if epoch.state == "committed" else "")
        return
    replays = f", replayed {found.replays} times" if found.replays else ""
    yield Text(f"  generation {found.generation}, slot {epoch.slot}, nonce {found.nonce}{replays}")
    yield Text(
        f"  started {_clock(found.started_at_ms, date=True)}, "
        f"prepared {_clock(found.prepared_at_ms)} ({_duration(epoch.prepare_ms)}), "
        f"decided {_clock(found.at_ms)}, finished {_finished(epoch)}"
    )
    yield from _inputs(found)
    for name, parts in sorted(found.sinks.items()):
        rows = sum(part.rows for part in parts)
        yield Text.assemble((f"  {name}", "bold"), f": {_count(parts)}, {rows:,} rows")
        for part in parts:
            text = json_module.dumps(part.committable)
            short = text[:_COMMITTABLE_WIDTH_MAX] + ("…" if text[_COMMITTABLE_WIDTH_MAX:] else "")
            # Spark numbers attempts across the whole job: to people it would look like retries.
            yield Text(f"    part {part.partition}, {part.rows:,} rows")
            yield Text(f"      {short}", style="dim")


def _finished(epoch: PastEpoch) -> str:
    """Return when it finished, as the next decision says; after a restart no record says it."""
    if epoch.finished_at_ms is None:
        return "at an unrecorded time" if epoch.state == "committed" else "not yet"
    return f"{_clock(epoch.finished_at_ms)} ({_duration(epoch.commit_ms)})"


def _clock(at_ms: int, date: bool = False) -> str:
    at = datetime.fromtimestamp(at_ms / 1000)
    return at.strftime("%Y-%m-%d %H:%M:%S" if date else "%H:%M:%S") + f".{at_ms % 1000:03d}"


def _duration(ms: int | None) -> str:
    if ms is None:
        return ""
    return f"{ms} ms" if ms < 10_000 else f"{ms / 1000:.1f} s"
