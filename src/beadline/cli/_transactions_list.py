"""`beadline transactions list`: what is open, and the answer to "who holds my reader up?"."""

from __future__ import annotations

import time
from collections.abc import Sequence

from rich.console import RenderableType
from rich.text import Text

from beadline.cli._transactions_ask import Cluster
from beadline.cli._transactions_show import as_object, blocks
from beadline.cli.output import Output
from beadline.errors import UsageError
from beadline.files import same_folder
from beadline.observe.transactions import LogStatus, verdict_of
from beadline.sinks.kafka.observed import UNENDED_STATES, Observed
from beadline.sinks.kafka.part import WriterId
from beadline.sinks.kafka.transactions import Described


def show_open(cluster: Cluster, query: str | None, everybodys: bool, out: Output) -> None:
    """Show the open transactions of a query, or of everybody."""
    status = cluster.status
    name = _query(query, status)
    everything = cluster.inspector.open_now()
    chosen = [one for one in everything if everybodys or name is None or _is_of(one, name)]
    found = cluster.inspector.look(chosen, cluster.control_topic, everything)
    now_ms = time.time_ns() // 1_000_000
    others = len(everything) - len(chosen)
    notes = [*cluster.inspector.notes, *_notes(cluster)]
    result = {
        "bootstrap_servers": cluster.servers,
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
    """The query that is meant; both ways to name it must agree."""
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
    """The answer in one line: how many, and how many partitions stand still."""
    whose = f"query {name}" if name is not None else cluster.servers
    held = {
        (place.topic, place.partition)
        for one in found
        for place in one.partitions
        if place.holds and place.topic != one.control_topic
    }
    count = len(found)
    text = f": {count or 'no'} open transaction{'' if count == 1 else 's'}"
    if not found and "security.protocol" in cluster.options:
        text += " that this user may see"  # brokers leave out what one may not
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
    """What an operator should know of the log beside its verdicts."""
    status = cluster.status
    if status is None:
        return []
    notes = []
    if not same_folder(status.query.checkpoint, status.checkpoint):
        notes.append(
            f"the log was written for {status.query.checkpoint}: this is a copy of a checkpoint, "
            "or another spelling, and the verdicts of a copy may be old"
        )
    if driver := status.driver():
        notes.append(f"{driver}, lives: the query may be running")
    if status.epoch is not None and status.named and not status.finished:
        described = cluster.inspector.client.describe(status.named)
        still = sum(one.state in UNENDED_STATES for one in described.values())
        notes.append(
            f"epoch {status.epoch.number} is decided and not known to be finished: {still} of "
            f"its {len(status.named)} Kafka transactions still open"
        )
    return notes
