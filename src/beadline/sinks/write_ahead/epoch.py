"""One commit of one epoch: round by round, under the lock, looking at what is done before each.

A round is one batch, or one of each of ``parallel`` parts. Before it, ledger and progress are
looked at again: in the meantime another driver may have gone on with this epoch, or with newer
ones, and then there is nothing left to do here. After it, what was taken is made durable. Between
two rounds, and while a receiver is waited for, the lock is free.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace

from beadline.errors import CommitFailed
from beadline.ids import EpochId
from beadline.points import reach
from beadline.sink import CommitResult, Outcome, Prepared, StagedPart, Staging, holds
from beadline.sinks.write_ahead.lanes import Lane
from beadline.sinks.write_ahead.ledger import Lock, StateFiles
from beadline.sinks.write_ahead.progress import ANY_CUT, Progress, content_of
from beadline.sinks.write_ahead.receiver import Delivery, TryAgain
from beadline.sinks.write_ahead.rounds import Rounds, Ways, refusal, try_again

Parts = Sequence[Prepared[StagedPart]]
_BACK_OFF_S = (0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0)
_RETRY_AFTER_MAX_S = 3600.0
_MARK_DIGITS = 12


class Run:
    """One call of ``commit``, from its first look to its answer."""

    def __init__(
        self, ways: Ways, files: StateFiles, staging: Staging, epoch: EpochId, parts: Parts
    ) -> None:
        self.ways = ways
        self.files = files
        self.staging = staging
        # The ledger is ours, and not in the receiver: that it lacks epochs says nothing of those
        # rows, and what a receiver has lost cannot be seen from here.
        self.epoch = replace(epoch, previous=-1)
        self.parts = sorted(parts, key=lambda part: part.id.partition)
        self.lanes = {part.id.partition: Lane(staging, part.committable) for part in self.parts}
        self.progress: Progress | None = None
        self.checked = False
        self.rounds = Rounds(ways)
        self.lock = Lock(files)

    def finish(self) -> CommitResult:
        """Deliver what is left, and answer."""
        tries, deadline_s = 0, time.monotonic() + self.ways.timeout_s
        while True:
            with self.lock.held(self.ways.timeout_s) as mine:
                if not mine:
                    return self._unknown(f"{self.lock.holder} holds {self.lock.path}")
                found = self._look() or self._waiting() or self._round()
            if isinstance(found, CommitResult):
                return found
            if found is None:
                tries, deadline_s = 0, time.monotonic() + self.ways.timeout_s
                continue
            left_s = deadline_s - time.monotonic()
            if left_s <= 0:
                return self._unknown(f"{found}, for {self.ways.timeout_s:g} s")
            back_off_s = _BACK_OFF_S[min(tries, len(_BACK_OFF_S) - 1)]
            time.sleep(min(left_s, max(back_off_s, found.after_s)))
            tries += 1

    def close(self) -> None:
        """Let go of everything."""
        self.rounds.close()
        self._forget_progress()
        self.lock.close()

    def _look(self) -> CommitResult | None:
        """What do ledger and progress say now? None if there is something to deliver."""
        query = self.epoch.query
        stranger = self.files.strangers(query) if not self.checked else None
        for seen in (stranger, self.files.finished()):
            if holds(seen, self.epoch, self.ways.where):
                return self._finished(Outcome.ALREADY_COMMITTED)
        self._read_progress()
        progress = self.progress
        if progress is not None and holds(progress.seen, self.epoch, self.ways.where):
            if progress.seen.epoch > self.epoch.number:
                # Only after drop= is an epoch begun whose last one has no end: ours is given up.
                return self._finished(Outcome.ALREADY_COMMITTED)
            self._check_same(progress)
        else:
            self._forget_progress()
        lost = self._check_staged()
        if lost is not None:
            return lost
        self.checked = True
        if self.progress is None:
            self.progress = Progress.begin(self.files, self.epoch, self.parts, self.ways.batch_rows)
        elif self.progress.cut == ANY_CUT:
            self.progress.recut(self.ways.batch_rows)
        if self._left():
            return None
        return self._end()

    def _read_progress(self) -> None:
        if self.progress is not None and self.progress.is_current():
            return
        self._forget_progress()
        self.progress = Progress.read(self.files)

    def _forget_progress(self) -> None:
        if self.progress is not None:
            self.progress.close()
            self.progress = None

    def _check_same(self, progress: Progress) -> None:
        """An epoch that was begun goes on only with the parts that it was begun with."""
        if progress.content == content_of(self.parts):
            return
        if not self.epoch.nonce or not progress.seen.nonce:
            # at_least_once: nothing was decided, and the epoch was prepared anew.
            self._forget_progress()
            return
        raise CommitFailed(
            f"{self._name}: {self.ways.where} was begun with other parts than it is to go on with. "
            "Rows could be lost or doubled, so nothing more was delivered. If rows may arrive "
            f"twice, delete {progress.uri} and start again: the epoch is then delivered from its "
            "first row."
        )

    def _check_staged(self) -> CommitResult | None:
        """Are the staged files what they were? Asked once, under the lock: nobody deletes now."""
        if self.checked:
            return None
        progress = self.progress
        left = self.parts if progress is None else self._left()
        damage = self.staging.damage(left)
        if not damage:
            return None
        if progress is None:
            # Nothing of the epoch has gone out: all parts are lost, not some.
            lost = CommitResult.all(self.parts, Outcome.LOST).outcomes
            return CommitResult(lost, "; ".join(damage.values()))
        where = ", ".join(
            f"part {id_.partition} from row {progress.done.get(id_.partition, 0)} on"
            for id_ in sorted(damage, key=lambda id_: id_.partition)
        )
        raise CommitFailed(
            f"{self._name}: {where} cannot be delivered to {self.ways.where}: "
            f"{'; '.join(damage.values())}. The epoch is decided, and what comes before was "
            "delivered. Bring the file back and start again; or take the sink out and start once "
            f'with drop=["{self.files.sink}"], which gives up the rest of its rows of this epoch.'
        )

    def _left(self) -> list[Prepared[StagedPart]]:
        assert self.progress is not None
        done = self.progress.done
        return [p for p in self.parts if done.get(p.id.partition, 0) < p.committable.rows]

    def _end(self) -> CommitResult:
        """Everything is taken: the ledger first, then what is not needed any more."""
        reach("ledger.before")
        self.files.write_ledger(self.epoch, sum(part.committable.rows for part in self.parts))
        reach("ledger.after")
        return self._finished(Outcome.COMMITTED)

    def _finished(self, outcome: Outcome) -> CommitResult:
        """The ledger has the epoch, or a newer one; what is left of it can go."""
        self._read_progress()
        if self.progress is not None and self.progress.seen.epoch <= self.epoch.number:
            self.progress.remove()
        self.staging.discard(self.parts)
        return CommitResult.all(self.parts, outcome)

    def _waiting(self) -> TryAgain | None:
        """Has the receiver asked, in this call or the one before, to wait, and how long still?"""
        wait = self.ways.wait
        left_s = wait.until_s - time.monotonic()
        if left_s <= 0:
            return None
        return TryAgain(f"{wait.said}, and asks to wait; {left_s:.0f} s of that are left", left_s)

    def _round(self) -> TryAgain | None:
        """Deliver one batch of each of the first parts; None if all were taken."""
        progress = self.progress
        assert progress is not None
        batches = [self._delivery(part, progress) for part in self._left()[: self.ways.parallel]]
        answers = self.rounds.deliver(batches)
        for answer in answers:
            if answer.taken:
                batch = answer.batch
                progress.advance(batch.part, batch.first_row + len(batch))
        again, refused = try_again(answers), refusal(answers, self.ways.where)
        if again is not None:
            self.ways.wait.until_s = time.monotonic() + min(again.after_s, _RETRY_AFTER_MAX_S)
            self.ways.wait.said = str(again)
        if refused is not None:
            if again is None:
                progress.recut(ANY_CUT)  # nothing is on its way: batch_rows may be changed now
            raise refused
        return again

    def _delivery(self, part: Prepared[StagedPart], progress: Progress) -> Delivery:
        first = progress.done.get(part.id.partition, 0)
        return Delivery(
            query=self.epoch.query.name,
            incarnation=self.epoch.query.incarnation,
            sink=part.id.sink,
            epoch=self.epoch.number,
            part=part.id.partition,
            first_row=first,
            table=self.lanes[part.id.partition].table(first, progress.cut),
            mark="" if self.epoch.nonce else part.committable.sha256[:_MARK_DIGITS],
        )

    def _unknown(self, why: str) -> CommitResult:
        detail = f"{self.ways.where}: {why}"
        if self.progress is not None:
            done = sum(self.progress.done.values())
            rows = sum(part.committable.rows for part in self.parts)
            detail += f"; {done} of {rows} rows of the epoch are delivered"
        return CommitResult(CommitResult.all(self.parts, Outcome.UNKNOWN).outcomes, detail)

    @property
    def _name(self) -> str:
        return (
            f"query {self.epoch.query.name!r}, epoch {self.epoch.number}, sink {self.files.sink!r}"
        )
