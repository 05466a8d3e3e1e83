"""The whole world of a query in memory, so that every order of crashes can be tried in seconds.

``ModelWorld`` is what survives a crash. ``drive`` is one driver process: Beadline's own
coordinator on a model of Spark, which plans an epoch, writes its offsets ahead, gives it, and
writes its commit log, both by create-if-absent. A crash is a ``Crash`` raised at a crash point.

    with hooked(crash_at(12)), suppress(Crash):
        drive(world)
    drive(world)
    world.check_end()
"""

from __future__ import annotations

import functools
import zlib
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

import pyarrow as pa

from beadline.dead_letter import RefusedRow
from beadline.observe import Listener, ignore
from beadline.points import reach
from beadline.protocol.batch import Acks, Ticket
from beadline.protocol.coordinator import Coordinator
from beadline.protocol.run import Run
from beadline.sink import BoundSink, Guarantee, Part, Prepared, Sink
from tests.model.server import IN_DOUBT, SCHEMA, SEEN, ModelServer, ModelSink
from tests.model.world import (
    CHECKPOINT,
    LISTED,
    NAME,
    READ,
    Crash,
    Make,
    ModelStore,
    ModelWorld,
    Setting,
    Violation,
)

__all__ = [
    "COMMITTED",
    "PLANNED",
    "READING",
    "Crash",
    "Make",
    "ModelBatch",
    "ModelServer",
    "ModelSink",
    "ModelStore",
    "ModelWorld",
    "Setting",
    "SparkConflict",
    "Violation",
    "at_least_once",
    "crash_at",
    "drive",
    "make_coordinator",
    "start_only",
]

PLANNED, COMMITTED = "model.planned", "model.committed"
# Nothing has changed since the step before: a crash here is a crash there, a pause is not.
READING = frozenset({LISTED, READ, SEEN, IN_DOUBT})


class SparkConflict(Exception):
    """Spark's own logs: another driver wrote this epoch first."""


@dataclass
class ModelBatch:
    """One epoch as one driver's Spark gives it."""

    world: ModelWorld
    number: int
    moved: int | None = None
    rows: list[tuple[str, ...]] = field(default_factory=list)
    tags: dict[int, int] | None = None  # with several sinks: one number for each computation

    def offsets(self) -> str:
        """Return the digest of the span of the source."""
        return self.world.offsets(self.number) or ""

    def settings(self) -> dict[str, str]:
        """The number of parts decides how rows fall into them."""
        return {"parts": str(self.world.setting.parts)}

    @contextmanager
    def sharing(self, sinks: int) -> Iterator[None]:
        """Compute the rows once for all sinks."""
        self.compute()
        parts = range(self.world.setting.parts)
        self.tags = {part: next(self.world.attempts) for part in parts} if sinks > 1 else None
        yield

    def lose_executor(self) -> None:
        """Compute the first part again, as Spark does when an executor dies after its ack."""
        assert self.tags is not None
        self.world.recomputed = True
        before = self.rows
        self.compute()
        self.rows[1:] = before[1:]
        self.tags = {**self.tags, 0: next(self.world.attempts)}

    def compute(self) -> None:
        """Run the plan: from version e of the state to version e + 1."""
        setting, span = self.world.setting, range(*self.world.planned[self.number])
        total = self.world.state[self.number] if setting.stateful else 0
        salt = "" if setting.deterministic else f"!{next(self.world.attempts)}"
        self.rows = [
            tuple(self.world.row(n, total) + salt for n in span if n % setting.parts == part)
            for part in range(setting.parts)
        ]
        self.moved = total + sum(span)

    def run_prepare(
        self, sink: BoundSink, ticket: Ticket, refused: Sequence[RefusedRow] | None = None
    ) -> Acks:
        """Run every part, one after the other; with ``losers``, the first part twice."""
        assert isinstance(sink.sink, Sink)
        prepared = []
        found: list[RefusedRow] = []
        losers = self.world.setting.losers
        rows_of = self.rows if refused is None else [tuple(one.row for one in refused)]
        for partition, rows in enumerate(rows_of):
            if losers and partition == 0:
                self.attempt(sink, ticket, partition, rows)
            one, not_taken = self.attempt(sink, ticket, partition, rows)
            found += not_taken
            if one is not None:
                prepared.append(one)
        tags = None if refused is not None else self.tags
        if self.world.setting.recomputed == self.number and not self.world.recomputed:
            self.lose_executor()
        return Acks(tuple(prepared), len(rows_of), losers, tuple(found), tags=tags)

    def attempt(
        self, sink: BoundSink, ticket: Ticket, partition: int, rows: tuple[str, ...]
    ) -> tuple[Prepared[Any] | None, list[RefusedRow]]:
        """Run one task attempt; its number is never used again."""
        reach("prepare.part")
        assert isinstance(sink.sink, Sink)
        part, refused = self.part(sink, ticket, partition)
        committable = sink.sink.prepare(iter([record_batch(rows)]), part)
        reach("prepare.acked")
        if committable is None:
            return None, refused
        return Prepared(part.id, len(rows) - len(refused), committable, checksum(rows)), refused

    def part(
        self, sink: BoundSink, ticket: Ticket, partition: int
    ) -> tuple[Part, list[RefusedRow]]:
        """Return an attempt's part, and where the rows gather that the sink refuses."""
        part = ticket.part(partition, next(self.world.attempts))
        refused: list[RefusedRow] = []

        def refuse(rows: pa.RecordBatch, reason: str) -> None:
            texts = rows.column(0).to_pylist()
            refused.extend(RefusedRow(sink.name, partition, reason, text) for text in texts)

        return (replace(part, refuse=refuse) if sink.dead_letter else part), refused

    def run_publish(
        self, sink: BoundSink, ticket: Ticket, refused: Sequence[RefusedRow] | None = None
    ) -> Acks:
        """Publish every part."""
        assert isinstance(sink.sink, Sink)
        found: list[RefusedRow] = []
        rows_of = self.rows if refused is None else [tuple(one.row for one in refused)]
        for partition, rows in enumerate(rows_of):
            reach("prepare.part")
            part, not_taken = self.part(sink, ticket, partition)
            sink.sink.publish(iter([record_batch(rows)]), part)
            found += not_taken
        rows_taken = sum(map(len, rows_of)) - len(found)
        return Acks((), len(rows_of), refused=tuple(found), published=rows_taken)

    def event_time(self) -> dict[str, Any]:
        """There are no watermarks."""
        return {}

    def reason(self, error: Exception) -> str:
        """There is nothing to it."""
        return f"{type(error).__name__}: {error}"

    def advance_state(self) -> None:
        """Run a stateful plan into nothing."""
        if self.world.setting.stateful:
            self.compute()


class ModelSpark:
    """One run of Spark's streaming engine on the world's checkpoint."""

    def __init__(self, world: ModelWorld) -> None:
        """Read the logs once, as Spark does; from here on it trusts its own memory."""
        self.world = world
        self.epoch = world.last_committed() + 1
        self.again = self.epoch in world.planned

    def give(self) -> ModelBatch:
        """Plan the next epoch and write its offsets ahead, or give the planned one again."""
        if not self.again:
            before = self.world.planned[self.epoch - 1][1] if self.epoch else 0
            if self.epoch in self.world.planned:
                raise SparkConflict(f"offsets/{self.epoch}")
            self.world.planned[self.epoch] = (before, before + self.world.per_epoch)
        self.again = False
        reach(PLANNED)
        return ModelBatch(self.world, self.epoch)

    def commit(self, batch: ModelBatch) -> None:
        """Write the commit log: this epoch is never redelivered."""
        world = self.world
        if batch.number in world.committed:
            raise SparkConflict(f"commits/{batch.number}")
        if world.setting.stateful:
            if batch.moved is None:
                raise Violation(f"epoch {batch.number} ends, its state did not move on")
            world.state[batch.number + 1] = batch.moved
        world.committed.add(batch.number)
        self.epoch = batch.number + 1
        reach(COMMITTED)


def at_least_once(run: Run) -> Coordinator:
    """Return the coordinator of a start in the other mode, whatever the run says."""
    return Coordinator(replace(run, mode=Guarantee.AT_LEAST_ONCE))


def make_coordinator(
    world: ModelWorld,
    of: Make | None = None,
    names: Collection[str] = (),
    listener: Listener = ignore,
) -> Coordinator:
    """Return the coordinator of one start."""
    setting = world.setting
    log = setting.log(world.store, setting.keep)
    run = Run(NAME, CHECKPOINT, world.bound(names), log, world, listener=listener)
    return (of or setting.coordinator)(run)


def start_only(world: ModelWorld, of: Make | None = None) -> None:
    """Start a driver and stop it before its first epoch: finish, and sweep."""
    make_coordinator(world, of).start()


def drive(
    world: ModelWorld,
    of: Make | None = None,
    names: Collection[str] = (),
    drop: Collection[str] = (),
    epochs: int | None = None,
    listener: Listener = ignore,
) -> None:
    """Run one driver process until this number of epochs of the query is done."""
    coordinator = make_coordinator(world, of, names, listener)
    coordinator.start(drop)
    spark = ModelSpark(world)
    while spark.epoch < (epochs or world.setting.epochs):
        batch = spark.give()
        coordinator.run_epoch(batch)
        spark.commit(batch)
    if world.setting.closes:
        coordinator.close()


def crash_at(number: int, world: ModelWorld | None = None) -> Callable[[str], None]:
    """Return a hook that crashes at the ``number``-th crash point, the first being 0."""
    left = number

    def hook(point: str) -> None:
        nonlocal left
        if world is not None:
            world.look(point)
        if point in READING:
            return
        if left == 0:
            raise Crash(point)
        left -= 1

    return hook


@functools.cache
def record_batch(rows: tuple[str, ...]) -> pa.RecordBatch:
    """Return the rows as Arrow hands them over."""
    return pa.RecordBatch.from_arrays([pa.array(rows, pa.string())], schema=SCHEMA)


@functools.cache
def checksum(rows: tuple[str, ...]) -> int:
    """Sum over the rows, so that their order does not matter."""
    return sum(zlib.crc32(row.encode()) for row in rows)
