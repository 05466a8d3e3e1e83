"""Sinks that each break one rule, in a way that only a fault brings to light.

They bring ``scratch`` and ``shown``, as a sink of a user's own does for ``beadline verify``.
"""

from __future__ import annotations

import shutil
import sqlite3
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa

from beadline.files.local import local_path
from beadline.ids import EpochId, QueryId
from beadline.sink import Capabilities, CommitResult, Outcome, Part, Prepared, StagedPart
from beadline.sinks import SqliteSink

Staged = Prepared[StagedPart]
FLUSHED_WITHIN_S = 5.0


class OwnSink(SqliteSink):
    """Not broken: a sink that its author can verify."""

    grows = True
    atomic = True

    def scratch(self, tag: str) -> OwnSink:
        """The same in a file of its own."""
        return replace(self, path=Path(self.path).with_name(f"{tag}.db"))

    def shown(self) -> list[tuple[Any, ...]]:
        """What a reader of the file sees."""
        with closing(sqlite3.connect(self.path, timeout=10)) as database:
            known = "SELECT 1 FROM sqlite_master WHERE name = ?"
            if database.execute(known, (self.table,)).fetchone() is None:
                return []
            return database.execute(f"SELECT * FROM {self.table}").fetchall()

    def remove_scratch(self) -> None:
        """Take the file away, and what lies beside it."""
        path = Path(self.path)
        path.unlink(missing_ok=True)
        for folder in (path.with_name(f".{path.name}.beadline"), self.archive):
            shutil.rmtree(folder, ignore_errors=True)

    @property
    def archive(self) -> Path:
        """Where those keep a copy of a part who commit more often than they should."""
        return Path(self.path).with_suffix(".archive")

    def archived(self, parts: Sequence[Staged]) -> list[Staged]:
        """The parts as copies, which outlive what is staged; nothing is staged any more."""
        self.archive.mkdir(exist_ok=True)
        copies = []
        for part in parts:
            staged = Path(local_path(part.committable.file))
            copy = self.archive / staged.name
            if staged.exists():
                shutil.copyfile(staged, copy)
            copies.append(replace(part, committable=replace(part.committable, file=f"file:{copy}")))
        self.staging_area.discard(parts)
        return copies

    def write(self, parts: Sequence[Staged]) -> None:
        """Write rows, whatever the ledger says."""
        with closing(self._connect()) as database:
            database.execute("BEGIN IMMEDIATE")
            for part in parts:
                self._insert(database, self.staging_area.read(part.committable))
            database.execute("COMMIT")


class WithoutLedger(OwnSink):
    """Those that write no ledger do not claim to remember: a start would refuse them."""

    def check(self, schema: pa.Schema, query: QueryId) -> Capabilities:
        return replace(super().check(schema, query), remembers=False)


class CommitsBeforeDecision(WithoutLedger):
    """Shows a part as soon as it is prepared, which is quicker."""

    atomic = False

    def prepare(self, rows: Iterator[pa.RecordBatch], part: Part) -> StagedPart | None:
        staged = super().prepare(rows, part)
        if staged is not None:
            self.write([Prepared(part.id, staged.rows, staged)])
        return staged

    def commit(self, epoch: EpochId, parts: Sequence[Staged]) -> CommitResult:
        self.staging_area.discard(parts)
        return CommitResult.all(parts, Outcome.COMMITTED)


class RepeatsCommit(WithoutLedger):
    """Trusts that a commit comes once."""

    def commit(self, epoch: EpochId, parts: Sequence[Staged]) -> CommitResult:
        self.write(self.archived(parts))
        return CommitResult.all(parts, Outcome.COMMITTED)


class ForgetsAbort(OwnSink):
    """Has nothing against leftovers."""

    def abort(self, parts: Sequence[Staged]) -> None:
        pass


class AcksBeforeFlush(OwnSink):
    """Says that a part is durable while its rows are in memory; they are flushed at commit."""

    def prepare(self, rows: Iterator[pa.RecordBatch], part: Part) -> StagedPart | None:
        staged = super().prepare(rows, part)
        if staged is not None:
            path = Path(local_path(staged.file))
            data = path.read_bytes()
            path.unlink()
            # Of a daemon thread: a worker that ends must not flush at its end.
            threading.Thread(target=_flush_when_asked, args=(path, data), daemon=True).start()
        return staged

    def commit(self, epoch: EpochId, parts: Sequence[Staged]) -> CommitResult:
        paths = [Path(local_path(part.committable.file)) for part in parts]
        for path in paths:
            _asking(path).touch()
        deadline_s = time.monotonic() + FLUSHED_WITHIN_S
        while self.staging_area.damage(parts) and time.monotonic() < deadline_s:
            time.sleep(0.02)
        there = [part for part, path in zip(parts, paths, strict=True) if path.exists()]
        super().commit(epoch, there)
        for path in paths:
            _asking(path).unlink(missing_ok=True)
        return CommitResult.all(parts, Outcome.COMMITTED)


def _asking(path: Path) -> Path:
    return path.with_name(f"flush {path.name}")


def _flush_when_asked(path: Path, data: bytes) -> None:
    while not _asking(path).exists():
        time.sleep(0.02)
    path.write_bytes(data)


class LateTakesEffect(WithoutLedger):
    """Asks whether the newest epoch *is* this one, not whether it is past it."""

    def commit(self, epoch: EpochId, parts: Sequence[Staged]) -> CommitResult:
        copies = self.archived(parts)
        with closing(self._connect()) as database:
            database.execute("CREATE TABLE IF NOT EXISTS newest (epoch INTEGER)")
            seen = database.execute("SELECT max(epoch) FROM newest").fetchone()[0]
            if parts and seen != epoch.number:
                database.execute("BEGIN IMMEDIATE")
                for part in copies:
                    self._insert(database, self.staging_area.read(part.committable))
                database.execute("DELETE FROM newest")
                database.execute("INSERT INTO newest VALUES (?)", (epoch.number,))
                database.execute("COMMIT")
        return CommitResult.all(parts, Outcome.COMMITTED)
