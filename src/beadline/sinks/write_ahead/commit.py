"""One commit of one epoch: round by round, under the lock, looking at what is done before each.

A round is one batch, or one of each of ``parallel`` parts. Before it, ledger and progress are
looked at again: in the meantime another driver may have continued this epoch, or finished it and
begun newer ones, and then there is nothing left to do here. After it, what was accepted is made
durable. Between two rounds, and while an endpoint is waited for, the lock is free.
"""

from __future__ import annotations

import time
import traceback
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from beadline.sink import (
    CommitBlocked,
    CommitFailed,
    Denied,
    Outcome,
    OutcomeUnknown,
    PartId,
    Prepared,
    Retries,
    StagedEpoch,
    StagedPart,
    Verdict,
    holds,
    reach,
    running,
    way_out,
)
from beadline.sinks.write_ahead.endpoint import (
    UNSURE,
    AlreadyTaken,
    Delivery,
    Endpoint,
    Rejected,
    TryAgain,
)
from beadline.sinks.write_ahead.state import ANY_CUT, DeliveryProgress, Lock, StateFiles, content_of

if TYPE_CHECKING:
    import pyarrow as pa

_RETRY_AFTER_MAX_S = 3600.0
_MARK_DIGITS = 12


@dataclass
class RetryAfter:
    """Until when the endpoint asked not to be called, by this process's clock, and what it said.

    It belongs to the sink, not to a call of ``commit``: the next one comes at once.
    """

    until_s: float = 0.0
    said: str = ""


@dataclass(frozen=True)
class DeliverySettings:
    """How the sink was told to deliver; ``where`` names the endpoint for people."""

    endpoint: Endpoint
    where: str
    batch_rows: int
    parallel: int
    honours_ids: bool
    timeout_s: float
    retry_after: RetryAfter


class EpochDelivery:
    """One call of ``commit``, from its first look to its answer."""

    def __init__(self, settings: DeliverySettings, files: StateFiles, staged: StagedEpoch) -> None:
        self.settings = settings
        self.files = files
        self.staged = staged
        # The ledger is ours, and not in the endpoint: that it lacks epochs says nothing of those
        # rows, and what an endpoint has lost cannot be seen from here.
        self.epoch = replace(staged.id, previous=-1)
        self.parts = staged.parts
        self.readers = {part.id.partition: _PartReader(staged, part) for part in staged.parts}
        self.progress: DeliveryProgress | None = None
        self.checked = False
        self.sender = _Sender(settings)
        self.lock = Lock(files)

    def run(self) -> Outcome:
        """Deliver what is left, and answer."""
        retries = Retries(running(self.settings.timeout_s))
        while True:
            with self.lock.held(self.settings.timeout_s) as mine:
                if not mine:
                    raise self._unknown(f"{self.lock.holder} holds {self.lock.path}")
                found = self._look() or self._asked_to_wait() or self._round()
            if isinstance(found, Outcome):
                return found
            if found is None:
                retries.progressed()
            elif not retries.again(Verdict.BUSY, found.after_s):
                raise self._unknown(f"{found}, for {self.settings.timeout_s:g} s")

    def close(self) -> None:
        """Close the endpoint and every file."""
        self.sender.close()
        self._forget_progress()
        self.lock.close()

    def _look(self) -> Outcome | None:
        """What do ledger and progress say now? None if there is something to deliver."""
        query, where = self.epoch.query, self.settings.where
        other = self.files.of_another_incarnation(query) if not self.checked else None
        for seen in (other, self.files.finished()):
            if holds(seen, self.epoch, where):
                return self._finished(Outcome.ALREADY_COMMITTED)
        self._read_progress()
        progress = self.progress
        if progress is not None and holds(progress.seen, self.epoch, where):
            if progress.seen.epoch > self.epoch.number:
                # Only after drop= is an epoch begun before the last one has ended: ours was given
                # up.
                return self._finished(Outcome.ALREADY_COMMITTED)
            self._check_same(progress)
        else:
            self._forget_progress()
        self._check_staged()
        batch_rows = self.settings.batch_rows
        if self.progress is None:
            self.progress = DeliveryProgress.begin(self.files, self.epoch, self.parts, batch_rows)
        elif self.progress.cut == ANY_CUT:
            self.progress.recut(batch_rows)
        if self._left():
            return None
        return self._end()

    def _read_progress(self) -> None:
        if self.progress is not None and self.progress.is_current():
            return
        self._forget_progress()
        self.progress = DeliveryProgress.read(self.files)

    def _forget_progress(self) -> None:
        if self.progress is not None:
            self.progress.close()
            self.progress = None

    def _check_same(self, progress: DeliveryProgress) -> None:
        """An epoch that was started continues only with the parts that it was started with."""
        if progress.content == content_of(self.parts):
            return
        if not self.epoch.nonce or not progress.seen.nonce:
            # at_least_once: nothing was decided, and the epoch was prepared again.
            self._forget_progress()
            return
        raise CommitFailed(
            f"{self.staged}: {self.settings.where} was started with a different set of parts. "
            "Rows could be lost or doubled, so nothing more was delivered. If rows may "
            f"arrive twice, delete {progress.uri} and start again: the epoch is then delivered "
            f"from its first row. {way_out(self.files.sink, self.epoch.number)}"
        )

    def _check_staged(self) -> None:
        """Are the staged files unchanged? Asked once: none is deleted before the ledger says so."""
        if self.checked:
            return
        progress = self.progress
        if progress is None:
            # Nothing of the epoch has gone out: if a part is gone all are lost, not some.
            self.staged.check_parts()
        else:
            damage = self.staged.damage(self._left())
            if damage:
                raise self._cannot_go_on(progress, damage)
        self.checked = True

    def _cannot_go_on(self, progress: DeliveryProgress, damage: dict[PartId, str]) -> CommitFailed:
        where = ", ".join(
            f"part {id_.partition} from row {progress.done.get(id_.partition, 0)} on"
            for id_ in sorted(damage, key=lambda id_: id_.partition)
        )
        return CommitFailed(
            f"{self.staged}: {where} cannot be delivered to {self.settings.where}: "
            f"{'; '.join(damage.values())}. The epoch is decided, and what comes before was "
            "delivered. Put the file back, and the next start continues. "
            f"{way_out(self.files.sink, self.epoch.number)}"
        )

    def _left(self) -> list[Prepared[StagedPart]]:
        assert self.progress is not None
        done = self.progress.done
        return [p for p in self.parts if done.get(p.id.partition, 0) < p.committable.rows]

    def _end(self) -> Outcome:
        """Everything is accepted: the ledger first, then what is not needed any more."""
        reach("ledger.before")
        self.files.write_ledger(self.epoch, self.staged.rows)
        reach("ledger.after")
        return self._finished(Outcome.COMMITTED)

    def _finished(self, outcome: Outcome) -> Outcome:
        """The ledger has the epoch, or a newer one; its progress can go."""
        self._read_progress()
        if self.progress is not None and self.progress.seen.epoch <= self.epoch.number:
            self.progress.remove()
        return outcome

    def _asked_to_wait(self) -> TryAgain | None:
        """Has the endpoint asked, in this call or the one before, to wait, and how long still?"""
        wait = self.settings.retry_after
        left_s = wait.until_s - time.monotonic()
        if left_s <= 0:
            return None
        return TryAgain(f"{wait.said}, and asks to wait; {left_s:.0f} s of that are left", left_s)

    def _round(self) -> TryAgain | None:
        """Deliver one batch of each of the first parts; None if all were accepted."""
        progress = self.progress
        assert progress is not None
        parts = self._left()[: self.settings.parallel]
        answers = self.sender.send([self._delivery(part, progress) for part in parts])
        for answer in answers:
            if answer.accepted:
                batch = answer.batch
                progress.advance(batch.part, batch.first_row + len(batch))
        again, rejected = _retry(answers), _rejection(answers, self.settings.where)
        if again is not None:
            wait = self.settings.retry_after
            wait.until_s = time.monotonic() + min(again.after_s, _RETRY_AFTER_MAX_S)
            wait.said = str(again)
        if rejected is not None:
            if again is None:
                progress.recut(ANY_CUT)  # nothing is in flight: batch_rows may be changed now
            raise rejected
        return again

    def _delivery(self, part: Prepared[StagedPart], progress: DeliveryProgress) -> Delivery:
        first = progress.done.get(part.id.partition, 0)
        return Delivery(
            query=self.epoch.query.name,
            incarnation=self.epoch.query.incarnation,
            sink=part.id.sink,
            epoch=self.epoch.number,
            part=part.id.partition,
            first_row=first,
            table=self.readers[part.id.partition].table(first, progress.cut),
            mark="" if self.epoch.nonce else part.committable.sha256[:_MARK_DIGITS],
        )

    def _unknown(self, why: str) -> OutcomeUnknown:
        detail = f"{self.settings.where}: {why}"
        if self.progress is not None:
            done = sum(self.progress.done.values())
            detail += f"; {done} of {self.staged.rows} rows of the epoch are delivered"
        return OutcomeUnknown(detail)


class _PartReader:
    """The batches of one part, cut from its staged file one after the other."""

    def __init__(self, staged: StagedEpoch, part: Prepared[StagedPart]) -> None:
        self._staged = staged
        self._part = part
        self._tables: Iterator[pa.Table] = iter(())
        self._at = (-1, 0)

    def table(self, first: int, cut: int) -> pa.Table:
        """Return the rows from ``first`` on; asked in order, the file is read once."""
        if self._at != (first, cut):
            self._tables = cuts(self._staged.read(self._part), first, cut)
        found = next(self._tables)
        self._at = (first + found.num_rows, cut)
        return found


def cuts(batches: Iterator[pa.RecordBatch], first: int, size: int) -> Iterator[pa.Table]:
    """Leave out the first rows, and cut what follows into tables of ``size`` rows."""
    import pyarrow as pa

    cut: list[pa.RecordBatch] = []
    room = size
    for batch in batches:
        skipped = min(first, batch.num_rows)
        first -= skipped
        while skipped < batch.num_rows:
            piece = batch.slice(skipped, room)
            cut.append(piece)
            skipped += piece.num_rows
            room -= piece.num_rows
            if not room:
                yield pa.Table.from_batches(cut)
                cut, room = [], size
    if cut:
        yield pa.Table.from_batches(cut)


@dataclass(frozen=True)
class _Answer:
    """What became of one batch: accepted if nothing was raised."""

    batch: Delivery
    raised: Exception | None

    @property
    def accepted(self) -> bool:
        """Whether the endpoint has the rows."""
        return self.raised is None

    @property
    def unsure(self) -> bool:
        """Whether the outcome is not known."""
        return isinstance(self.raised, (TryAgain, *UNSURE))


class _Sender:
    """The endpoint, opened when it is needed, and closed after whatever went wrong."""

    def __init__(self, settings: DeliverySettings) -> None:
        self._endpoint = settings.endpoint
        self._honours_ids = settings.honours_ids
        self._opened = False

    def send(self, batches: Sequence[Delivery]) -> list[_Answer]:
        """Deliver every batch; all have ended, well or badly, when this returns."""
        try:
            if not self._opened:
                self._endpoint.open()
                self._opened = True
        except Exception as error:  # noqa: BLE001 (a user's code may raise anything)
            return [_Answer(batch, error) for batch in batches]
        if len(batches) == 1:
            answers = [self._deliver(batches[0])]
        else:
            with ThreadPoolExecutor(len(batches)) as pool:
                answers = list(pool.map(self._deliver, batches))
        if any(answer.unsure for answer in answers):
            self.close()
        return answers

    def _deliver(self, batch: Delivery) -> _Answer:
        try:
            said: object = self._endpoint.deliver(batch)
            if said is not None:  # a response that was not checked, or False
                raise Rejected(
                    f"deliver returned {type(said).__name__}, and Beadline cannot know what that "
                    "means: return nothing if the rows were accepted, and raise if not"
                )
        except AlreadyTaken as known:
            return _Answer(batch, None if self._honours_ids else known)
        except Exception as error:  # noqa: BLE001 (a user's code may raise anything)
            return _Answer(batch, error)
        return _Answer(batch, None)

    def close(self) -> None:
        """Close the endpoint, if it is open."""
        if self._opened:
            self._opened = False
            with suppress(Exception):  # what was accepted is accepted, however it closes
                self._endpoint.close()


def _retry(answers: Sequence[_Answer]) -> TryAgain | None:
    """Return why a batch must be tried again, if one must: the one that asks to wait longest."""
    found = [
        raised if isinstance(raised, TryAgain) else TryAgain(_said(raised))
        for raised in (answer.raised for answer in answers if answer.unsure)
        if raised is not None
    ]
    return max(found, key=lambda again: again.after_s, default=None)


def _rejection(answers: Sequence[_Answer], where: str) -> CommitFailed | None:
    """Return the error for the first batch that was rejected, if one was."""
    for answer in answers:
        if answer.raised is not None and not answer.unsure:
            return _rejected(answer.batch, answer.raised, where)
    return None


def _rejected(batch: Delivery, raised: Exception, where: str) -> CommitFailed:
    hint = ""
    if isinstance(raised, AlreadyTaken):
        hint = " If it drops repeats by their ids, say so with honours_ids=True."
    kind = CommitBlocked if isinstance(raised, Denied | PermissionError) else CommitFailed
    return kind(
        f"query {batch.query!r}, sink {batch.sink!r}, {batch.where}: {where} does not accept them: "
        f"{_said(raised)}.{hint} The epoch is decided: what comes before these rows is delivered, "
        "and nothing is lost. Make the endpoint accept them and start again, which continues with "
        f"this batch. {way_out(batch.sink, batch.epoch)} Rows that an endpoint can never accept "
        "are best refused by accepts=, before an epoch is decided."
    )


def _said(error: Exception) -> str:
    """What an error says, without a full stop at its end.

    Of one that was not made for people, only its kind and the line: others hold values of rows.
    """
    text = str(error).strip().rstrip(".")
    if isinstance(error, TryAgain | AlreadyTaken | Rejected) and text:
        return text
    if not isinstance(error, (*UNSURE, PermissionError)):
        return f"{type(error).__name__}{_raised_at(error)}"
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


def _raised_at(error: Exception) -> str:
    """Return the line of the endpoint that raised it, or called what did."""
    frames = traceback.extract_tb(error.__traceback__)
    ours = Path(__file__).parent
    at = next((frame for frame in frames if Path(frame.filename).parent != ours), None)
    return "" if at is None else f", raised in {at.name}, {Path(at.filename).name}:{at.lineno}"
