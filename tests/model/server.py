"""Outside systems in memory, which outlive every driver, and the sink on them.

Two kinds, because the two ways to keep late commits without effect differ. ``parts`` holds one
prepared transaction per part, as PostgreSQL and Kafka do: commits go part by part, ids are never
used twice, and a prepared part may expire. ``ledger`` stages rows and writes them at commit, as
SQLite and Redis do: a whole epoch at once, with the ledger checked in the same atomic act.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, ClassVar
from weakref import WeakValueDictionary

import pyarrow as pa
import pyarrow.compute as pc

from beadline.committable import Committable
from beadline.errors import BadSink, CommitFailed
from beadline.ids import EpochId, PartId, QueryId
from beadline.points import reach
from beadline.sink import (
    Capabilities,
    CommitResult,
    Guarantee,
    Outcome,
    Part,
    Prepared,
    Seen,
    Sink,
    check_previous,
)

PARTS, LEDGER = "parts", "ledger"
SCHEMA = pa.schema([("row", pa.string())])
RowTexts = tuple[str, ...]

# Steps of the model that no real process can be killed at by name; other drivers run there too.
SEEN = "model.seen"
IN_DOUBT = "model.in_doubt"


@dataclass(frozen=True)
class ModelCommittable(Committable):
    """The transaction's id is all that it takes."""

    transaction: str


_servers: WeakValueDictionary[int, ModelServer] = WeakValueDictionary()


class ModelServer:
    """One outside system: prepared parts, visible rows, and what it remembers of queries."""

    def __init__(self, target: str) -> None:
        """Begin empty."""
        self.target = target
        self.instance = ""
        self.stuck: Sequence[int] = ()  # epochs that it will never take
        self.stuck_by: type[CommitFailed] = CommitFailed
        _servers[id(self)] = self
        self.prepared: dict[PartId, RowTexts] = {}
        self.visible: dict[PartId, RowTexts] = {}
        self.shown_again: list[PartId] = []
        self.just_shown: list[PartId] = []
        self.just_aborted: list[PartId] = []
        self.published: list[str] = []
        self.aborted: set[PartId] = set()
        self.expired: set[PartId] = set()
        self.seen: dict[str, Seen] = {}

    def rows(self) -> list[str]:
        """Everything that a reader of this system sees."""
        again = [row for part in self.shown_again for row in self.visible[part]]
        return [row for rows in self.visible.values() for row in rows] + again + self.published

    def show(self, part: PartId, rows: RowTexts) -> None:
        """Make a part's rows visible; twice is twice, the checker counts."""
        if part in self.visible:
            self.shown_again.append(part)
        self.visible[part] = rows
        self.just_shown.append(part)

    def remember(self, epoch: EpochId) -> None:
        """Note the newest epoch of a query."""
        query = epoch.query
        old = self.seen.get(query.name)
        if old is None or old.incarnation != query.incarnation or old.epoch <= epoch.number:
            version_ms = epoch.decided_at_ms
            self.seen[query.name] = Seen(query.incarnation, epoch.number, epoch.nonce, version_ms)

    def abort(self, part: PartId) -> None:
        """Throw a prepared part away; what is left of a visible one is only cleared up."""
        if self.prepared.pop(part, None) is not None and part not in self.visible:
            self.aborted.add(part)
            self.just_aborted.append(part)

    def expire(self, part: PartId) -> None:
        """Lose a prepared part, as a transaction timeout does."""
        if self.prepared.pop(part, None) is not None:
            self.expired.add(part)


@dataclass(frozen=True)
class ModelSink(Sink[ModelCommittable]):
    """A sink on a ``ModelServer``; it keeps the rules that real sinks keep."""

    committable: ClassVar[type[Committable]] = ModelCommittable

    dead_letter_columns: ClassVar[tuple[str, ...]] = ("row",)

    server: ModelServer = field(compare=False, repr=False)
    kind: str = PARTS
    publishes: bool = False
    refuses: bool = False

    def __reduce__(self) -> tuple[Any, ...]:
        """Travel without the server: it is outside, and the same for all who reach it."""
        settings = (self.kind, self.publishes, self.refuses)
        return _reach_again, (type(self), id(self.server), *settings)

    @property
    def default_name(self) -> str:
        """Named by its target."""
        return self.server.target

    def check(self, schema: pa.Schema, query: QueryId) -> Capabilities:
        """Take one column of text."""
        if schema != SCHEMA:
            raise BadSink(f"the model takes {SCHEMA}, not {schema}. Nothing was written.")
        sentence = "A row shows once, by its transaction's id or the ledger."
        return Capabilities(
            Guarantee.EXACTLY_ONCE,
            sentence,
            self.server.target,
            atomic=self.kind == LEDGER,
            expires=self.kind == PARTS,
            publishes=self.publishes,
            remembers=True,
            instance=self.server.instance,
        )

    def prepare(self, rows: Iterator[pa.RecordBatch], part: Part) -> ModelCommittable | None:
        """Hold the rows under the part's id."""
        held = _rows(self.without_refused(rows, part))
        if not held:
            return None
        if self.kind == LEDGER:
            reach("staging.written")
        self.server.prepared[part.id] = held
        return ModelCommittable(str(part.id))

    def publish(self, rows: Iterator[pa.RecordBatch], part: Part) -> None:
        """Show the rows at once."""
        self.server.published += _rows(self.without_refused(rows, part))

    def without_refused(
        self, rows: Iterator[pa.RecordBatch], part: Part
    ) -> Iterator[pa.RecordBatch]:
        """Refuse some rows, if this sink does such a thing."""
        return (_refuse(batch, part) for batch in rows) if self.refuses else rows

    def commit(self, epoch: EpochId, parts: Sequence[Prepared[ModelCommittable]]) -> CommitResult:
        """Show the parts: one by one, or all with the ledger in one act."""
        if epoch.number in self.server.stuck:
            raise self.server.stuck_by(f"the model never takes epoch {epoch.number}")
        if self.kind == LEDGER:
            return self.commit_with_ledger(epoch, parts)
        if not all(part.id in self.server.visible for part in parts):
            self.check_previous(epoch)
        outcomes: dict[PartId, Outcome] = {}
        for part in parts:
            if outcomes:
                reach("commit.between")
            outcomes[part.id] = self.commit_one(epoch, part.id)
        return CommitResult(outcomes)

    def commit_one(self, epoch: EpochId, part: PartId) -> Outcome:
        """Commit one transaction; the id that it leaves behind answers repeated commits."""
        if part in self.server.visible:
            return Outcome.ALREADY_COMMITTED
        rows = self.server.prepared.pop(part, None)
        if rows is None:
            return Outcome.LOST
        self.server.show(part, rows)
        self.server.remember(epoch)
        return Outcome.COMMITTED

    def commit_with_ledger(
        self, epoch: EpochId, parts: Sequence[Prepared[ModelCommittable]]
    ) -> CommitResult:
        """Read what is staged, then check the ledger and write in one act, then clear up."""
        staged = {part.id: self.server.prepared.get(part.id) for part in parts}
        reach("ledger.before")
        if self.is_late(epoch):
            outcome = Outcome.ALREADY_COMMITTED
        elif any(rows is None for rows in staged.values()):
            # All or nothing: the parts that are there are given with the others, after a replay.
            lost = dict.fromkeys(staged, Outcome.LOST)
            return CommitResult(lost)
        else:
            outcome = Outcome.COMMITTED
            self.check_previous(epoch)
            for part, rows in staged.items():
                self.server.show(part, rows or ())
            self.server.remember(epoch)
        reach("ledger.after")
        for part in staged:
            self.server.prepared.pop(part, None)
        return CommitResult.all(parts, outcome)

    def check_previous(self, epoch: EpochId) -> None:
        """Rule 25: what it acknowledged must still be there, or it writes nothing."""
        seen = self.server.seen.get(epoch.query.name)
        ours = seen is not None and seen.incarnation == epoch.query.incarnation
        check_previous(epoch, seen.epoch if seen and ours else None)

    def is_late(self, epoch: EpochId) -> bool:
        """Whether the ledger holds this epoch, or a newer one."""
        seen = self.server.seen.get(epoch.query.name)
        return (
            seen is not None
            and seen.incarnation == epoch.query.incarnation
            and seen.epoch >= epoch.number
        )

    def abort(self, parts: Sequence[Prepared[ModelCommittable]]) -> None:
        """Throw parts away."""
        for part in parts:
            self.server.abort(part.id)

    def in_doubt(self, query: QueryId, name: str) -> Iterable[Prepared[ModelCommittable]]:
        """Everything of this query that is prepared, or staged for longer than it need be."""
        found = [
            Prepared(part, len(rows), ModelCommittable(str(part)))
            for part, rows in self.server.prepared.items()
            if part.belongs_to(query)
        ]
        reach(IN_DOUBT)
        return found

    def close(self, query: QueryId, name: str) -> Callable[[], None]:
        """Look which parts are open, as Kafka's writers are; to end them aborts those."""
        found = list(self.in_doubt(query, name))
        return partial(self.abort, found)

    def instance_now(self) -> str:
        """Which server it is by now."""
        return self.server.instance

    def last_seen(self, query: QueryId, name: str) -> Seen | None:
        """What the server remembers of the name."""
        seen = self.server.seen.get(query.name)
        reach(SEEN)
        return seen


def is_refused(row: str) -> bool:
    """Whether a model sink that refuses rows refuses this one; not every epoch has such a row."""
    return row.partition(":")[0].partition("!")[0].endswith(("3", "8"))


def _refuse(batch: pa.RecordBatch, part: Part) -> pa.RecordBatch:
    """Return the batch without the rows that are refused."""
    bad = pa.array([is_refused(row) for row in _rows(iter([batch]))], pa.bool_())
    if bad.true_count:
        part.refuse(batch.filter(bad), "it ends with 3 or 8")
    return batch.filter(pc.invert(bad))


def _reach_again(
    sink: type[ModelSink], server: int, kind: str, publishes: bool, refuses: bool
) -> ModelSink:
    return sink(_servers[server], kind, publishes, refuses)


def _rows(batches: Iterator[pa.RecordBatch]) -> RowTexts:
    return tuple(row for batch in batches for row in batch.column(0).to_pylist())
