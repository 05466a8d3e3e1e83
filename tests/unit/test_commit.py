"""Commit asks until every outcome is known: what is not mentioned, or unknown again, is not done.

The sinks here are slow to answer and honest: what they do not say they have not done either.
"""

from __future__ import annotations

import errno
import socket
import ssl
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import pytest

from beadline.errors import BadSink, CommitBlocked, CommitFailed, TargetRestored
from beadline.ids import EpochId, PartId, QueryId
from beadline.protocol.commit import commit_sink
from beadline.protocol.threads import InOrder, Threads
from beadline.shared import retry as retrying
from beadline.sink import BoundSink, CommitResult, Outcome, Part, Prepared
from tests.model.model import record_batch
from tests.model.server import PARTS, SCHEMA, ModelCommittable, ModelServer, ModelSink

QUERY = QueryId("orders", "0" * 32, "memory:/c")
EPOCH = EpochId(QUERY, 0, "nonce", 1)
Held = Prepared[ModelCommittable]
# Errors of a disk or a network that are the same whatever is written.
_OF_NO_ROW = (
    *("ENOSPC", "EDQUOT", "EROFS", "EIO", "ESTALE", "EMFILE", "ENFILE"),
    *("ENODEV", "ENOMEM", "ENOTCONN", "ENETDOWN", "ENETUNREACH", "EHOSTDOWN", "EHOSTUNREACH"),
)


@pytest.fixture(autouse=True)
def _no_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(retrying, "_PAUSES_S", (0.0,))


@dataclass(frozen=True)
class Slow(ModelSink):
    """Keeps the parts of every call; a subclass does some of it, and says so."""

    asked: list[list[PartId]] = field(default_factory=list, compare=False)

    def commit(self, epoch: EpochId, parts: Sequence[Held]) -> CommitResult:
        self.asked.append([part.id for part in parts])
        return CommitResult(self.answer(epoch, [part.id for part in parts], len(self.asked)))

    def answer(self, epoch: EpochId, ids: list[PartId], times: int) -> dict[PartId, Outcome]:
        raise NotImplementedError


class OneByOne(Slow):
    """Does the first part, and does not mention the others."""

    def answer(self, epoch: EpochId, ids: list[PartId], times: int) -> dict[PartId, Outcome]:
        return {ids[0]: self.commit_one(epoch, ids[0])}


class UnknownAgain(Slow):
    """Says twice that it does not know, and then does it."""

    def answer(self, epoch: EpochId, ids: list[PartId], times: int) -> dict[PartId, Outcome]:
        if times < 3:
            return dict.fromkeys(ids, Outcome.UNKNOWN)
        return {id_: self.commit_one(epoch, id_) for id_ in ids}


class FirstOneThenTheOthers(Slow):
    """Knows of the first part at once, of the others when it is asked again."""

    def answer(self, epoch: EpochId, ids: list[PartId], times: int) -> dict[PartId, Outcome]:
        if times > 1:
            return {id_: self.commit_one(epoch, id_) for id_ in ids}
        unknown = dict.fromkeys(ids[1:], Outcome.UNKNOWN)
        return {ids[0]: self.commit_one(epoch, ids[0]), **unknown}


def prepared(of: type[Slow], parts: int = 3) -> tuple[Slow, BoundSink, list[Held]]:
    sink = of(ModelServer("target"), PARTS)
    found: list[Held] = []
    for partition in range(parts):
        id_ = PartId(QUERY.name, QUERY.incarnation, "target", 1, 0, partition, 0)
        committable = sink.prepare(iter([record_batch((str(partition),))]), Part(id_))
        assert committable is not None
        found.append(Prepared(id_, 1, committable))
    return sink, BoundSink("target", sink, sink.check(SCHEMA, QUERY)), found


class Restored(Slow):
    """Lost what it had acknowledged; how much, a test says."""

    held: int | None = None

    def answer(self, epoch: EpochId, ids: list[PartId], times: int) -> dict[PartId, Outcome]:
        error = TargetRestored("restored from a backup")
        error.held = Restored.held
        raise error


@pytest.mark.parametrize("of", [OneByOne, UnknownAgain, FirstOneThenTheOthers])
def test_an_outcome_that_is_missing_is_asked_for_again(of: type[Slow]) -> None:
    sink, bound, parts = prepared(of)
    assert commit_sink(bound, EPOCH, parts, InOrder()) == []
    assert sorted(sink.server.rows()) == ["0", "1", "2"]
    assert not sink.server.prepared


def test_a_known_outcome_is_not_asked_for_again() -> None:
    sink, bound, parts = prepared(OneByOne)
    commit_sink(bound, EPOCH, parts, InOrder())
    ids = [part.id for part in parts]
    assert sink.asked == [ids, ids[1:], ids[2:]]


@pytest.mark.parametrize(("held", "advised"), [(-1, True), (3, True), (None, False)])
def test_rows_are_given_up_by_name_only_where_whole_epochs_are_missing(
    held: int | None, advised: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where only a part of this epoch is missing, the sink's own text has named the epoch."""
    monkeypatch.setattr(Restored, "held", held)
    _, bound, parts = prepared(Restored)
    with pytest.raises(TargetRestored, match="restored from a backup") as caught:
        commit_sink(bound, EPOCH, parts, InOrder())
    assert ('drop=["target"]' in str(caught.value)) == advised
    assert caught.value.held == held


@pytest.mark.parametrize("of", [OneByOne, UnknownAgain, FirstOneThenTheOthers])
@pytest.mark.parametrize("gone", [[0], [1], [0, 2]])
def test_lost_parts_are_returned_whichever_try_reported_them(
    of: type[Slow], gone: list[int]
) -> None:
    sink, bound, parts = prepared(of)
    lost = [parts[number] for number in gone]
    for part in lost:
        sink.server.expire(part.id)
    found = commit_sink(bound, EPOCH, parts, InOrder())
    assert sorted(part.id.partition for part in found) == gone
    assert len(sink.server.rows()) == 3 - len(gone)


class Stopping(InOrder):
    def stopping(self) -> bool:
        return True


def test_what_is_unknown_when_the_query_stops_is_an_error() -> None:
    """Never a return: Spark would write its commit log, and nobody would ask again."""
    sink, bound, parts = prepared(UnknownAgain)
    with pytest.raises(CommitFailed, match="still unknown") as said:
        commit_sink(bound, EPOCH, parts, Stopping())
    assert "drop=" not in str(said.value), "it may be there: the next start finds out"
    assert len(sink.server.prepared) == 3


class Raising(Slow):
    def answer(self, epoch: EpochId, ids: list[PartId], times: int) -> dict[PartId, Any]:
        raise OSError("no route to host")


def test_an_error_of_the_outside_system_is_no_outcome() -> None:
    sink, bound, parts = prepared(Raising)
    with pytest.raises(CommitFailed, match=r"epoch 0, sink 'target'.*no route to host"):
        commit_sink(bound, EPOCH, parts, InOrder())
    assert len(sink.server.prepared) == 3


@dataclass(frozen=True)
class RaisingOne(Slow):
    """Raises what it was given."""

    error: OSError = field(default_factory=OSError, compare=False)

    def answer(self, epoch: EpochId, ids: list[PartId], times: int) -> dict[PartId, Any]:
        raise self.error


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (PermissionError("not this user"), CommitBlocked),
        (ConnectionRefusedError("nobody there"), CommitBlocked),
        (TimeoutError("no answer"), CommitBlocked),
        (socket.gaierror(socket.EAI_AGAIN, "no such name"), CommitBlocked),
        (ssl.SSLCertVerificationError(1, "has expired"), CommitBlocked),
        *((OSError(getattr(errno, code), "it"), CommitBlocked) for code in _OF_NO_ROW),
        (FileNotFoundError(errno.ENOENT, "gone"), CommitFailed),
        (OSError(errno.ENAMETOOLONG, "a name of the epoch"), CommitFailed),
        (OSError("said without a code"), CommitFailed),
    ],
)
def test_what_says_nothing_about_the_rows_blocks_the_commit(
    error: OSError, kind: type[CommitFailed]
) -> None:
    """A full disk is cleared by a person; drop= must not give rows up for it."""
    sink, bound, parts = prepared(RaisingOne)
    bound = replace(bound, sink=replace(sink, error=error))  # type: ignore[call-arg]
    with pytest.raises(CommitFailed, match=r"epoch 0, sink 'target'") as raised:
        commit_sink(bound, EPOCH, parts, InOrder())
    assert type(raised.value) is kind
    ways_out = str(raised.value).count('drop=["target@0"]')
    assert ways_out == (kind is CommitFailed), "the sink may never take it"


def test_what_an_error_means_where_nothing_is_decided() -> None:
    """At-least-once; the ledgers of its sinks are written by the same calls."""
    _, bound, parts = prepared(Raising)
    with pytest.raises(CommitFailed, match="Some rows of epoch 0 may show already") as said:
        commit_sink(bound, replace(EPOCH, nonce=""), parts, InOrder())
    assert "decided" not in str(said.value)
    assert "drop=" not in str(said.value)


class Changed(Slow):
    def answer(self, epoch: EpochId, ids: list[PartId], times: int) -> dict[PartId, Any]:
        raise BadSink("the table has another column. Nothing was written.")


def test_the_error_of_a_start_check_is_worded_for_the_epoch() -> None:
    """The same check runs in a commit, where it is not true that nothing was written."""
    _, bound, parts = prepared(Changed)
    with pytest.raises(CommitFailed, match=r"another column\. The epoch is decided") as raised:
        commit_sink(bound, EPOCH, parts, InOrder())
    assert "Nothing was written" not in str(raised.value)
    assert str(raised.value).count('Or start once with drop=["target@0"]') == 1


def test_every_call_ends_before_the_first_error_is_raised() -> None:
    """A sink that is still committing must not meet the next start."""
    done = threading.Event()

    def fails() -> None:
        raise OSError("at once")

    def slow() -> None:
        time.sleep(0.2)
        done.set()

    threads = Threads()
    try:
        with pytest.raises(OSError, match="at once"):
            threads.run_all([fails, slow])
        assert done.is_set()
    finally:
        threads.close()
