"""What the decision log says about open transactions, for an operator who has to end one by hand.

Only the newest decision counts: the next start commits what it names, and aborts everything else
that the query has open (presumed abort). So an operator may do early what the next start would do;
anything else, and anything without a log to consult, takes --force.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from beadline.decisions import Claim, Decision
from beadline.errors import GuaranteeRefused, LogProblem, UsageError, WrongCheckpoint
from beadline.files import same_folder
from beadline.ids import EpochId, QueryId
from beadline.observe.history import History, read_history
from beadline.sink import Prepared
from beadline.sinks.kafka.part import KafkaPart, WriterId, default_control_topic
from beadline.transactions.kafka import Observed

LogVerdict = Literal["decided", "orphan", "unknown"]
Action = Literal["commit", "abort"]

NOTHING_CHANGED = "Nothing was changed."


@dataclass(frozen=True)
class LogStatus:
    """Where a query stands by its log: the newest decision, and the transactions that it names.

    ``head`` is the newest known slot: if it changes, another process is writing. ``finished`` says
    that every sink is known to show the newest decided epoch.
    """

    query: QueryId
    checkpoint: str
    claim: Claim
    head: int
    epoch: EpochId | None
    finished: bool
    named: Mapping[str, Prepared[KafkaPart]]

    def decided(self, one: Observed) -> Prepared[KafkaPart] | None:
        """Return the part, if the newest decision names this transaction.

        If nothing is open under its id, it has ended, one way or the other. A producer keeps its id
        and epoch from one transaction to the next: so if the marker of the open transaction is that
        of another part, it is another transaction.
        """
        part = self.named.get(one.id)
        if part is None or not one.is_open:
            return part
        if part.committable.transaction != one.described.transaction:
            return None
        return part if one.part in (None, part.id) else None

    def verdict(self, one: Observed) -> LogVerdict:
        """What the next start will do with it; unknown for one that is not Beadline's."""
        if one.writer is None or not one.writer.belongs_to(self.query):
            return "unknown"
        return "orphan" if self.decided(one) is None else "decided"

    def control_topic(self, writer: WriterId) -> str:
        """Where a sink of the query writes its markers, if the newest decision says so."""
        for part in self.named.values():
            if writer.belongs_to(self.query) and part.id.sink == writer.sink:
                return part.committable.control_topic
        return default_control_topic(writer.query)

    def driver(self) -> str | None:
        """Name the process that made the newest claim, if a process with its id runs on this host.

        Another host cannot be checked; and a process that is alive need not run the query.
        """
        claim = self.claim
        here = claim.host == socket.gethostname() and claim.pid not in (0, os.getpid())
        if not here or not _is_alive(claim.pid):
            return None
        return f"process {claim.pid} of this host, which started generation {claim.generation}"

    def check_place(self) -> None:
        """Refuse a copy of a checkpoint: the log that continues elsewhere may say otherwise."""
        if not same_folder(self.query.checkpoint, self.checkpoint):
            raise WrongCheckpoint(
                f"the log in {self.checkpoint} was written for {self.query.checkpoint}: it is a "
                "copy, which does not include later decisions. Give the checkpoint that the query "
                f"runs on. {NOTHING_CHANGED}"
            )


def read_log_status(checkpoint: str) -> LogStatus:
    """Read where a query stands; nothing is written."""
    history = read_history(checkpoint)
    query = history.newest.query
    decided = [epoch for epoch in history.epochs if epoch.decision is not None]
    newest = decided[-1] if decided else None
    decision = newest.decision if newest else None
    return LogStatus(
        query,
        history.checkpoint,
        history.newest,
        _head(history),
        EpochId(query, decision.epoch, decision.nonce, decision.at_ms) if decision else None,
        newest is None or newest.state == "committed",
        _named(history.newest, decision) if decision else {},
    )


def _head(history: History) -> int:
    slots = [slot for slot, _ in history.claims]
    return max(slots + [epoch.slot for epoch in history.epochs if epoch.slot is not None])


def _named(claim: Claim, decision: Decision) -> dict[str, Prepared[KafkaPart]]:
    """Return the decision's transactions by their ids, except those that were given up since."""
    given_up = claim.dropped if decision.generation < claim.generation else ()
    found = {}
    for sink, parts in decision.sinks.items():
        for part in parts:
            if sink in given_up or "transactional_id" not in part.committable:
                continue
            id_ = decision.part_id(claim.query, sink, part)
            committable = _read(claim.query, decision, part.committable)
            found[committable.transactional_id] = Prepared(
                id_, part.rows, committable, part.checksum
            )
    return found


def _read(query: QueryId, decision: Decision, committable: dict[str, Any]) -> KafkaPart:
    try:
        return KafkaPart.from_json(committable)
    except (ValueError, TypeError, KeyError) as error:
        raise LogProblem(
            f"query {query.name!r}, epoch {decision.epoch}: a committable cannot be read: {error}. "
            f"Use the Beadline version that wrote it. {NOTHING_CHANGED}"
        ) from error


def _is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except OSError:  # another user's process, so it exists
        return True
    return True


def verdict_of(one: Observed, status: LogStatus | None) -> LogVerdict:
    """The log's verdict; unknown, if there is no log."""
    return "unknown" if status is None else status.verdict(one)


def judge(action: Action, one: Observed, status: LogStatus | None, force: bool) -> bool:
    """Return whether ending this one takes --force; raise if it does and --force is not given.

    ``GuaranteeRefused`` if that contradicts the log: rows would show twice, or be lost.
    ``UsageError`` if no log confirms it.
    """
    verdict = verdict_of(one, status)
    if verdict == {"commit": "decided", "abort": "orphan"}[action]:
        return False
    if force:
        return True
    if status is None or verdict == "unknown":
        raise UsageError(f"{one.id}: {_nobody_knows(action, one, status)} {NOTHING_CHANGED}")
    query = f"query {status.query.name!r}"
    if action == "commit":
        named = f"{query} has decided no epoch yet"
        if status.epoch is not None:
            named = f"the newest decision of {query}, epoch {status.epoch.number}, names others"
        raise GuaranteeRefused(
            f"{one.id}: {named}, so the rows of this transaction are computed again, and would "
            "show twice if it were committed. Abort it, or start the query, which aborts it. "
            f"{NOTHING_CHANGED}"
        )
    assert status.epoch is not None, "nothing is decided without an epoch"
    raise GuaranteeRefused(
        f"{one.id}: epoch {status.epoch.number} of {query} is decided and names this "
        "transaction, so its rows must show, and would be missing if it were aborted. Commit it, "
        f"or start the query, which commits it. {NOTHING_CHANGED}"
    )


def _nobody_knows(action: Action, one: Observed, status: LogStatus | None) -> str:
    if one.writer is None:
        return (
            f"it was not begun by Beadline, so no decision log says whether to {action} it. Ask "
            "its owner, or use --force at your own risk."
        )
    if status is None:
        return (
            f"it belongs to query {one.writer.query!r}, and without --checkpoint it is not known "
            "whether it was decided. Give the query's --checkpoint or, if that is lost, --force."
        )
    return (
        f"it belongs to query {one.writer.query!r}, incarnation {one.writer.incarnation}, and the "
        f"checkpoint to {status.query.name!r}, incarnation {status.query.incarnation}. Give the "
        "checkpoint that it belongs to or, if that is lost, --force."
    )
