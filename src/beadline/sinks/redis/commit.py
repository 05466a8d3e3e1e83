"""One commit: look at the ledger, write what is not there yet, and say what became of it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from typing import TYPE_CHECKING

from beadline.errors import CommitFailed
from beadline.ids import EpochId
from beadline.points import reach
from beadline.sink import CommitResult, Outcome, PartsDamaged, Prepared, StagedPart, Staging, holds
from beadline.sinks.redis import chunks, ledger, notes
from beadline.sinks.redis.apply import Behind, Overtaken, RowRefused, apply, mark
from beadline.sinks.redis.client import Client, NotNow
from beadline.sinks.redis.columns import Layout
from beadline.sinks.redis.ledger import BEGUN, ENDED, OPENED, Entry, Guard
from beadline.sinks.redis.loss import loss, lost
from beadline.sinks.redis.rows import Rows, rows_of
from beadline.sinks.redis.script import Script, script_for
from beadline.sinks.redis.settings import changed

if TYPE_CHECKING:
    import pyarrow as pa

Parts = Sequence[Prepared[StagedPart]]


@dataclass(frozen=True)
class Commit:
    """The parts of one decided epoch, and where they go."""

    epoch: EpochId
    parts: Parts
    layout: Layout
    staging: Staging
    where: str
    stop_on_loss: bool

    @property
    def _sink(self) -> str:
        return self.parts[0].id.sink

    @property
    def folders(self) -> frozenset[str]:
        """Where the parts are; the setting may name another folder by now."""
        parts = (part.committable.file.rpartition("/")[0] for part in self.parts)
        return frozenset((self.staging.folder, *parts))

    @property
    def _head(self) -> bytes:
        return ledger.head_key(self.layout.prefix, self.epoch.query.name)

    @property
    def _alone(self) -> EpochId:
        """The epoch without what must be there before it, which the scripts look at."""
        return replace(self.epoch, previous=-1)

    @property
    def _what(self) -> str:
        return f"query {self.epoch.query.name!r}, epoch {self.epoch.number}"

    def run(self, client: Client) -> CommitResult:
        """Write what is not there; repeating it, late or at the same time, changes nothing."""
        # The note before the ledger: between the two looks another driver may move both on.
        newest = notes.noted(self.folders, self.epoch.query, self._sink)
        held = self._look(client)
        if self._there(held):
            return self._answer(Outcome.ALREADY_COMMITTED)
        if self.stop_on_loss and lost(newest, held, held is None and self._opened(client)):
            raise CommitFailed(f"{self._what}: {loss(self.where, newest, held)}")
        try:
            damage = self.staging.damage(self.parts)
            if damage:
                return self._damaged(client, "; ".join(damage.values()))
            self._write(client, held)
        except (Overtaken, PartsDamaged) as stopped:
            # Somebody else commits the same epoch, and may have finished it and cleared away.
            if not self._there(self._look(client)):
                raise self._stuck(stopped) from None
            return self._answer(Outcome.ALREADY_COMMITTED)
        except Behind as behind:
            # Restored, or a replica took over: noticed by the script itself, before it writes.
            # Not a TargetRestored: what gives the rows up here is on_loss=, not drop=.
            text = loss(self.where, self.epoch.previous, behind.entry)
            raise CommitFailed(f"{self._what}: {text}") from None
        except RowRefused as refused:
            raise self._refused(refused) from None
        reach("ledger.after")
        return self._answer(Outcome.COMMITTED)

    def _stuck(self, stopped: Overtaken | PartsDamaged) -> Exception:
        """Return why a commit could not go on, although the head of the ledger lets it."""
        entry = stopped.entry if isinstance(stopped, Overtaken) else None
        if entry is None or not holds(entry.seen, self._alone, self.where):
            return NotNow("another process commits the same epoch")
        return CommitFailed(
            f"{self._what}: {self.where} holds epoch {entry.epoch} in one slot, by another "
            "decision or a newer one, and not in the head of its ledger: a node has lost data, or "
            "somebody deleted a key of the ledger. Nothing more was written. Restore it, or start "
            "over."
        )

    def _answer(self, outcome: Outcome) -> CommitResult:
        return CommitResult.all(self.parts, outcome)

    def _look(self, client: Client) -> Entry | None:
        text = client.ask(lambda redis: redis.hget(self._head, self._sink))
        try:
            return Entry.parse(text)
        except ValueError as error:
            raise CommitFailed(f"{self._what}: {self.where}: {error}: {text!r}.") from None

    def _there(self, held: Entry | None) -> bool:
        """Whether the whole epoch is there; raise if what is there is not ours."""
        if held is None or not holds(held.seen, self._alone, self.where):
            return False
        if held.complete or held.epoch > self.epoch.number:
            return True
        if held.nonce != self.epoch.nonce:
            raise CommitFailed(
                f"{self._what}: {self.where} holds {held.done} of {held.total} rows of this epoch "
                "by another decision, and which rows those are cannot be known. Nothing more was "
                "written. Compare the target with the source, and start over if need be."
            )
        return False

    def _opened(self, client: Client) -> bool:
        mark = client.ask(lambda redis: redis.hget(self._head, self._sink + OPENED))
        return bool(mark == self.epoch.query.incarnation.encode())

    def _damaged(self, client: Client, what: str) -> CommitResult:
        """A part is gone: by somebody who finished the epoch, or for good."""
        held = self._look(client)
        if self._there(held):
            return self._answer(Outcome.ALREADY_COMMITTED)
        if held is None or held.epoch < self.epoch.number or not held.done:
            # Nothing of the epoch is there: all parts are lost, not some.
            return CommitResult(self._answer(Outcome.LOST).outcomes, what)
        raise CommitFailed(
            f"{self._what}: {self.where} holds the epoch in part, and the rest cannot be written: "
            f"{what}. Put the file back and start again; if it is gone for good, start over."
        )

    def _write(self, client: Client, held: Entry | None) -> None:
        batches = self._batches()
        first = next(batches)
        self._check_settings(first[0].schema)
        script = script_for(self.layout, self.layout.fields(first[0].schema.names))
        rows = (rows_of(batch, self.layout, number) for batch, number in chain((first,), batches))
        if client.cluster:
            self._write_by_slot(client, script, rows)
            return
        done = held.done if held is not None and held.epoch == self.epoch.number else 0
        guard = self._guard(sum(part.committable.rows for part in self.parts))
        for some in chunks.in_order(rows, self._head, done):
            reach("ledger.before")
            apply(client, script, guard, some)

    def _check_settings(self, schema: pa.Schema) -> None:
        differences = changed(schema, self.layout)
        if differences:
            raise CommitFailed(
                f"{self._what}: {self.where}: the epoch was decided under other settings, by which "
                f"its rows are other commands: {differences}. Nothing more was written. Start once "
                "with the settings of before; that finishes the epoch."
            )

    def _write_by_slot(self, client: Client, script: Script, rows: Iterator[Rows]) -> None:
        """The head says that the epoch has begun before a slot is written, and when all are."""
        reach("ledger.before")
        mark(client, self._head, self._guard(ENDED), 0)
        # One slot need not have rows of every epoch; what the head says holds for all of them.
        guard = replace(self._guard(0), previous=-1)
        query = self.epoch.query.name
        for some in chunks.by_slot(rows, self.layout.prefix, query):
            reach("ledger.before")
            apply(client, script, guard, some)
        reach("ledger.before")
        mark(client, self._head, self._guard(ENDED), BEGUN)

    def _guard(self, total: int) -> Guard:
        query, previous = self.epoch.query, self.epoch.previous if self.stop_on_loss else -1
        nonce = self.epoch.nonce
        return Guard(self._sink, query.incarnation, self.epoch.number, nonce, total, previous)

    def _batches(self) -> Iterator[tuple[pa.RecordBatch, int]]:
        """The order is the same whoever commits: the ledger counts in it."""
        for part in sorted(self.parts, key=lambda part: part.id.partition):
            for batch in self.staging.read(part.committable):
                yield batch, part.id.partition

    def _refused(self, refused: RowRefused) -> CommitFailed:
        return CommitFailed(
            f"{self._what}, part {refused.partition}: {self.where} refuses "
            f"{self.layout.command} on key {refused.key.decode(errors='replace')!r}: "
            f"{refused.problem}. The epoch is decided; the rows before this one took effect, each "
            "once, and are counted. Repair or delete the key; the next start goes on with this row."
        )
