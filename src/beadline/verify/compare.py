"""Compares what sinks show with what an undisturbed run showed. Pure: no I/O, Spark or clocks.

The undisturbed run was read after each of its epochs. So two things are known about any moment of a
disturbed one, whatever dies: when epoch ``d`` is decided, every epoch before it shows, because
``d`` was begun after they were committed; and nothing shows of an epoch that is not decided::

    state before d   ⊆   what is shown   ⊆   state after d

Which epochs of the undisturbed run these are is known from where they end, in Spark's offsets:
epochs with the same number need not hold the same rows. Spark's file source notes the files of an
epoch in a log of its own before Spark notes the epoch; if a driver dies, or is stopped, between the
two, the next start puts those files into one epoch with the files after them.

A table whose rows change (totals, upserts) cannot be between two states; if its epochs are atomic,
it must equal one of them.
"""

from __future__ import annotations

import enum
from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

SeenRow = tuple[Hashable, ...]
CountedRows = Counter[SeenRow]
_EXAMPLE_CHARACTERS_MAX = 120


class ViolationKind(enum.Enum):
    """The ways in which exactly-once is broken."""

    LOST = "lost"
    DUPLICATED = "duplicated"
    ABORTED = "aborted but read"
    DISORDER = "out of order"
    TORN = "torn epoch"
    WRONG = "wrong values"
    LEFT = "left behind"
    STOPPED = "did not recover"

    def __str__(self) -> str:
        """The words."""
        return self.value


@dataclass(frozen=True)
class Violation:
    """One violation; ``epoch`` is the epoch that it belongs to, if that is known."""

    kind: ViolationKind
    sink: str
    detail: str
    rows: int = 0
    epoch: int | None = None

    def __str__(self) -> str:
        """One line for people."""
        where = f" in {self.sink}" if self.sink else ""
        return f"{self.kind}{where}: {self.detail}"

    def as_dict(self) -> dict[str, Any]:
        """The same for JSON."""
        return {**vars(self), "kind": str(self.kind)}


@dataclass(frozen=True)
class SinkContents:
    """What one sink shows at one moment; ``order`` holds the rows of each key, in their order."""

    rows: CountedRows
    order: Mapping[Hashable, tuple[SeenRow, ...]] = field(default_factory=dict)


@dataclass(frozen=True)
class Reference:
    """One sink of the undisturbed run: what it showed after each epoch.

    ``grows`` says that rows are added and never changed, ``atomic`` that an epoch shows at once,
    ``exactly`` that no row may show twice (an at-least-once sink may repeat them), ``by_epoch``
    that epochs have the same boundaries in every run, ``by_state`` that epochs with other
    boundaries give other rows, because the job keeps state.
    """

    sink: str
    states: Mapping[int, SinkContents]
    grows: bool = True
    atomic: bool = False
    exactly: bool = True
    by_epoch: bool = True
    by_state: bool = False

    def state(self, epoch: int) -> SinkContents:
        """What must show when exactly the epochs up to this one are committed."""
        known = [number for number in self.states if number <= epoch]
        return self.states[max(known)] if known else SinkContents(Counter())

    @property
    def last(self) -> int:
        """The last epoch of the range."""
        return max(self.states, default=-1)

    @property
    def end(self) -> SinkContents:
        """What must show in the end."""
        return self.state(self.last)

    def comparable(self, alike: bool) -> bool:
        """Whether it can be compared with a run whose epochs have the same boundaries, or not."""
        return alike or not (self.by_state and self.grows)

    @property
    def watched(self) -> bool:
        """Whether ``moment`` can tell right from wrong before the end."""
        return self.by_epoch and (self.grows or (self.atomic and self.exactly))

    def epoch_of(self, rows: CountedRows) -> int | None:
        """The first epoch after which any of these rows shows."""
        for epoch in sorted(self.states):
            if any(row in self.states[epoch].rows for row in rows):
                return epoch
        return None


def rows_of(values: Iterable[Sequence[Any]]) -> list[SeenRow]:
    """Rows that can be counted, from any values of a client library."""
    return [tuple(plain(value) for value in row) for row in values]


def plain(value: Any) -> Hashable:
    """A value that is equal to itself and can be a key: no lists, dicts or NaN."""
    if isinstance(value, Mapping):
        return tuple(sorted((str(key), plain(each)) for key, each in value.items()))
    if isinstance(value, list | tuple | set):
        return tuple(plain(each) for each in value)
    if isinstance(value, bytearray | memoryview):
        return bytes(value)
    if isinstance(value, float) and value != value:
        return "NaN"
    return value if isinstance(value, Hashable) else repr(value)


def moment(
    reference: Reference, certain: int | None, shown: CountedRows, after: int | None
) -> list[Violation]:
    """Judge what shows at a moment of the run, against epochs of the undisturbed one.

    ``certain`` is the last before the newest decided one, read before looking; ``after`` is the
    newest decided one, read after looking. None is an epoch that the undisturbed run does not have:
    then nothing must show, or all of the end may.
    """
    if not reference.watched:
        return []
    if not reference.grows:
        if certain is None or after is None:
            return []
        return _one_of_the_states(reference, certain, shown, after)
    certain = -1 if certain is None else certain
    after = reference.last if after is None else after
    found = []
    missing = reference.state(certain).rows - shown
    if missing:
        text = f"another epoch is decided after {certain}, and {_some(missing)} is missing"
        found.append(_violation(ViolationKind.LOST, reference, missing, text))
    if not reference.exactly:
        return found
    extra = shown - reference.state(after).rows
    too_many = extra - (reference.end.rows - reference.state(after).rows)
    strange = Counter({row: n for row, n in too_many.items() if row not in reference.end.rows})
    early = (extra - too_many) + strange
    twice = too_many - strange
    if twice:
        text = f"{_some(twice)} shows more often than in the undisturbed run"
        found.append(_violation(ViolationKind.DUPLICATED, reference, twice, text))
    if early:
        text = f"{_some(early)} shows, and epoch {after} is the newest that is decided"
        found.append(_violation(ViolationKind.ABORTED, reference, early, text))
    return found


def _one_of_the_states(
    reference: Reference, certain: int, shown: CountedRows, after: int
) -> list[Violation]:
    fitting = [
        epoch for epoch in range(-1, reference.last + 1) if reference.state(epoch).rows == shown
    ]
    # Above the range are only epochs without rows.
    low, high = min(certain, reference.last), max(after, -1)
    if any(low <= epoch <= high for epoch in fitting):
        return []
    if not fitting:
        text = f"it matches no epoch of the undisturbed run: {_difference(reference, after, shown)}"
        return [Violation(ViolationKind.WRONG, reference.sink, text, 1, after)]
    if min(fitting) > high:
        text = f"it shows epoch {min(fitting)}, and {after} is the newest that is decided"
        return [Violation(ViolationKind.ABORTED, reference.sink, text, 1, min(fitting))]
    text = f"it shows no more than epoch {max(fitting)}, and one after {certain} is decided"
    return [Violation(ViolationKind.LOST, reference.sink, text, 1, max(fitting) + 1)]


def end(reference: Reference, shown: SinkContents) -> list[Violation]:
    """Judge what shows when the whole range is processed."""
    wanted = reference.end
    missing, extra = wanted.rows - shown.rows, shown.rows - wanted.rows
    found = []
    if reference.grows:
        if missing:
            text = f"{_some(missing)} is missing"
            found.append(_violation(ViolationKind.LOST, reference, missing, text))
        strange = Counter({row: n for row, n in extra.items() if row not in wanted.rows})
        if strange and reference.exactly:
            text = f"{_some(strange)} is not in the undisturbed run"
            found.append(_violation(ViolationKind.WRONG, reference, strange, text))
        twice = extra - strange
        if twice and reference.exactly:
            text = f"{_some(twice)} shows more often than in the undisturbed run"
            found.append(_violation(ViolationKind.DUPLICATED, reference, twice, text))
    elif reference.exactly and (missing or extra):
        text = _difference(reference, reference.last, shown.rows)
        count = max(missing.total(), extra.total())
        found.append(Violation(ViolationKind.WRONG, reference.sink, text, count))
    return found + (_order(reference, shown) if not found and reference.exactly else [])


def _order(reference: Reference, shown: SinkContents) -> list[Violation]:
    wrong = [key for key, rows in reference.end.order.items() if shown.order.get(key) != rows]
    if not wrong:
        return []
    text = f"the rows of key {wrong[0]!r} are in another order than in the undisturbed run"
    return [Violation(ViolationKind.DISORDER, reference.sink, text, len(wrong))]


def torn(references: Sequence[Reference], shown: Mapping[str, SinkContents]) -> list[Violation]:
    """Epochs that one sink shows and another never will, when the whole range is processed."""
    growing = [each for each in references if each.grows]
    found = []
    for epoch in range(max((each.last for each in growing), default=-1) + 1):
        parts = {each.sink: each.state(epoch).rows - each.state(epoch - 1).rows for each in growing}
        whole = [sink for sink, rows in parts.items() if rows and not rows - shown[sink].rows]
        gone = [sink for sink, rows in parts.items() if rows and rows - shown[sink].rows]
        for sink in gone if whole else ():
            text = f"epoch {epoch} shows in {', '.join(whole)}, but not, or not completely, here"
            found.append(Violation(ViolationKind.TORN, sink, text, 0, epoch))
    return found


def differences(one: Reference, other: Reference) -> list[str]:
    """Where two undisturbed runs differ in the end."""
    extra, missing = other.end.rows - one.end.rows, one.end.rows - other.end.rows
    if not extra and not missing:
        return []
    return [f"{one.sink}: {_some(extra or missing)} shows in one of them only"]


def in_common(one: Reference, other: Reference) -> Reference:
    """The reference as far as two undisturbed runs agree.

    If their epochs have different boundaries, only the end is compared; if keys are in another
    order, order is not compared.
    """
    same_epochs = one.states.keys() == other.states.keys() and all(
        state.rows == other.states[epoch].rows for epoch, state in one.states.items()
    )
    agreed = {key: rows for key, rows in one.end.order.items() if other.end.order.get(key) == rows}
    states = {epoch: SinkContents(state.rows) for epoch, state in one.states.items()}
    if states:
        states[one.last] = SinkContents(one.end.rows, agreed)
    return replace(one, states=states, by_epoch=same_epochs)


def _violation(
    kind: ViolationKind, reference: Reference, rows: CountedRows, text: str
) -> Violation:
    return Violation(kind, reference.sink, text, rows.total(), reference.epoch_of(rows))


def _some(rows: CountedRows) -> str:
    """The first rows as text, and how many there are."""
    count = rows.total()
    example = repr(min(rows, key=repr))
    if len(example) > _EXAMPLE_CHARACTERS_MAX:
        example = example[:_EXAMPLE_CHARACTERS_MAX] + "…"
    return f"1 row, {example}," if count == 1 else f"{count:,} rows, {example} among them,"


def _difference(reference: Reference, epoch: int, shown: CountedRows) -> str:
    wanted = reference.state(epoch).rows
    missing, extra = wanted - shown, shown - wanted
    there = f"{_some(extra)} shows" if extra else "nothing is too much"
    return f"{there}; {_some(missing)} is missing" if missing else there


# The watermark with which an epoch ran, and the end of each of its sources, as Spark writes them.
EpochEnd = tuple[int | str, ...]


class RunProgress(NamedTuple):
    """How far a run is, in epochs of the undisturbed one; None if none ended there.

    All of ``certain`` shows, because another epoch was begun after it; nothing shows after
    ``decided``. ``alike`` says that its epochs so far had the boundaries of the undisturbed run.
    """

    certain: int | None
    decided: int | None
    alike: bool = True


def epochs_by_end(ends: Mapping[int, EpochEnd | None]) -> dict[EpochEnd, int]:
    """Return which epoch of the undisturbed run ended at each position, unless several did."""
    times = Counter(ends.values())
    return {end: epoch for epoch, end in ends.items() if end is not None and times[end] == 1}


def progress(
    undisturbed: Mapping[EpochEnd, int], end_of: Callable[[int], EpochEnd | None], decided: int
) -> RunProgress:
    """Return how far a run is that has decided this epoch; ``end_of`` returns where epochs end."""

    def same(epoch: int) -> int | None:
        if epoch < 0:
            return -1
        found = end_of(epoch)
        return None if found is None else undisturbed.get(found)

    certain, newest = same(decided - 1), same(decided)
    return RunProgress(certain, newest, alike=newest == max(decided, -1))
