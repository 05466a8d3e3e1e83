"""Sinks that each break one rule, in the ways in which sinks are broken in earnest.

They are here, not in the test, because a process that commits for another imports them by name.
"""

from __future__ import annotations

import os
import sqlite3
import stat
import time
import uuid
from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any
from unittest import mock

import pyarrow as pa

from beadline.ids import EpochId, PartId, QueryId
from beadline.points import hooked, reach
from beadline.sink import (
    Capabilities,
    CommitBlocked,
    CommitResult,
    Guarantee,
    Outcome,
    Part,
    Prepared,
    Seen,
    StagedEpoch,
    StagedPart,
    check_previous,
)
from beadline.sinks import MemorySink, SqliteSink, memory
from beadline.sinks.memory import MemoryPart
from beadline.testing.suite.target import QUERY, SINK_NAME
from examples.two_phase_folder import FolderSink, FolderTransaction

Staged = Prepared[StagedPart]
Held = Prepared[MemoryPart]


def folder_of(sink: SqliteSink) -> Path:
    return Path(sink.staging_area.folder.removeprefix("file:"))


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
    """Rows wait in this process until the commit, which is faster as long as no process dies."""

    waiting: dict[PartId, list[Any]] = {}  # noqa: RUF012

    def prepare(self, rows: Iterator[pa.RecordBatch], part: Part) -> StagedPart | None:
        self.waiting[part.id] = list(rows)
        file = f"{self.staging_area.folder}/{part.id}"
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
        self.staging_area.discard(parts)
        return CommitResult.all(parts, Outcome.COMMITTED)


class FirstPartOnly(SqliteSink):
    def commit(self, epoch: EpochId, parts: Sequence[Staged]) -> CommitResult:
        super().commit(epoch, parts[:1])
        self.staging_area.discard(parts)
        return CommitResult.all(parts, Outcome.COMMITTED)


class LosesARow(SqliteSink):
    """As a writer that leaves out empty lines does."""

    def prepare(self, rows: Iterator[pa.RecordBatch], part: Part) -> StagedPart | None:
        first, *others = rows
        return super().prepare(iter([first.slice(1), *others]), part)


class LooksAtTextTooLate(SqliteSink):
    def prepare(self, rows: Iterator[pa.RecordBatch], part: Part) -> StagedPart | None:
        return self.staging_area.write(rows, part)


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
    def in_doubt(self, query: QueryId, name: str) -> Iterable[Staged]:
        return ()


class FindsStrangers(SqliteSink):
    def in_doubt(self, query: QueryId, name: str) -> Iterable[Staged]:
        for path in folder_of(self).glob("*"):
            found = PartId.parse(path.name)
            if found:
                yield Prepared(found, 0, StagedPart(f"file:{path}", 0, 0, ""))


class MissesHalfWritten(SqliteSink):
    def in_doubt(self, query: QueryId, name: str) -> Iterable[Staged]:
        return [part for part in super().in_doubt(query, name) if Path(self.name_of(part)).exists()]

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
    def last_seen(self, query: QueryId, name: str) -> Seen | None:
        return None


class OneLedgerForAll(SqliteSink):
    def commit(self, epoch: EpochId, parts: Sequence[Staged]) -> CommitResult:
        with closing(sqlite3.connect(self.path)) as database, suppress(sqlite3.OperationalError):
            held = database.execute("SELECT max(epoch) FROM _beadline_ledger").fetchone()[0]
            if held is not None and held >= epoch.number:
                self.staging_area.discard(parts)
                return CommitResult.all(parts, Outcome.COMMITTED)
        return super().commit(epoch, parts)


class OneRowPerTable(SqliteSink):
    """Its ledger has one row per query and table: a second sink finds its epoch there."""

    def write_epoch(self, epoch: StagedEpoch) -> Outcome:
        if Path(self.path).exists() and (seen := self.last_seen(QUERY, epoch.sink)) is not None:
            others = super().last_seen(QUERY, SINK_NAME)
            if epoch.is_committed(others or seen):
                return Outcome.ALREADY_COMMITTED
        return super().write_epoch(epoch)


class AnswersForTheQuery(SqliteSink):
    """Writes a row per sink, and says what the newest of them says."""

    def last_seen(self, query: QueryId, name: str) -> Seen | None:
        return super().last_seen(query, "nobody")


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
        found = super().check(schema, query)
        return replace(found, guarantee=Guarantee.AT_LEAST_ONCE, remembers=False)


class ShowsPartByPart(MemorySink):
    """Says that its epochs are atomic, and shows one part after the other."""

    def commit(self, epoch: EpochId, parts: Sequence[Held]) -> CommitResult:
        seen = self.last_seen(epoch.query, parts[0].id.sink)
        if seen is None or seen.epoch < epoch.number:
            for part in parts:
                put(self, [part])
                reach("ledger.before")
            note(self, epoch, parts)
        return CommitResult.all(parts, Outcome.COMMITTED)


class ForgetsSharedDisk(SqliteSink):
    def check(self, schema: pa.Schema, query: QueryId) -> Capabilities:
        return replace(super().check(schema, query), shared_disk=False)


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
        seen = self.last_seen(epoch.query, SINK_NAME)
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


class MissingIsEmpty(SqliteSink):
    """Takes a staged file that is gone for one without rows."""

    def commit(self, epoch: EpochId, parts: Sequence[Staged]) -> CommitResult:
        there = [p for p in parts if Path(p.committable.file.removeprefix("file:")).exists()]
        super().commit(epoch, there)
        return CommitResult.all(parts, Outcome.COMMITTED)


class ThrowsTheRestAway(SqliteSink):
    """One part is lost, and with it what could have been finished once it is brought back."""

    def commit(self, epoch: EpochId, parts: Sequence[Staged]) -> CommitResult:
        result = super().commit(epoch, parts)
        self.staging_area.discard(parts)
        return result


class NoAnswerIsLost(SqliteSink):
    """Takes an error for a proof."""

    def commit(self, epoch: EpochId, parts: Sequence[Staged]) -> CommitResult:
        try:
            return super().commit(epoch, parts)
        except CommitBlocked as error:
            lost = CommitResult.all(parts, Outcome.LOST).outcomes
            return CommitResult(lost, str(error))


class NoAnswerIsDone(SqliteSink):
    def commit(self, epoch: EpochId, parts: Sequence[Staged]) -> CommitResult:
        with suppress(CommitBlocked):
            return super().commit(epoch, parts)
        return CommitResult.all(parts, Outcome.COMMITTED)


class Unsynced(SqliteSink):
    """Writes the part by itself, and leaves it to the cache of the operating system."""

    def prepare(self, rows: Iterator[pa.RecordBatch], part: Part) -> StagedPart | None:
        with mock.patch("os.fsync"):
            return super().prepare(rows, part)


class UnsyncedContent(SqliteSink):
    """The folder is synced, the file is not: after a power cut it is there, and empty."""

    def prepare(self, rows: Iterator[pa.RecordBatch], part: Part) -> StagedPart | None:
        sync = os.fsync

        def folders_only(descriptor: int) -> None:
            if stat.S_ISDIR(os.fstat(descriptor).st_mode):
                sync(descriptor)

        with mock.patch("os.fsync", folders_only):
            return super().prepare(rows, part)


class UnsyncedName(SqliteSink):
    """The file is synced, the folder before its last name is given."""

    def prepare(self, rows: Iterator[pa.RecordBatch], part: Part) -> StagedPart | None:
        staged = super().prepare(rows, part)
        if staged is None:
            return None
        file = Path(staged.file.removeprefix("file:"))
        os.rename(file, file.with_name("other"))
        os.rename(file.with_name("other"), file.with_name(f"{file.name}.tmp-00000000"))
        return replace(staged, file=f"{staged.file}.tmp-00000000")


class UnsyncedCommit(FolderSink):
    """Prepared durably; shown in a way that a power cut takes back."""

    def commit_transaction(self, handle: FolderTransaction) -> Outcome | None:
        with mock.patch("os.fsync"):
            return super().commit_transaction(handle)


class WithoutPoints(SqliteSink):
    """Places no crash point: whatever is between its acts, nobody ever dies there."""

    def prepare(self, rows: Iterator[pa.RecordBatch], part: Part) -> StagedPart | None:
        with hooked(lambda name: None):
            return super().prepare(rows, part)

    def commit(self, epoch: EpochId, parts: Sequence[Staged]) -> CommitResult:
        with hooked(lambda name: None):
            return super().commit(epoch, parts)


class FindsItsOwnName(SqliteSink):
    """Takes the name that it is told for the only one whose parts may be there."""

    def in_doubt(self, query: QueryId, name: str) -> Iterable[Staged]:
        return [part for part in super().in_doubt(query, name) if part.id.sink == name]


class AbortsEveryName(SqliteSink):
    """Aborts by place, whichever sink's part it is."""

    def abort(self, parts: Sequence[Staged]) -> None:
        numbers = {(p.id.generation, p.id.epoch, p.id.partition, p.id.attempt) for p in parts}
        for part in list(self.in_doubt(QUERY, SINK_NAME)):
            id_ = part.id
            if (id_.generation, id_.epoch, id_.partition, id_.attempt) in numbers:
                self.staging_area.discard([part])


class TakesAnything(MemorySink):
    """Finds out at commit what it cannot write."""

    def commit(self, epoch: EpochId, parts: Sequence[Held]) -> CommitResult:
        for row in (row for part in parts for row in memory._decode(part.committable)):
            if row["word"] is None or not row["word"].isprintable():
                raise ValueError("a character that cannot be written")
        return super().commit(epoch, parts)


class DropsWhatItCannotWrite(MemorySink):
    def commit(self, epoch: EpochId, parts: Sequence[Held]) -> CommitResult:
        result = super().commit(epoch, parts)
        table = memory._tables[self.name]
        table.rows[:] = [row for row in table.rows if row["word"] is not None]
        return result


class IgnoresPrevious(SqliteSink):
    def commit(self, epoch: EpochId, parts: Sequence[Staged]) -> CommitResult:
        return super().commit(replace(epoch, previous=-1), parts)


class ForgetsRemembers(SqliteSink):
    """Refuses to continue behind a gap, and does not say that it knows of gaps."""

    def check(self, schema: pa.Schema, query: QueryId) -> Capabilities:
        return replace(super().check(schema, query), remembers=False)


class CastsSilently(SqliteSink):
    """Looks at the table's columns when it starts, and never again."""

    def _check_types(self, database: sqlite3.Connection, schema: pa.Schema) -> None:
        pass


class LooksTooLate(SqliteSink):
    """Notices that the target was restored when the rows are written."""

    def commit(self, epoch: EpochId, parts: Sequence[Staged]) -> CommitResult:
        seen = self.last_seen(epoch.query, SINK_NAME)
        result = super().commit(replace(epoch, previous=-1), parts)
        if seen is None or seen.epoch < epoch.number:
            check_previous(epoch, seen.epoch if seen else None)
        return result
