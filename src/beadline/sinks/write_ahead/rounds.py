"""A round: one batch of each of some parts is handed over, and the answers are read."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass

from beadline.errors import CommitFailed
from beadline.sinks.write_ahead.receiver import (
    UNSURE,
    AlreadyTaken,
    Delivery,
    Receiver,
    Refused,
    TryAgain,
)


@dataclass
class Wait:
    """Until when the receiver asked to be left alone, by this process's clock, and what it said.

    It belongs to the sink, not to a call of ``commit``: the next one comes at once.
    """

    until_s: float = 0.0
    said: str = ""


@dataclass(frozen=True)
class Ways:
    """How the sink was told to deliver; ``where`` names the receiver for people."""

    receiver: Receiver
    where: str
    batch_rows: int
    parallel: int
    honours_ids: bool
    timeout_s: float
    wait: Wait


@dataclass(frozen=True)
class Answer:
    """What became of one batch: taken if nothing was raised."""

    batch: Delivery
    raised: Exception | None

    @property
    def taken(self) -> bool:
        """Whether the receiver has the rows."""
        return self.raised is None

    @property
    def unsure(self) -> bool:
        """Whether nobody knows."""
        return isinstance(self.raised, (TryAgain, *UNSURE))


class Rounds:
    """The receiver, opened when it is needed, and closed after whatever went wrong."""

    def __init__(self, ways: Ways) -> None:
        self.ways = ways
        self._opened = False

    def deliver(self, batches: Sequence[Delivery]) -> list[Answer]:
        """Hand over every batch; all have ended, well or badly, when this returns."""
        try:
            if not self._opened:
                self.ways.receiver.open()
                self._opened = True
        except Exception as error:  # noqa: BLE001 (a user's code may raise anything)
            return [Answer(batch, error) for batch in batches]
        if len(batches) == 1:
            answers = [self._deliver(batches[0])]
        else:
            with ThreadPoolExecutor(len(batches)) as pool:
                answers = list(pool.map(self._deliver, batches))
        if any(answer.unsure for answer in answers):
            self.close()
        return answers

    def _deliver(self, batch: Delivery) -> Answer:
        try:
            said: object = self.ways.receiver.deliver(batch)
            if said is not None:  # a response that nobody looked at, or False
                raise TypeError(
                    f"deliver returned {type(said).__name__}, and Beadline cannot know what that "
                    "says: return nothing if the rows were taken, and raise if not"
                )
        except AlreadyTaken as known:
            return Answer(batch, None if self.ways.honours_ids else known)
        except Exception as error:  # noqa: BLE001 (a user's code may raise anything)
            return Answer(batch, error)
        return Answer(batch, None)

    def close(self) -> None:
        """Close the receiver, if it is open."""
        if self._opened:
            self._opened = False
            with suppress(Exception):  # what was taken is taken, whatever its goodbye says
                self.ways.receiver.close()


def try_again(answers: Sequence[Answer]) -> TryAgain | None:
    """Return why a batch must be tried again, if one must: the one that asks to wait longest."""
    found = [
        raised if isinstance(raised, TryAgain) else TryAgain(_said(raised))
        for raised in (answer.raised for answer in answers if answer.unsure)
        if raised is not None
    ]
    return max(found, key=lambda again: again.after_s, default=None)


def refusal(answers: Sequence[Answer], where: str) -> CommitFailed | None:
    """Return the error for the first batch that was refused, if one was."""
    for answer in answers:
        if answer.raised is not None and not answer.unsure:
            return _refusal(answer.batch, answer.raised, where)
    return None


def _refusal(batch: Delivery, raised: Exception, where: str) -> CommitFailed:
    hint = ""
    if isinstance(raised, AlreadyTaken):
        hint = " If it drops repeats by their ids, say so with honours_ids=True."
    error = CommitFailed(
        f"query {batch.query!r}, sink {batch.sink!r}, {batch.where}: {where} does not take them: "
        f"{_said(raised)}.{hint} The epoch is decided: what comes before these rows is delivered, "
        "and nothing is lost. Make the receiver take them and start again, which goes on with this "
        "batch; or take the sink out and start once with "
        f'drop=["{batch.sink}"], which gives up the rest of its rows of this epoch. Rows that a '
        "receiver can never take are best refused by accepts=, before an epoch is decided."
    )
    if not isinstance(raised, AlreadyTaken | Refused):
        error.__cause__ = raised  # the user's own error, with the line that raised it
    return error


def _said(error: Exception) -> str:
    """What an error says, without a full stop at its end."""
    text = str(error).strip().rstrip(".")
    if isinstance(error, TryAgain | AlreadyTaken | Refused) and text:
        return text
    return f"{type(error).__name__}: {text}" if text else type(error).__name__
