"""`beadline transactions commit` and `abort`: everything is judged before anything is ended."""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass

import typer
from rich.text import Text

from beadline.cli._transactions_ask import Cluster
from beadline.cli._transactions_show import block
from beadline.cli.output import ForPeople, Output
from beadline.errors import Fenced, UsageError
from beadline.observe.transactions import Action, LogStatus, judge, read_log_status, verdict_of
from beadline.sink import Prepared
from beadline.sinks.kafka import options as kafka_options
from beadline.sinks.kafka.observed import Observed
from beadline.sinks.kafka.part import KafkaPart
from beadline.sinks.kafka.settle import GONE, Settled, abort_open, commit_decided, commit_open
from beadline.sinks.kafka.sink import KafkaSink

_NOTHING = "Nothing was changed."
_WHILE = {
    "commit": ("Ongoing",),
    "abort": ("Ongoing", "PrepareAbort", "PrepareEpochFence"),
}
# What force does: to a stranger's, to one of ours of which no log tells, and against the log.
_MEANS = {
    ("commit", "strange"): "Its records show, for good, as far as they were sent: its producer has "
    "not said that they are all, and is not told.",
    ("commit", "unknown"): "Its rows show, for good. If no decision names it, the query computes "
    "the same rows again, and they show twice.",
    ("commit", "orphan"): "AGAINST THE DECISION LOG: no decision names it. Its rows show, for "
    "good, and once more when the query computes them again.",
    ("abort", "strange"): "Its records are thrown away, and its producer, if it lives, is fenced: "
    "its next call fails.",
    ("abort", "unknown"): "Its rows are thrown away. If a decision names it, they are missing "
    "until the query's next start has computed them again, if it can.",
    ("abort", "decided"): "AGAINST THE DECISION LOG: it is decided. Its rows are missing until the "
    "query's next start has computed them again; if it cannot, it stops.",
}


@dataclass(frozen=True)
class Planned:
    """One transaction that will be ended: by a decision's word, or as it is open now."""

    id: str
    one: Observed | None
    decided: Prepared[KafkaPart] | None = None
    forced: bool = False


def end(
    action: Action,
    ids: Sequence[str],
    cluster: Cluster,
    out: Output,
    force: bool,
    yes: bool,
    json: bool,
) -> None:
    """Judge all, ask once, end all; exits with 1 if one was not ended."""
    status = cluster.status
    if status is not None:
        status.check_place()
        _check_stopped(status, force)
    found = cluster.inspector.client.describe(ids)
    looked = cluster.inspector.look(list(found.values()), cluster.control_topic)
    observed = {one.id: one for one in looked}
    plans = [plan(action, id_, observed.get(id_), status, force) for id_ in dict.fromkeys(ids)]
    todo = [each for each in plans if isinstance(each, Planned)]
    if todo:
        _tell(action, todo, status, out)
        _confirm(action, len(todo), out, yes, json)
        if status is not None:
            _check_unmoved(status)
        _check_same(todo, cluster)
    results = [
        _try_end(action, each, cluster) if isinstance(each, Planned) else each for each in plans
    ]
    failed = sum(not result.ok for result in results)
    forced = {each.id for each in todo if each.forced}
    shown = [{**asdict(result), "forced": result.id in forced} for result in results]
    lines = [line for result in results for line in _lines(result)]
    out.show({"action": action, "transactions": shown, "failed": failed}, *lines)
    if failed:
        raise typer.Exit(1)


def plan(
    action: Action, id_: str, one: Observed | None, status: LogStatus | None, force: bool
) -> Planned | Settled:
    """Say how one will be ended, or why there is nothing to end; raise if it must not be."""
    named = status.named.get(id_) if status is not None else None
    if one is None:
        if action == "commit" and named is not None:
            return Planned(id_, None, named)
        return Settled(id_, False, "", GONE, "the brokers know no such transactional id")
    decided = status.decided(one) if status is not None else None
    if action == "commit" and decided is not None:
        return Planned(id_, one, decided)
    state = one.described.state
    if state not in _WHILE[action]:
        meaning = "being ended already" if one.is_open else "nothing is open under this id"
        return Settled(id_, False, "", state, meaning)
    return Planned(id_, one, forced=judge(action, one, status, force))


def _check_stopped(status: LogStatus, force: bool) -> None:
    driver = status.driver()
    if driver is not None and not force:
        raise UsageError(
            f"{driver}, lives: query {status.query.name!r} seems to be running, and settles its "
            "transactions itself. Stop it first; --force if that process is something else by now. "
            f"{_NOTHING}"
        )


def _check_unmoved(before: LogStatus) -> None:
    """A log that moved while we looked has a driver, whose decisions we do not know."""
    now = read_log_status(before.checkpoint)
    if now.claim.generation != before.claim.generation:
        raise Fenced(
            f"query {before.query.name!r} was started meanwhile (generation "
            f"{now.claim.generation}), and settles its transactions itself. {_NOTHING}"
        )
    if now.head != before.head:
        raise UsageError(
            f"query {before.query.name!r} is running: its log has moved from slot {before.head} to "
            f"{now.head} meanwhile. Stop it first. {_NOTHING}"
        )


def _check_same(todo: Sequence[Planned], cluster: Cluster) -> None:
    """Refuse if a producer has gone on while a person was asked: another transaction is open now.

    A producer keeps its id and epoch from one transaction to the next, so that to end "it" would
    end the next one in the middle. What a decision names is ended by proofs, and needs no look.
    """
    shown = {each.id: each.one.described for each in todo if each.one and not each.decided}
    found = cluster.inspector.client.describe(list(shown))
    for id_, before in shown.items():
        now = found.get(id_)
        if now is None or now.state != "Ongoing":
            continue
        if (now.transaction, now.started_at_ms) != (before.transaction, before.started_at_ms):
            raise UsageError(
                f"{id_}: its producer lives, and has begun another transaction meanwhile. Look "
                f"again. {_NOTHING}"
            )


def _tell(action: Action, todo: list[Planned], status: LogStatus | None, out: Output) -> None:
    """Show what is about to be ended and, where nobody vouches for it, what that means."""
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


def _confirm(action: Action, count: int, out: Output, yes: bool, json: bool) -> None:
    if yes:
        return
    if json or not sys.stdin.isatty():
        raise UsageError(
            f"{action} changes the cluster, and there is nobody here to be asked. Add --yes if you "
            f"mean it. {_NOTHING}"
        )
    what = "this transaction" if count == 1 else f"these {count} transactions"
    if not typer.confirm(f"{action} {what}?"):
        out.say(_NOTHING)
        raise typer.Exit(1)


def _try_end(action: Action, planned: Planned, cluster: Cluster) -> Settled:
    """End one; if the brokers go away in the middle, what was ended before is told all the same."""
    from confluent_kafka import KafkaException
    from kafka.errors import KafkaError

    try:
        return _end(action, planned, cluster)
    except (KafkaError, KafkaException, OSError) as error:
        why = kafka_options.redacted(f"{type(error).__name__}: {error}", cluster.options)
        meaning = f"it may have been ended or not: look again ({why})"
        return Settled(planned.id, False, "", "unknown", meaning)


def _end(action: Action, planned: Planned, cluster: Cluster) -> Settled:
    client = cluster.inspector.client
    if planned.decided is not None:
        assert cluster.status is not None
        assert cluster.status.epoch is not None
        sink = KafkaSink(bootstrap_servers=cluster.servers, options=cluster.options)
        return commit_decided(sink, client, cluster.status.epoch, planned.decided)
    assert planned.one is not None
    transaction = planned.one.described.transaction
    ended = commit_open if action == "commit" else abort_open
    return ended(client, transaction)


def _lines(result: Settled) -> list[Text]:
    mark = ("done   ", "green") if result.ok else ("failed ", "bold red")
    said = f"{result.answer}, " if result.answer else ""
    return [
        Text.assemble(mark, result.id),
        Text(f"       {result.meaning} ({said}now {result.state})"),
    ]
