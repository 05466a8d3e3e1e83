"""Worse protocols: each class leaves out one rule, and says which.

``test_mutations`` plays them until a promise is broken.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar

from beadline.decisions import Claim, Decision, DecisionLog, LogState, Pointer, Record
from beadline.decisions.record import encode
from beadline.errors import Fenced, LogProblem
from beadline.ids import EpochId
from beadline.points import reach
from beadline.protocol.batch import Batch
from beadline.protocol.commit import commit
from beadline.protocol.coordinator import Coordinator
from beadline.protocol.decide import stored_parts
from beadline.protocol.epoch import Epoch, State
from beadline.protocol.prepare import prepare
from beadline.protocol.run import Run
from beadline.protocol.sweep import Sweeper
from tests.model.model import ModelSink


class ClosesAllTheSame(Coordinator):
    """A start that has taken over has writers of its own; only the newest may end any."""

    def close(self) -> None:
        for sink in self.run.sinks:
            if (end_writers := sink.sink.close(self.run.query, "under-test")) is not None:
                end_writers()


class CommitsBeforeItDecides(Coordinator):
    """Rule: decide, then commit."""

    def decide(self, epoch: Epoch) -> State:
        id_ = EpochId(self.run.query, epoch.number, "nonce", self.run.now_ms())
        for sink in self.run.sinks:
            sink.sink.commit(id_, [*epoch.acks[sink.name].prepared])
        return super().decide(epoch)


class SweepsWorse(Coordinator):
    """The coordinator is the real one; what it sweeps with is not."""

    sweeps: ClassVar[type[Sweeper]]

    def __init__(self, run: Run) -> None:
        super().__init__(run)
        self.sweeper = self.sweeps(run)


class SweepsNothing(Sweeper):
    def sweep(self, wanted: Any) -> None:
        """Leave everything where it is."""


class NeverAborts(SweepsWorse):
    """Presumed abort: what nobody decided is thrown away."""

    sweeps = SweepsNothing


class SweepsAtStartOnly(Sweeper):
    def before_epoch(self) -> None:
        """Leave losers to the next start, which may be months away."""


class NeverSweepsLosers(SweepsWorse):
    """Rule 7: attempts that lost are swept before the next epoch."""

    sweeps = SweepsAtStartOnly


class SweepsBeforeOnly(Sweeper):
    def after_epoch(self) -> None:
        """Leave losers to the next epoch."""


class LeavesLosersOpen(SweepsWorse):
    """Rule 7: readers are held up by them, and the next epoch may be long in coming."""

    sweeps = SweepsBeforeOnly


class AbortsBeforeTheClaim(Coordinator):
    """Rule 1: abort only after your own claim holds a slot."""

    def claim(
        self, drop: Collection[str] = (), behind: Mapping[str, int] | None = None
    ) -> Decision | None:
        if (before := self.run.log.open().claim) is not None:
            self.run.query, self.run.generation = before.query, before.generation + 1
            self.sweeper.sweep_older()
        return super().claim(drop, behind)


class NeverClaims(Coordinator):
    """Rule 1: a start is a record in the log. Here only the first one is."""

    def claim(
        self, drop: Collection[str] = (), behind: Mapping[str, int] | None = None
    ) -> Decision | None:
        state = self.run.log.open()
        if state.claim is None:
            return super().claim(drop, behind)
        self.run.query, self.run.generation = state.claim.query, state.claim.generation + 1
        return self.run.unfinished()


class NeverCommitsAgain(Coordinator):
    """Rules 14 and 16: what was decided is finished by the next start."""

    def start(self, drop: Collection[str] = ()) -> None:
        self.claim(drop)
        self.sweeper.sweep_older()

    def finish_redelivered(self, decision: Decision, batch: Batch) -> None:
        batch.advance_state()


class LeavesItToSpark(Coordinator):
    """Rule 15: finish at the start, not when the source delivers again."""

    def start(self, drop: Collection[str] = ()) -> None:
        self.claim(drop)
        self.sweeper.sweep_older()
        reach("start.after")


class ReturnsBeforeItCommits(Coordinator):
    """Rule 11: return only after every sink has committed."""

    left: Decision | None = None

    def run_epoch(self, batch: Batch) -> None:
        if self.left is not None:
            commit(self.run, self.left, self.run.sinks)
        super().run_epoch(batch)

    def commit(self, epoch: Epoch) -> State:
        self.left = epoch.decided
        return State.COMMITTED


class LetsTheStateStand(Coordinator):
    """Rule 16: a decided epoch that is redelivered still moves the state on."""

    def finish_redelivered(self, decision: Decision, batch: Batch) -> None:
        self.carry(Epoch(batch, State.DECIDED, decision))


class TakesAFailureAsUndecided(Coordinator):
    """Rule 3: a failed append is not an undecided epoch."""

    def decide(self, epoch: Epoch) -> State:
        try:
            return super().decide(epoch)
        except LogProblem:
            for sink in self.run.sinks:
                sink.sink.abort(epoch.acks[sink.name].prepared)
            raise


class NeverReadsBack(DecisionLog):
    """Rule 3: after an error, the slot is read back."""

    def _take(self, slot: int, record: Record) -> None:
        try:
            created = self._store.create(slot, encode(record, slot))
        except OSError as error:
            raise self._unknown(slot, error) from error
        if not created:
            raise self._fenced(slot)


class DecidesAllTheSame(DecisionLog):
    """Rule 1: a slot that another driver took means: fenced. Here the next one is tried."""

    def append(self, record: Record) -> Pointer:
        while True:
            try:
                return super().append(record)
            except Fenced:
                self.open()


class SparesTheNewestOnly(DecisionLog):
    """Rule 1: the newest claim is never deleted by retention."""

    def _trim(self, slots: list[int]) -> None:
        for slot in slots:
            if slot <= self.state.head - self._keep:
                self._store.delete(slot)


class TrustsTheCreate(DecisionLog):
    """A slot freed by retention can be taken again, by one who slept through two takeovers."""

    def append(self, record: Record) -> Pointer:
        slot = self.state.head + 1
        self._take(slot, record)
        here = Pointer(slot, record.nonce)
        if isinstance(record, Claim):
            self.state = LogState(slot, record, here, self.state.decision, record.decided)
        else:
            self.state = LogState(slot, self.state.claim, self.state.claim_at, record, here)
        self._trim(self._store.slots())
        return here


@dataclass(frozen=True)
class ForgetsOlderEpochs(ModelSink):
    """Rule 10: a late commit has no effect, also after newer epochs."""

    def is_late(self, epoch: EpochId) -> bool:
        seen = self.server.seen.get(epoch.query.name)
        return seen is not None and seen.epoch == epoch.number


@dataclass(frozen=True)
class ChecksTheLedgerTooEarly(ModelSink):
    """Rule 10: the ledger is checked in the same atomic act that writes."""

    def is_late(self, epoch: EpochId) -> bool:
        late = super().is_late(epoch)
        reach("ledger.before")
        return late


class ReplaysUndecided(Coordinator):
    """Rule 13: what replaces a lost part is decided before it is committed."""

    def replay(self, epoch: Epoch) -> State:
        decision, lost = epoch.decided, epoch.lost
        sinks = [sink for sink in self.run.sinks if sink.name in lost]
        acks = prepare(self.run, self.sweeper, epoch, sinks, decided={})
        new = {name: stored_parts(ack.prepared) for name, ack in acks.items()}
        gone = {name: {part.id.partition for part in parts} for name, parts in lost.items()}
        merged = {
            name: tuple(
                new[name][part.partition] if part.partition in gone.get(name, ()) else part
                for part in parts
            )
            for name, parts in decision.sinks.items()
        }
        epoch.decision = replace(decision, sinks=merged)
        epoch.replays += 1
        return State.DECIDED


class DropsLostParts(Coordinator):
    """Rule 14: nothing decided is ever dropped, not even with a line in a log."""

    def commit(self, epoch: Epoch) -> State:
        super().commit(epoch)
        return State.COMMITTED
