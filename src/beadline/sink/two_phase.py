"""``TwoPhaseCommitSink``: the interface that Flink users know, a thin layer on ``Sink``.

Flink's ``TwoPhaseCommitSinkFunction<IN, TXN, CONTEXT>`` keeps a transaction in one object whose
live half is ``transient``. Here the two halves have types of their own: ``W`` is the open
transaction, which never leaves the task, and ``C`` is the committable, which ``pre_commit`` returns
and the decision stores.

    Flink                           here                           called
    beginTransaction()              begin_transaction(part)        in the task, at the first row
    invoke(txn, value, context)     invoke(open, batch)            per Arrow batch, not per row
    preCommit(txn)                  pre_commit(open) → handle      in the task, after the last row
    commit(txn)                     commit_transaction(handle)     by recover_and_commit
    recoverAndCommit(txn)           recover_and_commit(handle)     by commit(epoch, parts)
    abort(txn)                      abort_transaction(handle)      by recover_and_abort
    recoverAndAbort(txn)            recover_and_abort(handle)      by abort(parts)
    close(), after a failure        abandon(open)                  in the task that failed
    pending transactions in state   in_doubt(query, name)          the outside system is asked
    ignoreFailuresAfterTransaction- does not exist: nothing decided is ever dropped
    Timeout()

``commit`` and ``abort`` are those of ``Sink``, for a whole epoch. Every commit goes through
``recover_and_commit``, because no process can tell whether another one has already committed: as in
Flink, committing again must be harmless, and here it may also come late, after newer transactions.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Generic, TypeVar

from beadline.ids import EpochId, PartId
from beadline.points import reach
from beadline.sink.interface import C, CommitResult, Outcome, Part, Prepared, Sink

if TYPE_CHECKING:
    import pyarrow as pa

W = TypeVar("W")


@dataclass(frozen=True)
class TwoPhaseCommitSink(Sink[C], Generic[C, W]):
    """A sink written as transactions, one per part.

    Besides the methods below, a subclass implements ``check``, ``default_name``, ``in_doubt`` and
    ``last_seen`` of ``Sink``. If making an epoch visible takes more than one operation per part,
    such as a ledger row, write a ``Sink`` instead: its ``commit`` receives the whole epoch.
    """

    @abstractmethod
    def begin_transaction(self, part: Part) -> W:
        """Open a transaction that ``in_doubt`` can find by ``part.id`` if this process dies."""

    @abstractmethod
    def invoke(self, transaction: W, rows: pa.RecordBatch) -> None:
        """Write rows into the open transaction; no reader may see them."""

    @abstractmethod
    def pre_commit(self, transaction: W) -> C:
        """Flush, close, fsync; return the record with which any process can finish it.

        The usual mistake is to return before the rows would survive a power cut.
        """

    @abstractmethod
    def commit_transaction(self, handle: C) -> Outcome | None:
        """Make it visible; ``None`` means committed. A second call must change nothing."""

    @abstractmethod
    def abort_transaction(self, handle: C) -> None:
        """Discard the transaction; no error if it is already gone."""

    def recover_and_commit(self, handle: C) -> Outcome | None:
        """Commit a transaction whose outcome is unknown; override it if that needs other code."""
        return self.commit_transaction(handle)

    def recover_and_abort(self, handle: C) -> None:
        """Abort a transaction that a dead process may have left half-open."""
        self.abort_transaction(handle)

    def abandon(self, transaction: W) -> None:
        """Close files and connections after the task failed. Outside leftovers are swept later."""

    def prepare(self, rows: Iterator[pa.RecordBatch], part: Part) -> C | None:
        """Begin, invoke for each batch, pre-commit; a part without rows opens no transaction."""
        filled = (batch for batch in rows if batch.num_rows)
        first = next(filled, None)
        if first is None:
            return None
        transaction = self.begin_transaction(part)
        try:
            self.invoke(transaction, first)
            for batch in filled:
                self.invoke(transaction, batch)
            reach("staging.written")
            return self.pre_commit(transaction)
        except Exception:
            self.abandon(transaction)
            raise

    def commit(self, epoch: EpochId, parts: Sequence[Prepared[C]]) -> CommitResult:
        """Commit every transaction of the epoch."""
        outcomes: dict[PartId, Outcome] = {}
        for part in parts:
            reach("commit.between")
            outcomes[part.id] = self.recover_and_commit(part.committable) or Outcome.COMMITTED
        reach("commit.after")
        return CommitResult(outcomes)

    def abort(self, parts: Sequence[Prepared[C]]) -> None:
        """Abort every transaction."""
        for part in parts:
            self.recover_and_abort(part.committable)
