"""Ending transactions by hand: everything is judged before anything is ended.

The only evidence is what the log says, what the coordinator answers, and what it says about the id
afterwards. For transactions that a decision names, the sink also has proofs.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from beadline.errors import CommitFailed, Fenced, UsageError
from beadline.ids import EpochId
from beadline.shared.retry import Retries, Verdict
from beadline.sink import Outcome, Prepared
from beadline.sinks.kafka.client import (
    NO_ERROR,
    NOT_NOW,
    PRODUCER_GONE,
    UNENDED_STATES,
    Described,
    Transaction,
)
from beadline.sinks.kafka.part import KafkaPart
from beadline.sinks.kafka.settings import said
from beadline.sinks.kafka.sink import KafkaSink
from beadline.sinks.kafka.topics import recreated, rows_gone
from beadline.transactions.kafka import Inspector, Observed
from beadline.transactions.status import NOTHING_CHANGED, Action, LogStatus, judge, read_log_status

_GONE = "gone"
_WAIT_S = 10.0
_WHILE = {
    "commit": ("Ongoing",),
    "abort": ("Ongoing", "PrepareAbort", "PrepareEpochFence"),
}
# When asked again, brokers before 4.0 say that we are fenced, as well as the producer.
_FENCED = (NO_ERROR, "PRODUCER_FENCED")
_ABORTING = frozenset({"PrepareAbort", "PrepareEpochFence", "CompleteAbort"})

_COMMITTED = "committed: its rows are visible once no earlier transaction is open"
_BEFORE = "another process had ended it before"
_OUTCOMES = {
    Outcome.COMMITTED: _COMMITTED,
    Outcome.ALREADY_COMMITTED: "it was committed before: its marker is visible",
    Outcome.LOST: "lost: its marker is proven absent. The next start recomputes its rows",
    Outcome.UNKNOWN: "its outcome is not known. Try again, as the next start will",
}


@dataclass(frozen=True)
class EndPlan:
    """One transaction that will be ended: as a decision names it, or as it is open now."""

    id: str
    one: Observed | None
    decided: Prepared[KafkaPart] | None = None
    forced: bool = False


@dataclass(frozen=True)
class EndResult:
    """What became of one transaction: the broker's own words, and what they mean."""

    id: str
    ok: bool
    answer: str
    state: str
    meaning: str


def plan_end(
    action: Action, id_: str, one: Observed | None, status: LogStatus | None, force: bool
) -> EndPlan | EndResult:
    """Return how one will be ended, or why nothing will be; raise if it must not be ended."""
    named = status.named.get(id_) if status is not None else None
    if one is None:
        if action == "commit" and named is not None:
            return EndPlan(id_, None, named)
        return EndResult(id_, False, "", _GONE, "the brokers know no such transactional id")
    decided = status.decided(one) if status is not None else None
    if action == "commit" and decided is not None:
        return EndPlan(id_, one, decided)
    state = one.described.state
    if state not in _WHILE[action]:
        meaning = "being ended already" if one.is_open else "nothing is open under this id"
        return EndResult(id_, False, "", state, meaning)
    return EndPlan(id_, one, forced=judge(action, one, status, force))


def check_stopped(status: LogStatus, force: bool) -> None:
    """Refuse while a process of this host seems to run the query."""
    driver = status.driver()
    if driver is not None and not force:
        raise UsageError(
            f"{driver}, is still running, so query {status.query.name!r} appears to be active and "
            "will end its own transactions. Stop it first; use --force if that process is "
            f"something else now. {NOTHING_CHANGED}"
        )


def check_unmoved(before: LogStatus) -> None:
    """Refuse if the log has moved since: another process is writing."""
    now = read_log_status(before.checkpoint)
    if now.claim.generation != before.claim.generation:
        raise Fenced(
            f"query {before.query.name!r} was started meanwhile (generation "
            f"{now.claim.generation}) and will end its transactions itself. {NOTHING_CHANGED}"
        )
    if now.head != before.head:
        raise UsageError(
            f"query {before.query.name!r} is running: its log has advanced from slot {before.head} "
            f"to {now.head} meanwhile. Stop it first. {NOTHING_CHANGED}"
        )


def check_same(plans: Sequence[EndPlan], inspector: Inspector) -> None:
    """Refuse if a producer continued while a person was asked: another transaction is open now.

    A producer keeps its id and epoch from one transaction to the next, so that ending "it" would
    end the next one in the middle. What a decision names is ended by proofs, and needs no check.
    """
    shown = {each.id: each.one.described for each in plans if each.one and not each.decided}
    found = inspector.client.describe(list(shown))
    for id_, before in shown.items():
        now = found.get(id_)
        if now is None or now.state != "Ongoing":
            continue
        if (now.transaction, now.started_at_ms) != (before.transaction, before.started_at_ms):
            raise UsageError(
                f"{id_}: its producer is alive, and has begun another transaction meanwhile. Look "
                f"again. {NOTHING_CHANGED}"
            )


def end(action: Action, plan: EndPlan, inspector: Inspector, epoch: EpochId | None) -> EndResult:
    """End one; if the brokers become unreachable, what was ended before is still reported.

    ``epoch`` is that of the newest decision.
    """
    from confluent_kafka import KafkaException
    from kafka.errors import KafkaError

    try:
        if plan.decided is not None:
            assert epoch is not None, "nothing is decided without an epoch"
            return _commit_decided(inspector, epoch, plan.decided)
        assert plan.one is not None
        ended = _commit_open if action == "commit" else _abort_open
        return ended(inspector, plan.one.described.transaction)
    except (KafkaError, KafkaException, OSError) as error:
        why = inspector.settings.redacted(f"{type(error).__name__}: {said(error)}")
        meaning = f"it may or may not have been ended: check again ({why})"
        return EndResult(plan.id, False, "", "unknown", meaning)


def _commit_decided(inspector: Inspector, epoch: EpochId, part: Prepared[KafkaPart]) -> EndResult:
    """Commit what a decision names, by the producer id and epoch that the decision names.

    A broker's refusal proves nothing (rule 12), so then the sink looks for a proof.
    """
    settings = inspector.settings
    sink = KafkaSink(bootstrap_servers=settings.servers, options=settings.options)
    ended = _commit_open(inspector, part.committable.transaction)
    if ended.ok and (wrong := recreated(inspector.client, [part], None)):
        gone = rows_gone(epoch, part.id.sink, [part], wrong)
        return replace(ended, ok=False, meaning=str(gone))
    retries = Retries({Verdict.UNCLEAR: _WAIT_S})
    while not ended.ok:
        try:
            outcome = sink.commit(epoch, [part]).outcomes[part.id]
        except CommitFailed as error:  # it can never be proven, or its rows are gone
            return replace(ended, meaning=str(error))
        if outcome is not Outcome.UNKNOWN or not retries.again(Verdict.UNCLEAR):
            done = outcome in (Outcome.COMMITTED, Outcome.ALREADY_COMMITTED)
            return replace(ended, ok=done, meaning=_OUTCOMES[outcome])
    return ended


def _commit_open(inspector: Inspector, transaction: Transaction) -> EndResult:
    """Commit what is open, whichever process began it."""
    client = inspector.client
    answers = client.until_answered(lambda some: client.commit(some)[0], [transaction])
    answer = answers[transaction]
    state = _state(_at_rest(inspector, transaction.id))
    ok = answer == NO_ERROR
    meaning = _COMMITTED if ok else "the broker did not commit it"
    return EndResult(transaction.id, ok, answer, state, meaning)


def _abort_open(inspector: Inspector, transaction: Transaction) -> EndResult:
    """Abort what is open, and fence its producer if it is still alive (rule 21).

    For an open transaction, the request that fences ignores the producer's epoch, and the request
    that ends it checks it. It is ended first, so that a new owner of the id is left alone. The
    coordinator answers that it is busy while it aborts, and also while it commits a transaction
    that another process has just ended: so this one counts as aborted if the coordinator says so,
    or was seen to abort.
    """
    client = inspector.client
    seen: set[str] = set()

    def state() -> str:
        return _state(client.describe([transaction.id]).get(transaction.id))

    def watched(ask: Callable[[Sequence[Transaction]], dict[Transaction, str]]) -> str:
        def act(some: Sequence[Transaction]) -> dict[Transaction, str]:
            answers = ask(some)
            if answers[transaction] in NOT_NOW:
                seen.add(state())
            return answers

        return client.until_answered(act, [transaction])[transaction]

    ended = watched(lambda some: client.end(some, commit=False))
    if ended in PRODUCER_GONE and state() == "Ongoing":
        meaning = f"{_BEFORE}; another is open now"
        return EndResult(transaction.id, False, ended, "Ongoing", meaning)
    answer = watched(client.fence)
    rest = _state(_at_rest(inspector, transaction.id))
    fenced = answer in _FENCED
    ok = fenced and (ended == NO_ERROR or not seen.isdisjoint(_ABORTING))
    if ok:
        meaning = "aborted: readers continue past it"
    elif fenced:
        meaning = f"{_BEFORE}: check again"
    else:
        meaning = "the broker did not abort it"
    return EndResult(transaction.id, ok, answer, rest, meaning)


def _at_rest(inspector: Inspector, id_: str) -> Described | None:
    """Wait until the coordinator has written out what it decided; return the final state."""
    retries = Retries({Verdict.BUSY: _WAIT_S})
    while True:
        found = inspector.client.describe([id_]).get(id_)
        moving = found is not None and found.state in UNENDED_STATES and found.state != "Ongoing"
        if not moving or not retries.again(Verdict.BUSY):
            return found


def _state(described: Described | None) -> str:
    return _GONE if described is None else described.state
