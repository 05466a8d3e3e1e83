"""The faults of one round, until its range is used up or something is wrong; then the verdict."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TypeVar

from beadline.ids import PartId
from beadline.shared.retry import polls
from beadline.verify import faults
from beadline.verify.compare import EpochEnd, Reference, Violation
from beadline.verify.faults import Fault
from beadline.verify.inject import drain, inject
from beadline.verify.report import FaultResult
from beadline.verify.rounds import Round, left_behind
from beadline.verify.scratch import plain
from beadline.verify.watch import SinkWatcher, wait_until_stable

# A fault and the start that drains the range must both fit into the remaining time.
_RESERVE = 2.0
_NOT_ALIKE = (
    "epochs of this round have different boundaries than in the undisturbed run, because the "
    "driver died between two of Spark's log writes, and the job keeps state: sinks whose rows are "
    "only added are not compared"
)
_PATIENCE_S = 15.0
_PAUSE_S = 2.0
T = TypeVar("T")


@dataclass
class Chain:
    """One round's faults, and the result of each.

    ``undisturbed`` are the epochs of the references, by where they end.
    ``tell`` is told how many are done and which is next; ``out_of_time`` says whether there is no
    time for that many more.
    """

    made: Round
    references: Mapping[str, Reference]
    undisturbed: Mapping[EpochEnd, int]
    epochs: int
    seed: int
    tell: Callable[[int, str], None]
    out_of_time: Callable[[float], bool]
    fail_fast: bool = False
    done: list[FaultResult] = field(default_factory=list)
    doubt: dict[str, set[PartId]] = field(default_factory=dict)

    def run(self, left: list[Fault]) -> list[FaultResult]:
        """Take faults from the list, then drain and compare the round."""
        watch = self.made.watch(self.references, self.undisturbed)
        watch.start()
        try:
            while left and self._fits(left):
                fault = left.pop(0)
                watch.fault = str(fault)
                self.tell(len(self.done), str(fault))
                result = self._inject(fault)
                again = _easier(fault)
                known = not result.found and not result.unclear
                if not result.reached and again is not None and known:
                    left.append(again)
                    break  # its child has processed the whole range
                self.done.append(result)
                result.found += self._left_behind(result)
                _patiently(watch.look)
                if watch.found or result.found or result.unclear:
                    break
            found: list[Violation] = []
            if not self.fail_fast or not (watch.found or any(each.found for each in self.done)):
                self.tell(len(self.done), "the rest, undisturbed, and the comparison")
                found = self._end(watch)
        except Unreadable as error:
            found = []
            self._not_compared(str(error))
        finally:
            watch.stop()
        self._blame(found, watch.found)
        return self.done

    def _end(self, watch: SinkWatcher) -> list[Violation]:
        """Process the rest, then compare what shows."""
        drained = drain(self.made)
        if drained.unclear:
            self._not_compared(drained.unclear)
        if drained.found or drained.unclear:
            return drained.found
        _patiently(watch.look)
        return self._judge()

    def _not_compared(self, why: str) -> None:
        """If a round does not end, none of its faults proves anything."""
        for result in self.done:
            if result.tried and not result.unclear:
                result.unclear = f"{result.fault}: the sinks were not compared: {why}"

    def _fits(self, left: list[Fault]) -> bool:
        """Whether enough of the range is left; a fault that can never happen is noted."""
        while left:
            fault = left[0]
            if self.epochs < fault.epochs:
                note = f"the range has {self.epochs} epochs, and this needs {fault.epochs}"
                self.done.append(FaultResult(left.pop(0), note=note))
                continue
            if not fault.may_follow(self.done[-1].fault if self.done else None):
                left.insert(0, faults.before(fault))
                continue
            room = self.epochs - 1 - self._position()
            return room >= fault.epochs and not (self.done and self.out_of_time(_RESERVE))
        return False

    def _inject(self, fault: Fault) -> FaultResult:
        began_s = time.monotonic()
        before = self._position()
        injected = inject(self.made, fault, self.seed)
        return FaultResult(
            fault,
            injected.hits,
            injected.note,
            list(injected.found),
            before,
            self._position(),
            round(time.monotonic() - began_s, 1),
            tuple(str(result.fault) for result in self.done if result.tried),
            injected.unclear,
        )

    def _position(self) -> int:
        """The newest decided epoch, in the numbers of the undisturbed run, if it has one there."""
        decided = self.made.progress(self.undisturbed).decided
        return self.made.decided() if decided is None else decided

    def _judge(self) -> list[Violation]:
        alike = self.made.progress(self.undisturbed).alike
        if not all(each.comparable(alike) for each in self.references.values()) and self.done:
            last = self.done[-1]
            last.note = f"{last.note}; {_NOT_ALIKE}" if last.note else _NOT_ALIKE
        judge = partial(self.made.judge, self.references, alike)
        return wait_until_stable(partial(_patiently, judge), self.made.settle_s)

    def _left_behind(self, result: FaultResult) -> list[Violation]:
        """What was in doubt before a start that has decided an epoch since, and still is."""
        before, self.doubt = self.doubt, _patiently(self.made.in_doubt)
        if result.after <= result.before:
            return []
        return left_behind(
            {name: ids & before.get(name, set()) for name, ids in self.doubt.items()}
        )

    def _blame(self, found: list[Violation], watched: list[tuple[str, Violation]]) -> None:
        """Assign each violation to the fault that caused it, as far as that is known."""
        tried = [result for result in self.done if result.tried]
        if not tried and (found or watched):
            tried = [FaultResult(Fault("undisturbed"), seconds=0.1)]
            self.done += tried
        for name, violation in watched:
            here = [n for n, result in enumerate(tried) if str(result.fault) == name]
            number = here[-1] if here else len(tried) - 1
            epoch = violation.epoch
            if number and epoch is not None and epoch <= tried[number].before:
                number -= 1  # it appeared when the start after that fault finished its epoch
            tried[number].found.append(violation)
        known = {(violation.kind, violation.sink) for _, violation in watched}
        for violation in found:
            if (violation.kind, violation.sink) in known:
                continue
            epoch = violation.epoch
            near = [r for r in tried if epoch is not None and r.before <= epoch <= r.after + 1]
            (near or tried)[-1].found.append(violation)


class Unreadable(Exception):
    """A sink cannot be read, so it is not known whether it shows the right rows."""


def _patiently(look: Callable[[], T]) -> T:
    """Read again if a server does not answer: it may still suffer from a fault."""
    again = polls(_PATIENCE_S, _PAUSE_S)
    while True:
        try:
            return look()
        except Exception as error:
            if not again():
                raise Unreadable(f"a sink cannot be read: {plain(error)}") from error


def _easier(fault: Fault) -> Fault | None:
    """The same kill, but the first time that a child reaches it."""
    if fault.kill is None or fault.kill.occurrence == 1:
        return None
    return replace(fault, kill=replace(fault.kill, occurrence=1))
