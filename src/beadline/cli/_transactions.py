"""The work of `beadline transactions`: query the cluster and the log, list, commit and abort.

The settings may hold passwords. They are never shown: not in an error, not even when a setting
cannot be parsed, and messages of libraries are redacted before they are shown.
"""

from __future__ import annotations

import logging
import sys
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import typer
from rich.console import RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from beadline.cli.output import Console, ForPeople
from beadline.environment.quiet import quiet
from beadline.errors import BeadlineError, UsageError
from beadline.extras import require
from beadline.files import same_folder
from beadline.sinks.kafka.client import UNENDED_STATES, Described, connect
from beadline.sinks.kafka.part import WriterId, default_control_topic
from beadline.sinks.kafka.settings import KafkaSettings, said
from beadline.transactions.ending import (
    EndPlan,
    EndResult,
    check_same,
    check_stopped,
    check_unmoved,
    end,
    plan_end,
)
from beadline.transactions.kafka import Inspector, Observed, Touched
from beadline.transactions.status import (
    NOTHING_CHANGED,
    Action,
    LogStatus,
    read_log_status,
    verdict_of,
)

_COLOURS = {"decided": "yellow", "orphan": "red", "unknown": "dim"}
_MEANING = {
    "decided": "the newest decision names it: the next start commits it",
    "orphan": "of this query, and not decided: a driver is still working on it, or the next start "
    "aborts it",
    "unknown": "no decision log that knows it was given",
}
# What --force does: to another application's transaction ("strange"), to one of ours that no log
# at hand covers, and to one where it contradicts the log.
_MEANS = {
    ("commit", "strange"): "The records sent so far become visible, for good: its producer has not "
    "confirmed that they are complete, and is not notified.",
    ("commit", "unknown"): "Its rows become visible, for good. If no decision names it, the query "
    "computes the same rows again, and they appear twice.",
    ("commit", "orphan"): "AGAINST THE DECISION LOG: no decision names it. Its rows become "
    "visible, for good, and appear a second time when the query computes them again.",
    ("abort", "strange"): "Its records are discarded, and its producer, if it is still alive, is "
    "fenced: its next call fails.",
    ("abort", "unknown"): "Its rows are discarded. If a decision names it, they are missing until "
    "the query's next start has computed them again, if it can.",
    ("abort", "decided"): "AGAINST THE DECISION LOG: it is decided. Its rows are missing until the "
    "query's next start has computed them again; if it cannot, it stops.",
}


@dataclass(frozen=True)
class Cluster:
    """A reachable cluster, and the log of a query if a checkpoint was given."""

    inspector: Inspector
    status: LogStatus | None
    topic: str | None

    def control_topic(self, writer: WriterId) -> str:
        """Return the topic that holds a writer's markers."""
        if self.topic is not None:
            return self.topic
        if self.status is not None:
            return self.status.control_topic(writer)
        return default_control_topic(writer.query)


@contextmanager
def asking(
    servers: str,
    pairs: list[str] | None,
    file: Path | None,
    checkpoint: str | None,
    topic: str | None,
) -> Iterator[Cluster]:
    """Yield the cluster; the errors of its client libraries are raised as Beadline's own."""
    require("kafka")
    settings = KafkaSettings(servers, read_options(pairs or [], file))
    status = None
    if checkpoint is not None:
        quiet()  # a checkpoint on HDFS is read through a JVM
        status = read_log_status(checkpoint)
    from confluent_kafka import KafkaException
    from kafka.errors import KafkaError

    logging.getLogger("kafka").setLevel(logging.CRITICAL)  # it also raises what it would log
    try:
        _check(settings)
        yield Cluster(Inspector(connect(settings), settings), status, topic)
    except BrokenPipeError:  # the reader of our output is gone
        raise
    except (KafkaError, KafkaException, OSError) as error:
        name = type(error).__name__
        why = settings.redacted(str(error).removeprefix(f"{name}: "))
        raise BeadlineError(
            f"Kafka at {servers} does not answer as it should: {name}: {why}. Is it up, is the "
            "address right, are security.protocol and sasl.* what it expects, and is this user "
            "permitted to do this? Anything not reported as done may not have been done."
        ) from None


def _check(settings: KafkaSettings) -> None:
    """Let librdkafka validate the settings: the other client does not say what is wrong."""
    from confluent_kafka import KafkaException
    from confluent_kafka.admin import AdminClient

    try:
        AdminClient({**settings.client(), "log_level": 0})
    except (KafkaException, TypeError, ValueError) as error:
        why = settings.redacted(said(error))
        raise UsageError(f"Kafka options cannot be used: {why}. {NOTHING_CHANGED}") from None


def read_options(pairs: list[str], file: Path | None) -> dict[str, str]:
    """Read the settings from the file and from the command line, which takes precedence."""
    found: dict[str, str] = {}
    if file is not None:
        try:
            lines = file.read_text("utf-8").splitlines()
        except (OSError, UnicodeDecodeError) as error:
            why = error.strerror if isinstance(error, OSError) else "it is not text"
            raise UsageError(f"--options-file {file}: {why}. {NOTHING_CHANGED}") from None
        for number, line in enumerate(lines, 1):
            if line.strip() and not line.lstrip().startswith("#"):
                name, value = _pair(line, f"line {number} of {file}")
                found[name] = value
    for number, pair in enumerate(pairs, 1):
        name, value = _pair(pair, f"--option number {number}")
        found[name] = value
    if "bootstrap.servers" in found:
        raise UsageError(f"bootstrap.servers is given with --bootstrap-servers. {NOTHING_CHANGED}")
    KafkaSettings("", found).check()
    return found


def _pair(text: str, where: str) -> tuple[str, str]:
    """Split KEY=VALUE; the text may be a password, so an error only says where it is."""
    name, equals, value = text.partition("=")
    if not name.strip() or not equals:
        raise UsageError(f"{where} is not KEY=VALUE. {NOTHING_CHANGED}")
    return name.strip(), value.strip()


def show_open(cluster: Cluster, query: str | None, everybodys: bool, out: Console) -> None:
    """Show the open transactions of a query, or all of them."""
    status = cluster.status
    name = _query(query, status)
    everything = cluster.inspector.open_now()
    chosen = [one for one in everything if everybodys or name is None or _is_of(one, name)]
    found = cluster.inspector.inspect(chosen, cluster.control_topic, everything)
    now_ms = time.time_ns() // 1_000_000
    others = len(everything) - len(chosen)
    notes = [*cluster.inspector.notes, *_notes(cluster)]
    result = {
        "bootstrap_servers": cluster.inspector.settings.servers,
        "query": name,
        "checkpoint": status and status.checkpoint,
        "decided_epoch": status and status.epoch and status.epoch.number,
        "transactions": [as_object(one, status, now_ms) for one in found],
        "others": others,
        "notes": notes,
    }
    whose = None if everybodys else name
    views: list[RenderableType] = [_head(cluster, whose, found, others)]
    views += blocks(found, status, now_ms)
    views += [Text(f"note: {note}", style="dim") for note in notes]
    out.show(result, *views)


def _query(name: str | None, status: LogStatus | None) -> str | None:
    """Return the query's name; --query and --checkpoint must agree on it."""
    if status is None:
        return name
    if name not in (None, status.query.name):
        raise UsageError(
            f"checkpoint {status.checkpoint} is of query {status.query.name!r}, not {name!r}."
        )
    return status.query.name


def _is_of(one: Described, query: str) -> bool:
    writer = WriterId.parse(one.transaction.id)
    return writer is not None and writer.query == query


def _head(cluster: Cluster, name: str | None, found: Sequence[Observed], others: int) -> Text:
    """Return the summary line: how many transactions, and how many partitions are held up."""
    whose = f"query {name}" if name is not None else cluster.inspector.settings.servers
    held = {
        (place.topic, place.partition)
        for one in found
        for place in one.partitions
        if place.holds and place.topic != one.control_topic
    }
    count = len(found)
    text = f": {count or 'no'} open transaction{'' if count == 1 else 's'}"
    if not found and "security.protocol" in cluster.inspector.settings.options:
        text += " that this user may see"  # brokers leave out the others
    if cluster.status is not None and found:
        verdicts = [verdict_of(one, cluster.status) for one in found]
        kinds = ((kind, verdicts.count(kind)) for kind in ("decided", "orphan", "unknown"))
        text += " (" + ", ".join(f"{number} {kind}" for kind, number in kinds if number) + ")"
    if held:
        text += f", readers held up in {len(held)} partition{'' if len(held) == 1 else 's'}"
    if others:
        text += f"; {others} of others (--all shows them)"
    return Text.assemble((whose, "bold"), text)


def _notes(cluster: Cluster) -> list[str]:
    """Return what an operator should know about the log in addition to its verdicts."""
    status = cluster.status
    if status is None:
        return []
    notes = []
    if not same_folder(status.query.checkpoint, status.checkpoint):
        notes.append(
            f"the log was written for {status.query.checkpoint}: this is a copy of that "
            "checkpoint, or another spelling of its path; the verdicts of a copy may be outdated"
        )
    if driver := status.driver():
        notes.append(f"{driver}, is still running, so the query may be active")
    if status.epoch is not None and status.named and not status.finished:
        described = cluster.inspector.client.describe(status.named)
        still = sum(one.state in UNENDED_STATES for one in described.values())
        notes.append(
            f"epoch {status.epoch.number} is decided and not known to be finished: {still} of "
            f"its {len(status.named)} Kafka transactions still open"
        )
    return notes


def end_all(
    action: Action,
    ids: Sequence[str],
    cluster: Cluster,
    out: Console,
    force: bool,
    yes: bool,
    json: bool,
) -> None:
    """Judge all of them, ask once, end them; exit with 1 if one could not be ended."""
    status = cluster.status
    if status is not None:
        status.check_place()
        check_stopped(status, force)
    found = cluster.inspector.client.describe(ids)
    looked = cluster.inspector.inspect(list(found.values()), cluster.control_topic)
    observed = {one.id: one for one in looked}
    plans = [plan_end(action, id_, observed.get(id_), status, force) for id_ in dict.fromkeys(ids)]
    todo = [each for each in plans if isinstance(each, EndPlan)]
    if todo:
        _tell(action, todo, status, out)
        _confirm(action, len(todo), out, yes, json)
        if status is not None:
            check_unmoved(status)
        check_same(todo, cluster.inspector)
    epoch = status.epoch if status is not None else None
    results = [
        end(action, each, cluster.inspector, epoch) if isinstance(each, EndPlan) else each
        for each in plans
    ]
    failed = sum(not result.ok for result in results)
    forced = {each.id for each in todo if each.forced}
    shown = [{**asdict(result), "forced": result.id in forced} for result in results]
    lines = [line for result in results for line in _lines(result)]
    out.show({"action": action, "transactions": shown, "failed": failed}, *lines)
    if failed:
        raise typer.Exit(1)


def _tell(action: Action, todo: list[EndPlan], status: LogStatus | None, out: Console) -> None:
    """Show what is about to be ended and, where no log vouches for it, what that means."""
    if not isinstance(out, ForPeople):
        return
    now_ms = time.time_ns() // 1_000_000
    for each in todo:
        views = [] if each.one is None else list(block(each.one, status, now_ms))
        out.show({}, *views)
        if each.forced and each.one is not None:
            ours = each.one.writer is not None
            means = _MEANS[action, verdict_of(each.one, status) if ours else "strange"]
            out.show({}, Text.assemble((f"  {action} by force: ", "bold red"), means))


def _confirm(action: Action, count: int, out: Console, yes: bool, json: bool) -> None:
    if yes:
        return
    if json or not sys.stdin.isatty():
        raise UsageError(
            f"{action} changes the cluster, and there is no terminal to ask for confirmation. Add "
            f"--yes if you mean it. {NOTHING_CHANGED}"
        )
    what = "this transaction" if count == 1 else f"these {count} transactions"
    if not typer.confirm(f"{action} {what}?"):
        out.say(NOTHING_CHANGED)
        raise typer.Exit(1)


def _lines(result: EndResult) -> list[Text]:
    mark = ("done   ", "green") if result.ok else ("failed ", "bold red")
    said = f"{result.answer}, " if result.answer else ""
    return [
        Text.assemble(mark, result.id),
        Text(f"       {result.meaning} ({said}now {result.state})"),
    ]


def as_object(one: Observed, status: LogStatus | None, now_ms: int) -> dict[str, Any]:
    """Return everything that is known about a transaction, with null for the unknown."""
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
    """Yield a block for each transaction, then the meaning of the verdicts."""
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
    """Yield one transaction in full; ``numbers`` are the numbers of all that are listed."""
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
        return "not created by Beadline"
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
    """Return which readers this transaction holds up, or which other transaction does."""
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
    """Return the age, never negative: it compares two clocks, the broker's and ours."""
    started = one.described.started_at_ms
    return None if started < 0 else max(0, now_ms - started)


def duration(ms: int) -> str:
    """Return a duration as text for people.

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
