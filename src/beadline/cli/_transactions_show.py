"""How `beadline transactions` shows what it found: one block for each, and one object."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from typing import Any

from rich.console import RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from beadline.observe.transactions import LogStatus, verdict_of
from beadline.sinks.kafka.observed import Observed, Touched

_COLOURS = {"decided": "yellow", "orphan": "red", "unknown": "dim"}
_MEANING = {
    "decided": "the newest decision names it: the next start commits it",
    "orphan": "of this query, and not decided: a driver is at it, or the next start aborts it",
    "unknown": "no decision log was asked that knows it",
}


def as_object(one: Observed, status: LogStatus | None, now_ms: int) -> dict[str, Any]:
    """Everything that is known of one transaction; what is not known is null."""
    described, writer, part = one.described, one.writer, one.part
    return {
        "id": one.id,
        "ours": writer is not None,
        "query": writer and writer.query,
        "incarnation": writer and writer.incarnation,
        "sink": writer and writer.sink,
        "slot": writer and writer.slot,
        "prepared": one.prepared,
        "part": part
        and {
            "epoch": part.epoch,
            "partition": part.partition,
            "attempt": part.attempt,
            "generation": part.generation,
        },
        "state": described.state,
        "verdict": verdict_of(one, status),
        "producer_id": described.transaction.producer_id,
        "producer_epoch": described.transaction.producer_epoch,
        "started_at_ms": described.started_at_ms,
        "age_ms": _age_ms(one, now_ms),
        "timeout_ms": described.timeout_ms,
        "aborts_at_ms": one.aborts_at_ms,
        "partitions": [{**asdict(each), "waiting": each.waiting} for each in one.partitions],
    }


def blocks(
    found: Sequence[Observed], status: LogStatus | None, now_ms: int
) -> Iterator[RenderableType]:
    """One block for each transaction, then what the verdicts mean."""
    numbers = {one.id: number for number, one in enumerate(found, 1)}
    for one in found:
        yield from block(one, status, now_ms, numbers)
    verdicts = Counter(verdict_of(one, status) for one in found)
    for verdict, meaning in _MEANING.items():
        if verdicts.get(verdict) and status is not None:  # type: ignore[call-overload]
            yield Text.assemble((verdict, _COLOURS[verdict]), f": {meaning}")


def block(
    one: Observed,
    status: LogStatus | None,
    now_ms: int,
    numbers: Mapping[str, int] | None = None,
) -> Iterator[RenderableType]:
    """One transaction in full; ``numbers`` are those of all that are shown, to name them by."""
    numbers = numbers or {}
    verdict = verdict_of(one, status)
    number = f"{numbers[one.id]}. " if one.id in numbers else ""
    yield Text.assemble(number, (one.id, "bold"))
    yield Text(f"  {_whose(one, status)}")
    known = [(f", {verdict}", _COLOURS[verdict])] if status is not None else []
    yield Text.assemble(f"  {one.described.state}", *known, f", {_clock(one, now_ms)}")
    if one.partitions:
        yield Padding(_partitions(one, numbers), (0, 0, 0, 2))


def _whose(one: Observed, status: LogStatus | None) -> str:
    writer, part = one.writer, one.part
    if writer is None:
        return "not of Beadline's making"
    whose = f"query {writer.query}, sink {writer.sink}, slot {writer.slot}"
    if not one.is_open:
        named = status.named.get(one.id) if status is not None else None
        if named is None:
            return f"{whose}: nothing is open under this id"
        part = named.id
        return f"{whose}: ended; decided as epoch {part.epoch}, partition {part.partition}"
    if part is not None:
        return (
            f"{whose}: prepared, epoch {part.epoch}, partition {part.partition}, "
            f"attempt {part.attempt}, generation {part.generation}"
        )
    if one.prepared is None:
        return f"{whose}: part unknown"
    return f"{whose}: prepared, part unknown" if one.prepared else f"{whose}: not prepared yet"


def _clock(one: Observed, now_ms: int) -> str:
    age, timeout = _age_ms(one, now_ms), duration(one.described.timeout_ms)
    if age is None:
        return f"timeout {timeout}"
    if not one.is_open:
        return f"begun {duration(age)} ago and ended since"
    text = f"open for {duration(age)}"
    if one.aborts_at_ms is None:
        return text
    left = one.aborts_at_ms - now_ms
    when = f"in {duration(left)}" if left > 0 else "any moment"
    return f"{text} of {timeout}: the broker aborts it {when}"


def _partitions(one: Observed, numbers: Mapping[str, int]) -> Table:
    table = Table(box=None, pad_edge=False)
    for name in ("topic", "partition", "begins at", "readable to", "end", "waiting", "held up"):
        left = name in ("topic", "held up")
        table.add_column(name, justify="left" if left else "right", overflow="fold")
    for each in one.partitions:
        offsets = (each.first_offset, each.stable_offset, each.end_offset, each.waiting)
        shown = [Text(_number(offset)) for offset in offsets]
        markers = each.topic == one.control_topic
        who = Text("Beadline's markers", style="dim") if markers else _held_up(each, numbers)
        table.add_row(Text(each.topic), str(each.partition), *shown, who)
    return table


def _held_up(each: Touched, numbers: Mapping[str, int]) -> Text:
    """Who waits because of this transaction, or which other one they wait for."""
    if each.holds is None:
        return Text("not known", style="dim")
    groups = ", ".join(f"{group.name} (at {group.offset:,})" for group in each.groups)
    if each.holds:
        return Text(groups or "readers, no group known", style="red")
    if each.held_by is None:
        return Text("nobody")
    other = f"number {numbers[each.held_by]}" if each.held_by in numbers else each.held_by
    return Text(f"by an earlier one: {other}", style="dim")


def _number(value: int | None) -> str:
    return "" if value is None else f"{value:,}"


def _age_ms(one: Observed, now_ms: int) -> int | None:
    """By two clocks, the broker's and ours: never below zero."""
    started = one.described.started_at_ms
    return None if started < 0 else max(0, now_ms - started)


def duration(ms: int) -> str:
    """A time that a person can compare.

    >>> duration(754_000)
    '12 min 34 s'
    """
    seconds = ms // 1000
    if seconds < 60:
        return f"{seconds} s"
    minutes, seconds = divmod(seconds, 60)
    if minutes < 60:
        return f"{minutes} min {seconds} s" if seconds else f"{minutes} min"
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes} min" if minutes else f"{hours} h"
