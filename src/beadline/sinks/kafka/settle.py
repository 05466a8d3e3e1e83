"""Ending one transaction by hand, until the broker has done it or time is up.

There is nothing to go by but what the coordinator answers, and what it says of the id afterwards;
of what a decision names, the sink has proofs besides.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, replace

from beadline.errors import CommitFailed
from beadline.ids import EpochId
from beadline.sink import Outcome, Prepared
from beadline.sinks.kafka.gone import remade, rows_gone
from beadline.sinks.kafka.observed import UNENDED_STATES
from beadline.sinks.kafka.part import KafkaPart
from beadline.sinks.kafka.sink import KafkaSink
from beadline.sinks.kafka.transactions import GONE as PRODUCER_GONE
from beadline.sinks.kafka.transactions import (
    NO_ERROR,
    NOT_NOW,
    UNANSWERED,
    Client,
    Described,
    Transaction,
)

WAIT_S = 10.0
_PAUSE_S = 0.05
GONE = "gone"
# When asked again, brokers before 4.0 say that we, as well as the producer, are fenced.
_FENCED = (NO_ERROR, "PRODUCER_FENCED")
_ABORTING = frozenset({"PrepareAbort", "PrepareEpochFence", "CompleteAbort"})

COMMITTED = "committed: its rows show, as soon as nothing earlier is open"
_BEFORE = "it had ended before, by somebody else's hand"
_OUTCOMES = {
    Outcome.COMMITTED: COMMITTED,
    Outcome.ALREADY_COMMITTED: "it was committed before: its marker is visible",
    Outcome.LOST: "lost: its marker is proven absent. The next start computes its rows again",
    Outcome.UNKNOWN: "it is not known what became of it. Ask again; the next start does",
}


@dataclass(frozen=True)
class Settled:
    """What became of one transaction: the broker's own words, and what they mean."""

    id: str
    ok: bool
    answer: str
    state: str
    meaning: str


def commit_decided(
    sink: KafkaSink, client: Client, epoch: EpochId, part: Prepared[KafkaPart]
) -> Settled:
    """Commit what a decision names, by the producer id and epoch that the decision names.

    That the broker refuses is no proof of anything (rule 12), so then the sink looks for one.
    """
    named = part.committable
    transaction = Transaction(named.transactional_id, named.producer_id, named.producer_epoch)
    settled = commit_open(client, transaction)
    if settled.ok and (wrong := remade(client, [part], None)):
        gone = rows_gone(epoch, part.id.sink, [part], wrong)
        return replace(settled, ok=False, meaning=str(gone))
    deadline_s = time.monotonic() + WAIT_S
    while not settled.ok:
        try:
            outcome = sink.commit(epoch, [part]).outcomes[part.id]
        except CommitFailed as error:  # it can never be proven, or its rows are gone
            return replace(settled, meaning=str(error))
        if outcome is not Outcome.UNKNOWN or time.monotonic() > deadline_s:
            done = outcome in (Outcome.COMMITTED, Outcome.ALREADY_COMMITTED)
            return replace(settled, ok=done, meaning=_OUTCOMES[outcome])
        time.sleep(_PAUSE_S)
    return settled


def commit_open(client: Client, transaction: Transaction) -> Settled:
    """Commit what is open, whoever may have begun it.

    A request that was not answered may still arrive, when the producer has begun its next
    transaction; so the producer is ended after it (rule 17).
    """
    deadline_s = time.monotonic() + WAIT_S
    answers = _ask(lambda: client.end([transaction], commit=True)[transaction], deadline_s)
    ok = answers[-1] == NO_ERROR
    state = _rest(client, transaction.id, deadline_s)
    if ok and UNANSWERED in answers:
        _ask(lambda: client.fence([transaction])[transaction], deadline_s)
    meaning = COMMITTED if ok else "the broker did not commit it"
    return Settled(transaction.id, ok, answers[-1], _state(state), meaning)


def abort_open(client: Client, transaction: Transaction) -> Settled:
    """Abort what is open, and let its producer, should it live, begin nothing more (rule 21).

    To an open transaction the request that fences does not care for the producer's epoch, the one
    that ends does: so that whoever took the name over is left alone, it is ended first.

    The coordinator says that it is busy while it aborts, and as well while it commits what somebody
    else has just ended: so it is aborted if the coordinator says so, or was seen to abort.
    """
    deadline_s = time.monotonic() + WAIT_S
    seen: set[str] = set()

    def look(answer: str) -> str:
        if answer in NOT_NOW:
            seen.add(_state(client.describe([transaction.id]).get(transaction.id)))
        return answer

    ended = _ask(lambda: look(client.end([transaction], commit=False)[transaction]), deadline_s)[-1]
    if ended in PRODUCER_GONE:
        now = _state(client.describe([transaction.id]).get(transaction.id))
        if now == "Ongoing":
            return Settled(transaction.id, False, ended, now, f"{_BEFORE}; another is open now")
    answers = _ask(lambda: look(client.fence([transaction])[transaction]), deadline_s)
    state = _state(_rest(client, transaction.id, deadline_s))
    fenced = answers[-1] in _FENCED
    ok = fenced and (ended == NO_ERROR or not seen.isdisjoint(_ABORTING))
    if ok:
        meaning = "aborted: readers go on past it"
    elif fenced:
        meaning = f"{_BEFORE}: look again"
    else:
        meaning = "the broker did not abort it"
    return Settled(transaction.id, ok, answers[-1], state, meaning)


def _ask(ask: Callable[[], str], deadline_s: float) -> list[str]:
    """Ask until the broker does not say "not now"; return all that it said."""
    answers = [ask()]
    while answers[-1] in NOT_NOW and time.monotonic() < deadline_s:
        time.sleep(_PAUSE_S)
        answers.append(ask())
    return answers


def _rest(client: Client, name: str, deadline_s: float) -> Described | None:
    """Wait until the coordinator has written out what it decided; return where it came to rest."""
    while True:
        found = client.describe([name]).get(name)
        moving = found is not None and found.state in UNENDED_STATES and found.state != "Ongoing"
        if not moving or time.monotonic() > deadline_s:
            return found
        time.sleep(_PAUSE_S)


def _state(described: Described | None) -> str:
    return GONE if described is None else described.state
