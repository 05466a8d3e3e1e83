"""History: what a checkpoint says about its query's past. It is read and never written.

Three things are combined: the decisions that the log retains, the claims between them, and Spark's
own ``offsets/`` and ``commits/``. An epoch is

    committed   a newer decision follows it, or Spark's commit log holds it
    decided     certain, but not known to show in every sink: a driver is still working
                on it, or the next start finishes it
    in doubt    planned by Spark and not decided: what is prepared of it is aborted by the next
                start, and the epoch is redelivered

It is read from outside, possibly while a driver writes: what retention frees in between is left
out.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Literal

from beadline.decisions import Claim, Decision, DecisionLog, FileStore
from beadline.decisions.record import decode
from beadline.decisions.store import LOG_FOLDER
from beadline.errors import BadSetting, BeadlineError, CheckpointProblem, UsageError
from beadline.files import FileSystem, join, open_files, qualify

EpochState = Literal["in doubt", "decided", "committed"]


@dataclass(frozen=True)
class PastEpoch:
    """One epoch; without its decision if that was freed, or never made."""

    number: int
    state: EpochState
    slot: int | None = None
    decision: Decision | None = None
    finished_at_ms: int | None = None

    @property
    def prepare_ms(self) -> int | None:
        """How long preparing took."""
        found = self.decision
        return None if found is None else found.prepared_at_ms - found.started_at_ms

    @property
    def commit_ms(self) -> int | None:
        """How long it took from the last ack until every sink showed the epoch."""
        if self.decision is None or self.finished_at_ms is None:
            return None
        return self.finished_at_ms - self.decision.prepared_at_ms


@dataclass(frozen=True)
class History:
    """One query's past: its starts, oldest first, and its epochs, oldest first."""

    checkpoint: str
    claims: tuple[tuple[int, Claim], ...]
    newest: Claim
    epochs: tuple[PastEpoch, ...]

    def epoch(self, number: int) -> PastEpoch:
        """Return one epoch, or raise with the epochs that there are."""
        for epoch in self.epochs:
            if epoch.number == number:
                return epoch
        there = [epoch.number for epoch in self.epochs]
        span = f"{there[0]} to {there[-1]}" if there else "none"
        raise UsageError(
            f"checkpoint {self.checkpoint} has no record of epoch {number}; it has {span}. Older "
            "ones are freed as new ones are decided (start(..., keep=) says how many stay)."
        )


def read_history(checkpoint: str) -> History:
    """Read the history of a checkpoint, on a local disk or on any Hadoop file system."""
    uri = qualify(checkpoint)
    with _named(uri):
        files = open_files(uri, patient=False)  # a person is waiting
        _check_there(uri, files)
        store = FileStore(files, join(uri, LOG_FOLDER))
        try:
            return _read(uri, files, store)
        finally:
            store.close()


def _read(uri: str, files: FileSystem, store: FileStore) -> History:
    log = DecisionLog(store)
    state = log.open()
    if state.claim is None:
        raise UsageError(f"checkpoint {uri} has an empty decision log: no query has started on it.")
    # Spark's logs are read last: they can only have advanced, and so can only confirm.
    decisions = list(log.history())
    claims = tuple(_claims(store))
    planned = _numbers(files, join(uri, "offsets"))
    committed = _numbers(files, join(uri, "commits"))
    return History(uri, claims, state.claim, tuple(_epochs(decisions, planned, committed)))


def _epochs(
    decisions: list[tuple[int, Decision]], planned: set[int], committed: set[int]
) -> Iterator[PastEpoch]:
    """Yield every epoch that anything is known about; ``decisions`` come newest first."""
    newest: dict[int, tuple[int, Decision]] = {}
    finished: dict[int, int] = {}
    for slot, decision in decisions:
        newest.setdefault(decision.epoch, (slot, decision))  # a replay decides an epoch again
        if decision.finished_at_ms is not None:
            finished.setdefault(decision.epoch - 1, decision.finished_at_ms)
    last = max([*newest, *committed], default=-1)
    open_ = {number for number in planned if number > last}
    for number in sorted({*newest, *committed, *open_}):
        slot_, found = newest.get(number, (None, None))
        done = number in committed or number < max(newest, default=-1)
        state: EpochState = "committed" if done else "decided" if found else "in doubt"
        yield PastEpoch(number, state, slot_, found, finished.get(number))


def _claims(store: FileStore) -> Iterator[tuple[int, Claim]]:
    for slot in store.slots():
        data = store.read(slot)
        record = None if data is None else decode(data, store.path(slot), slot)
        if isinstance(record, Claim):
            yield slot, record


def _numbers(files: FileSystem, folder: str) -> set[int]:
    return {int(name) for name in files.names(folder) if name.isdigit()}


def _check_there(uri: str, files: FileSystem) -> None:
    if not files.exists(uri):
        raise UsageError(f"there is no checkpoint {uri}. Check its path and its scheme.")
    if not files.exists(join(uri, LOG_FOLDER)):
        spark = files.exists(join(uri, "offsets"))
        what = "is a checkpoint of Spark's that" if spark else "is there, but"
        raise UsageError(f"{uri} {what} has no decision log: no Beadline query has run on it.")


@contextmanager
def _named(uri: str) -> Iterator[None]:
    """Say which checkpoint could not be read, and why, without a Java stack."""
    try:
        yield
    except BadSetting as error:  # Spark has no classes for its file system
        raise CheckpointProblem(f"checkpoint {error}") from error
    except BeadlineError:
        raise
    except Exception as error:
        lines = [line.strip() for line in str(error).splitlines() if line.strip()]
        java = next((line[2:] for line in lines if line.startswith(": ")), None)
        why = java or f"{type(error).__name__}: {lines[0] if lines else ''}"
        raise CheckpointProblem(
            f"checkpoint {uri} cannot be read: {why}. Nothing was changed."
        ) from error
