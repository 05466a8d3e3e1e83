"""One commit: look at the ledger, write what is not there yet, and say what became of it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import chain
from typing import TYPE_CHECKING

from beadline.sink import (
    CommitBlocked,
    CommitFailed,
    EpochId,
    Outcome,
    OutcomeUnknown,
    PartsDamaged,
    StagedEpoch,
    holds,
    reach,
    way_out,
)
from beadline.sinks.redis import chunks, ledger
from beadline.sinks.redis.acknowledged import acknowledged, is_lost, loss
from beadline.sinks.redis.apply import Behind, Overtaken, RedisRowRejected, apply, mark
from beadline.sinks.redis.client import RedisClient
from beadline.sinks.redis.columns import Layout
from beadline.sinks.redis.ledger import BEGUN, ENDED, OPENED, Entry, Guard
from beadline.sinks.redis.script import RedisScript, ScriptRows, rows_of, script_for

if TYPE_CHECKING:
    import pyarrow as pa


@dataclass(frozen=True)
class Commit:
    """One decided epoch, and where it goes; ``folder`` is where acknowledged epochs are kept."""

    epoch: StagedEpoch
    layout: Layout
    folder: str
    where: str
    stop_on_loss: bool

    @property
    def _head(self) -> bytes:
        return ledger.head_key(self.layout.prefix, self.epoch.id.query.name)

    @property
    def _alone(self) -> EpochId:
        """The epoch without what must be there before it, which the scripts look at."""
        return replace(self.epoch.id, previous=-1)

    @property
    def _way_out(self) -> str:
        return way_out(self.epoch.sink, self.epoch.id.number)

    def run(self, client: RedisClient) -> Outcome:
        """Write what is not there; repeating it, late or at the same time, changes nothing."""
        # The setting may name another folder by now than the one that the parts are in.
        staged = (part.committable.file.rpartition("/")[0] for part in self.epoch.parts)
        # Read before the ledger: in between, another driver may advance both.
        newest = acknowledged({self.folder, *staged}, self.epoch.id.query, self.epoch.sink)
        held = self._look(client)
        if self._there(held):
            return Outcome.ALREADY_COMMITTED
        if self.stop_on_loss and is_lost(newest, held, held is None and self._opened(client)):
            raise self._lost(newest, held)
        try:
            self.epoch.check_parts()
        except PartsDamaged as damaged:
            return self._damaged(client, damaged)
        try:
            self._write(client, held)
        except Overtaken as stopped:
            # Another process commits the same epoch, and may have finished it.
            if not self._there(self._look(client)):
                raise self._stuck(stopped) from None
            return Outcome.ALREADY_COMMITTED
        except Behind as behind:
            # Restored, or a replica took over: noticed by the script itself, before it writes.
            # Not a TargetRestored: the way out is on_loss= here, not drop=.
            raise self._lost(self.epoch.id.previous, behind.entry) from None
        except RedisRowRejected as rejected:
            raise self._rejected(rejected) from None
        return Outcome.COMMITTED

    def _lost(self, newest: int | None, held: Entry | None) -> CommitBlocked:
        return CommitBlocked(
            f"{self.epoch}: {loss(self.where, newest, held)} The epoch is decided and its rows are "
            "kept; the next start commits them."
        )

    def _stuck(self, stopped: Overtaken) -> Exception:
        """Return why a commit could not continue although the head of the ledger allows it."""
        entry = stopped.entry
        if entry is None or not holds(entry.seen, self._alone, self.where):
            return OutcomeUnknown(f"{self.where}: another process commits the same epoch")
        return CommitFailed(
            f"{self.epoch}: {self.where} holds epoch {entry.epoch} in one slot, by another "
            "decision or a newer one, and not in the head of its ledger: a node has lost data, or "
            "a key of the ledger was deleted. Nothing more was written. Restore it, or start "
            f"over. {self._way_out}"
        )

    def _look(self, client: RedisClient) -> Entry | None:
        text = client.ask(lambda redis: redis.hget(self._head, self.epoch.sink))
        try:
            return Entry.parse(text)
        except ValueError as error:
            raise CommitFailed(
                f"{self.epoch}: {self.where}: {error}: {text!r}. The epoch is decided; correct "
                f"what is there, and the next start finishes it. {self._way_out}"
            ) from None

    def _there(self, held: Entry | None) -> bool:
        """Whether the whole epoch is there; raise if what is there is not ours."""
        if held is None or not holds(held.seen, self._alone, self.where):
            return False
        if held.complete or held.epoch > self.epoch.id.number:
            return True
        if held.nonce != self.epoch.id.nonce:
            raise CommitFailed(
                f"{self.epoch}: {self.where} holds {held.done} of {held.total} rows of this epoch "
                "by another decision, and which rows those are cannot be known. Nothing more was "
                "written. Compare the target with the source, and start over if necessary. "
                f"{self._way_out}"
            )
        return False

    def _opened(self, client: RedisClient) -> bool:
        mark = client.ask(lambda redis: redis.hget(self._head, self.epoch.sink + OPENED))
        return bool(mark == self.epoch.id.query.incarnation.encode())

    def _damaged(self, client: RedisClient, damaged: PartsDamaged) -> Outcome:
        """A part is gone: another process finished the epoch, or it is lost for good."""
        held = self._look(client)
        if self._there(held):
            return Outcome.ALREADY_COMMITTED
        if held is None or held.epoch < self.epoch.id.number or not held.done:
            raise damaged  # nothing of the epoch is there: all parts are lost, not some
        raise CommitFailed(
            f"{self.epoch}: {self.where} holds the epoch in part, and the rest cannot be written: "
            f"{damaged}. Put the file back, and the next start continues. {self._way_out}"
        )

    def _write(self, client: RedisClient, held: Entry | None) -> None:
        batches = self._batches()
        first = next(batches)
        script = script_for(self.layout, self.layout.fields(first[0].schema.names))
        rows = (rows_of(batch, self.layout, *place) for batch, *place in chain((first,), batches))
        if client.cluster:
            self._write_by_slot(client, script, rows)
            return
        done = held.done if held is not None and held.epoch == self.epoch.id.number else 0
        guard = self._guard(self.epoch.rows)
        for some in chunks.in_order(rows, self._head, done):
            reach("ledger.before")
            apply(client, script, guard, some)

    def _batches(self) -> Iterator[tuple[pa.RecordBatch, int, int]]:
        """Each with its part, and the number of its first row there.

        The order is the same in every process: the ledger counts in it.
        """
        for part in self.epoch.parts:
            first = 0
            for batch in self.epoch.read(part):
                yield batch, part.id.partition, first
                first += batch.num_rows

    def _write_by_slot(
        self, client: RedisClient, script: RedisScript, rows: Iterator[ScriptRows]
    ) -> None:
        """The head says that the epoch has begun before a slot is written, and when all are."""
        reach("ledger.before")
        mark(client, self._head, self._guard(ENDED), 0)
        # One slot need not have rows of every epoch; what the head says holds for all of them.
        guard = replace(self._guard(0), previous=-1)
        query = self.epoch.id.query.name
        for some in chunks.by_slot(rows, self.layout.prefix, query):
            reach("ledger.before")
            apply(client, script, guard, some)
        reach("ledger.before")
        mark(client, self._head, self._guard(ENDED), BEGUN)

    def _guard(self, total: int) -> Guard:
        epoch = self.epoch.id
        previous = epoch.previous if self.stop_on_loss else -1
        incarnation, nonce = epoch.query.incarnation, epoch.nonce
        return Guard(self.epoch.sink, incarnation, epoch.number, nonce, total, previous)

    def _rejected(self, rejected: RedisRowRejected) -> CommitFailed:
        (file,) = (
            part.committable.file
            for part in self.epoch.parts
            if part.id.partition == rejected.partition
        )
        return CommitFailed(
            f"{self.epoch}, part {rejected.partition}: {self.where} rejects {self.layout.command} "
            f"of row {rejected.row} (the first is 0) in {file}: {rejected.problem}. The epoch is "
            "decided; the rows before this one took effect, each once, and are counted. Repair or "
            f"delete the row's key; the next start continues with this row. {self._way_out}"
        )
