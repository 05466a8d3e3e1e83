"""The coordinator: the whole protocol on one screen.

    start      claim the log → open the sinks → sweep orphans → finish the newest decision
    run_epoch  prepare → decide → commit → return, or finish what was decided before

Kill the process between any two lines and the next start ends in the same place.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping

from beadline.decisions import Decision
from beadline.points import reach
from beadline.protocol import identity, recover
from beadline.protocol.batch import Batch
from beadline.protocol.commit import commit
from beadline.protocol.decide import decide
from beadline.protocol.epoch import MOVES, Epoch, State
from beadline.protocol.prepare import prepare
from beadline.protocol.publish import publish
from beadline.protocol.recover import Recovered
from beadline.protocol.replay import replay
from beadline.protocol.run import Run
from beadline.protocol.sweep import Sweeper


class Coordinator:
    """Recovers one query, then carries out one epoch after another."""

    def __init__(self, run: Run) -> None:
        """Nothing is read or written before ``start``."""
        self.run = run
        self.sweeper = Sweeper(run)
        self.recovered: Recovered | None = None
        self.steps: dict[State, Callable[[Epoch], State]] = {
            State.PLANNED: self.prepare if run.decides else self.publish,
            State.PREPARED: self.decide,
            State.DECIDED: self.commit,
            State.LOST: self.replay,
        }

    def start(self, drop: Collection[str] = ()) -> None:
        """Claim, sweep, finish: everything that must be done before Spark runs (rule 15)."""
        pending = self.claim(drop)
        recover.open_sinks(self.run)
        # Orphans first: they hold readers up, and finishing may have to wait.
        self.sweeper.sweep_older()
        if pending is not None:
            reach("recover.before")
            self.recovered = recover.finish(self.run, pending, drop, self.claim, self.sweeper)
            reach("recover.after")
            recover.check_recovered_sources(self.run, self.recovered)
        reach("start.after")

    def claim(
        self, drop: Collection[str] = (), behind: Mapping[str, int] | None = None
    ) -> Decision | None:
        """Take the log over; return the decision that may be unfinished."""
        return recover.claim(self.run, drop, behind)

    def run_epoch(self, batch: Batch) -> None:
        """Run one epoch. Returns only after every sink has committed (rule 11)."""
        with self.run.in_epoch:
            reach("epoch.begin")
            decision = self.run.log.state.decision
            if decision is not None and decision.epoch == batch.number:
                self.finish_redelivered(decision, batch)
            else:
                if self.run.decides:
                    identity.check_next(self.run.name, self.run.log, batch.number)
                self.sweeper.before_epoch()
                self.run.log.check_newest()  # or our writers would take names of a newer start
                self.carry(Epoch(batch))
                self.sweeper.after_epoch()
            reach("epoch.return")

    def finish_redelivered(self, decision: Decision, batch: Batch) -> None:
        """Finish a decided epoch from where the start left it, and advance its state."""
        identity.check_offsets(decision, batch.offsets(), identity.meaning_decided(batch.number))
        reach("epoch.again")
        epoch = Epoch(batch, State.DECIDED, decision)
        recovered, self.recovered = self.recovered, None
        if recovered is not None and recovered.is_of(decision):
            epoch.lost = recovered.lost
            epoch.move(State.LOST if epoch.lost else State.COMMITTED)
        self.carry(epoch)
        if not epoch.replays:  # else the rows were computed, and the state with them
            batch.advance_state()

    def carry(self, epoch: Epoch) -> None:
        """Take one step after another: the state says which."""
        while MOVES[epoch.state]:
            epoch.move(self.steps[epoch.state](epoch))
        if epoch.state is State.COMMITTED:
            self.run.note_finished(epoch.decided)

    # -- the steps, from state to state

    def prepare(self, epoch: Epoch) -> State:
        """Every sink's parts, durable and invisible."""
        run = self.run
        epoch.started_at_ms = run.now_ms()
        epoch.acks = prepare(run, self.sweeper, epoch, run.sinks, run.decided_parts())
        return State.PREPARED

    def decide(self, epoch: Epoch) -> State:
        """The one durable append of the epoch."""
        epoch.decision = decide(self.run, epoch)
        return State.DECIDED

    def commit(self, epoch: Epoch) -> State:
        """Every sink that has parts in the decision, at once; returned parts are proven lost."""
        epoch.lost = commit(self.run, epoch.decided, self.run.kept(epoch.decided))
        return State.LOST if epoch.lost else State.COMMITTED

    def replay(self, epoch: Epoch) -> State:
        """Compute lost parts again, and decide the replacements (rule 13)."""
        epoch.decision = replay(self.run, self.sweeper, epoch)
        epoch.replays += 1
        return State.DECIDED

    def publish(self, epoch: Epoch) -> State:
        """At-least-once, instead of all of these."""
        publish(self.run, self.sweeper, epoch.batch)
        return State.PUBLISHED

    def close(self) -> None:
        """After a clean stop: nothing stays open, unless a newer start has taken over."""
        run = self.run
        self.sweeper.sweep_ours()
        if run.left_open() is not None:
            return  # decided and not finished: what it has open must stay open
        for sink in run.sinks:
            if (end_writers := sink.sink.close(run.query, sink.name)) is not None:
                run.log.check_newest()  # or they may be a newer start's
                end_writers()
