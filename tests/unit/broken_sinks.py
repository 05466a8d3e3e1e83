"""Sinks that each break one rule, in the ways in which sinks are broken in earnest.

They are here, not in the test, because a process that commits for another imports them by name.
"""

from __future__ import annotations

import sqlite3
import time
import uuid
from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pyarrow as pa

from beadline.chaos.points import reach
from beadline.ids import EpochId, PartId, QueryId
from beadline.sink import Capabilities, CommitResult, Guarantee, Outcome, Part, Prepared, Seen
from beadline.sinks import MemorySink, SqliteSink, memory
from beadline.sinks._staging import StagedPart
from beadline.sinks.memory import MemoryPart

Staged = Prepared[StagedPart]
Held = Prepared[MemoryPart]


def folder_of(sink: SqliteSink) -> Path:
    return Path(sink._staging.folder.removeprefix("file:"))


def put(sink: MemorySink, parts: Sequence[Held]) -> None:
    table = memory._tables.setdefault(sink.name, memory._Table())
    for part in sorted(parts, key=lambda part: part.id.partition):
        table.rows.extend(memory._decode(part.committable))


def note(sink: MemorySink, epoch: EpochId, parts: Sequence[Held]) -> None:
    ledger = memory._tables.setdefault(sink.name, memory._Table()).ledger
    ledger[epoch.query.name, parts[0].id.sink] = Seen(
        epoch.query.incarnation, epoch.number, epoch.nonce
    )


class VisibleAtPrepare(SqliteSink):
    def prepare(self, rows: Iterator[pa.RecordBatch], part: Part) -> StagedPart | None:
        staged = super().prepare(rows, part)
        if staged is not None:
            query = QueryId(part.id.query, part.id.incarnation, "file:/checkpoint")
            self.commit(
                EpochId(query, part.id.epoch, "", 0), [Prepared(part.id, staged.rows, staged)]
            )
        return staged


class AckBeforeFlush(SqliteSink):
    """Rows wait in this process until the commit, which is faster as long as nobody dies."""

    waiting: dict[PartId, list[Any]] = {}  # noqa: RUF012

    def prepare(self, rows: Iterator[pa.RecordBatch], part: Part) -> StagedPart | None:
        self.waiting[part.id] = list(rows)
        file = f"{self._staging.folder}/{part.id}"
        return StagedPart(file, sum(batch.num_rows for batch in self.waiting[part.id]), 0, "")

    def commit(self, epoch: EpochId, parts: Sequence[Staged]) -> CommitResult:
        flushed = []
        for part in parts:
            staged = super().prepare(iter(self.waiting.pop(part.id, [])), Part(part.id))
            flushed += [replace(part, committable=staged)] if staged else []
        super().commit(epoch, flushed)
        return CommitResult.all(parts, Outcome.COMMITTED)


class SaysDoneDoesNothing(SqliteSink):
    def commit(self, epoch: EpochId, parts: Sequence[Staged]) -> CommitResult:
        self._staging.discard(parts)
        return CommitResult.all(parts, Outcome.COMMITTED)


class FirstPartOnly(SqliteSink):
    def commit(self, epoch: EpochId, parts: Sequence[Staged]) -> CommitResult:
        super().commit(epoch, parts[:1])
        self._staging.discard(parts)
        return CommitResult.all(parts, Outcome.COMMITTED)


class LosesARow(SqliteSink):
    """As a writer that leaves out empty lines does."""

    def prepare(self, rows: Iterator[pa.RecordBatch], part: Part) -> StagedPart | None:
        first, *others = rows
        return super().prepare(iter([first.slice(1), *others]), part)


class LooksAtTextTooLate(SqliteSink):
    def prepare(self, rows: Iterator[pa.RecordBatch], part: Part) -> StagedPart | None:
        return self._staging.write(rows, part)


class ForgetsAbort(SqliteSink):
    def abort(self, parts: Sequence[Staged]) -> None:
        pass


class AbortsEveryAttempt(SqliteSink):
    def abort(self, parts: Sequence[Staged]) -> None:
        places = {(part.id.epoch, part.id.partition) for part in parts}
        for path in folder_of(self).glob("*"):
            found = PartId.parse(path.name)
            if found and (found.epoch, found.partition) in places:
                path.unlink()


class FindsNothing(SqliteSink):
    def in_doubt(self, query: QueryId) -> Iterable[Staged]:
        return ()


class FindsStrangers(SqliteSink):
    def in_doubt(self, query: QueryId) -> Iterable[Staged]:
        for path in folder_of(self).glob("*"):
            found = PartId.parse(path.name)
            if found:
                yield Prepared(found, 0, StagedPart(f"file:{path}", 0, 0, ""))


class MissesHalfWritten(SqliteSink):
    def in_doubt(self, query: QueryId) -> Iterable[Staged]:
        return [part for part in super().in_doubt(query) if Path(self.name_of(part)).exists()]

    def name_of(self, part: Staged) -> str:
        return part.committable.file.removeprefix("file:")


class LeavesStray(SqliteSink):
    """Writes beside its part something that only a commit takes away."""

    def prepare(self, rows: Iterator[pa.RecordBatch], part: Part) -> StagedPart | None:
        with suppress(FileExistsError):
            staged = super().prepare(rows, part)
            (folder_of(self) / "index.tmp").touch()
            return staged
        (folder_of(self) / "index.tmp").touch()
        return None

    def commit(self, epoch: EpochId, parts: Sequence[Staged]) -> CommitResult:
        (folder_of(self) / "index.tmp").unlink(missing_ok=True)
        return super().commit(epoch, parts)


class SwallowsErrors(SqliteSink):
    def prepare(self, rows: Iterator[pa.RecordBatch], part: Part) -> StagedPart | None:
        def until_it_breaks() -> Iterator[pa.RecordBatch]:
            with suppress(Exception):
                yield from rows

        return super().prepare(until_it_breaks(), part)


class EmptyIsSomething(MemorySink):
    def prepare(self, rows: Iterator[pa.RecordBatch], part: Part) -> MemoryPart | None:
        return super().prepare(rows, part) or MemoryPart("")


class CheckLeavesSomething(SqliteSink):
    def check(self, schema: pa.Schema, query: QueryId) -> Capabilities:
        folder_of(self).mkdir(parents=True, exist_ok=True)
        (folder_of(self) / "probe").touch()
        return super().check(schema, query)


class RemembersNothing(MemorySink):
    def last_seen(self, query: QueryId) -> Seen | None:
        return None


class OneLedgerForAll(SqliteSink):
    def commit(self, epoch: EpochId, parts: Sequence[Staged]) -> CommitResult:
        with closing(sqlite3.connect(self.path)) as database, suppress(sqlite3.OperationalError):
            held = database.execute("SELECT max(epoch) FROM _beadline_ledger").fetchone()[0]
            if held is not None and held >= epoch.number:
                self._staging.discard(parts)
                return CommitResult.all(parts, Outcome.COMMITTED)
        return super().commit(epoch, parts)


class NullIsEmpty(MemorySink):
    def prepare(self, rows: Iterator[pa.RecordBatch], part: Part) -> MemoryPart | None:
        def filled(batch: pa.RecordBatch) -> pa.RecordBatch:
            texts = [column.type == pa.string() for column in batch.columns]
            columns = [
                column.fill_null("") if text else column
                for column, text in zip(batch.columns, texts, strict=True)
            ]
            return pa.RecordBatch.from_arrays(columns, schema=batch.schema)

        return super().prepare(map(filled, rows), part)


class NeverKeepsCount(MemorySink):
    def commit(self, epoch: EpochId, parts: Sequence[Held]) -> CommitResult:
        put(self, parts)
        return CommitResult.all(parts, Outcome.COMMITTED)


class AtLeastOnce(NeverKeepsCount):
    """Not broken: it says what it is."""

    def check(self, schema: pa.Schema, query: QueryId) -> Capabilities:
        return replace(super().check(schema, query), guarantee=Guarantee.AT_LEAST_ONCE)


class LateTakesEffect(MemorySink):
    """Asks whether the ledger *is* at this epoch, not whether it is past it."""

    def commit(self, epoch: EpochId, parts: Sequence[Held]) -> CommitResult:
        with memory._lock:
            seen = memory._tables.setdefault(self.name, memory._Table()).ledger.get(
                (epoch.query.name, parts[0].id.sink)
            )
            if seen is None or seen.epoch != epoch.number:
                put(self, parts)
                note(self, epoch, parts)
        return CommitResult.all(parts, Outcome.COMMITTED)


class TwoSteps(MemorySink):
    """Rows first, then the ledger: between them is room for a crash."""

    def commit(self, epoch: EpochId, parts: Sequence[Held]) -> CommitResult:
        seen = self.last_seen(epoch.query)
        if seen is None or seen.epoch < epoch.number:
            time.sleep(0.01)
            put(self, parts)
            reach("ledger.before")
            note(self, epoch, parts)
        return CommitResult.all(parts, Outcome.COMMITTED)


@dataclass(frozen=True)
class OnlyItself(MemorySink):
    """Carries something live, which is another thing wherever it arrives."""

    connection: object = field(default_factory=object)


@dataclass(frozen=True)
class ShowsSecret(MemorySink):
    password: str = "hunter2"

    def __repr__(self) -> str:
        return f"ShowsSecret({self.name}, {self.password})"


@dataclass(frozen=True)
class ListPart(MemoryPart):
    hosts: Any = None


class NotJson(MemorySink):
    """A committable that is a list before it is stored and a tuple after."""

    committable = ListPart

    def prepare(self, rows: Iterator[pa.RecordBatch], part: Part) -> MemoryPart | None:
        made = super().prepare(rows, part)
        return ListPart(made.arrow_base64, [uuid.uuid4().hex]) if made else None
