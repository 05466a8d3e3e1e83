"""What survives a crash in the model: the log's slots, Spark's checkpoint, the outside systems.

``ModelWorld.look`` is the checker: it only observes. It is asked at every crash point, and says
``Violation`` for what must never be seen, not even for a moment.
"""

from __future__ import annotations

import itertools
from collections import Counter, defaultdict
from collections.abc import Callable, Collection
from dataclasses import dataclass

from beadline.decisions import KEEP_DEFAULT, Claim, Decision, DecisionLog
from beadline.decisions.record import decode
from beadline.ids import PartId, QueryId
from beadline.points import reach
from beadline.protocol.coordinator import Coordinator
from beadline.protocol.run import Run
from beadline.sink import BoundSink
from tests.memory_store import MemoryStore
from tests.model.server import (
    LEDGER,
    PARTS,
    SCHEMA,
    ModelServer,
    ModelSink,
    is_refused,
)

LISTED, READ = "model.listed", "model.read"
CHECKPOINT = "memory:/checkpoint"
NAME = "model"


class Crash(BaseException):
    """The process is gone. No ``except Exception`` of ours may see it."""


class Violation(BaseException):
    """The checker saw what must never be seen."""


Make = Callable[[Run], Coordinator]


@dataclass(frozen=True)
class Setting:
    """What is tried: the shape of the query, and the classes that may be exchanged for worse."""

    epochs: int = 3
    parts: int = 2
    stateful: bool = False
    deterministic: bool = True
    losers: bool = False
    recomputed: int = -1  # the epoch of which a part is computed again under its second sink
    keep: int = KEEP_DEFAULT
    kinds: tuple[str, ...] = (PARTS, LEDGER)
    dead_letter: str = ""  # the kind of system that takes what the first sink refuses, if any
    publishes: bool = False
    closes: bool = False  # whether a driver that comes to its end stops cleanly
    strict: bool = True
    coordinator: Make = Coordinator
    log: Callable[..., DecisionLog] = DecisionLog
    sink: type[ModelSink] = ModelSink


class ModelStore(MemoryStore):
    """The log's slots; it notes what was really decided, which retention then forgets."""

    def __init__(self) -> None:
        """Begin empty."""
        super().__init__()
        self.highest = 0
        self.creates = 0
        self.fail_at = 0
        self.refuse_at = 0
        self.claims: dict[str, Claim] = {}
        self.decisions: list[Decision] = []
        self.decided: dict[str, dict[PartId, int]] = defaultdict(dict)
        self.newest: dict[tuple[str, int], set[PartId]] = {}
        self.target: dict[tuple[str, int], str] = {}
        self.given_up: set[tuple[str, int]] = set()

    def create(self, slot: int, data: bytes) -> bool:
        """Create the slot; at ``fail_at`` land and fail, at ``refuse_at`` only fail."""
        self.creates += 1
        reach("append.written")
        if self.creates == self.refuse_at:
            raise OSError("refused")
        if slot in self.data:
            return False
        self.data[slot] = data
        self.note(slot, data)
        reach("append.linked")
        if self.creates == self.fail_at:
            raise OSError("interrupted")
        return True

    def note(self, slot: int, data: bytes) -> None:
        """Only the next slot counts: one freed by retention and taken again is nothing."""
        if slot != self.highest + 1:
            return
        self.highest = slot
        record = decode(data, self.path(slot), slot)
        if isinstance(record, Claim):
            self.claims[record.nonce] = record
            if record.dropped and self.decisions:
                epoch = self.decisions[-1].epoch
                self.given_up |= {(name, epoch) for name in record.dropped}
            return
        self.decisions.append(record)
        claim = self.claims[record.claim.nonce]
        for name, parts in record.sinks.items():
            ids = {record.part_id(claim.query, name, part) for part in parts}
            self.newest[name, record.epoch] = ids
            self.target.setdefault((name, record.epoch), claim.sinks[name])
            self.decided[name].update(dict.fromkeys(ids, record.epoch))

    def read(self, slot: int) -> bytes | None:
        """Read, and let the others run before it is used."""
        data = super().read(slot)
        reach(READ)
        return data

    def slots(self) -> list[int]:
        """List, and let the others run before it is used."""
        slots = super().slots()
        reach(LISTED)
        return slots


class ModelWorld:
    """All that survives: log, checkpoint, outside systems. Also Spark's ``Progress``."""

    def __init__(self, setting: Setting | None = None) -> None:
        """Begin with nothing but an endless source."""
        self.setting = setting or Setting()
        self.store = ModelStore()
        self.read = {"source": "first"}  # by source, which instance of it
        self.planned: dict[int, tuple[int, int]] = {}
        self.committed: set[int] = set()
        self.state: dict[int, int] = {0: 0}
        self.per_epoch = 2 * self.setting.parts
        self.attempts = itertools.count()
        names = [f"{kind}{i}" for i, kind in enumerate(self.setting.kinds)]
        self.owner = names[0] if self.setting.dead_letter else ""
        self.dead_letter = f"{self.setting.dead_letter}-dead-letter" if self.owner else ""
        if self.owner:
            names.insert(1, self.dead_letter)
        self.servers = {name: ModelServer(name) for name in names}
        self.retired: list[tuple[str, ModelServer]] = []
        self.published: set[int] = set()
        self.looked = 0
        self.recomputed = False  # whether that has happened
        self.alone = True  # whether drivers come one after the other

    def last_committed(self) -> int:
        """Return the newest epoch of Spark's commit log."""
        return max(self.committed, default=-1)

    def offsets(self, epoch: int) -> str | None:
        """Return the digest of an epoch in Spark's offset log."""
        span = self.planned.get(epoch)
        return None if span is None else f"{span[0]}-{span[1]}"

    def sources(self) -> dict[str, str]:
        """Return which instance of each source is read."""
        return dict(self.read)

    def bound(self, names: Collection[str] = ()) -> list[BoundSink]:
        """Return the query's sinks, or only those with these names."""
        query = QueryId(NAME, "0" * 32, CHECKPOINT)
        sinks = []
        for name, server in self.servers.items():
            if not names or name in names:
                kind = LEDGER if name.startswith(LEDGER) else PARTS
                refuses = name == self.owner
                sink = self.setting.sink(server, kind, self.setting.publishes, refuses)
                dead_letter = self.dead_letter if refuses else ""
                sinks.append(BoundSink(name, sink, sink.check(SCHEMA, query), dead_letter))
        return sinks

    def move(self, name: str) -> None:
        """Let a sink of later starts point to another system."""
        old = self.servers[name]
        self.retired.append((name, old))
        self.servers[name] = ModelServer(f"{old.target}+")

    def look(self, point: str = "") -> None:
        """Check what must hold at every moment; what was checked before is not checked again."""
        news = len(self.store.decisions) > self.looked
        for name, server in (*self.servers.items(), *self.retired):
            if server.shown_again:
                raise Violation(f"{name}: shown twice: {server.shown_again}")
            if self.setting.strict and (news or server.just_shown or server.just_aborted):
                self.look_decided(name, server)
            if point == "start.after" and self.looks_at_start and not server.expired:
                waiting = server.prepared.keys() & self.store.decided[name].keys()
                given_up = {part for part in waiting if (name, part.epoch) in self.store.given_up}
                if waiting - server.visible.keys() - given_up:
                    raise Violation(f"{name}: decided, started and not visible: {waiting}")
        self.looked = len(self.store.decisions)

    @property
    def looks_at_start(self) -> bool:
        """Whether the driver that has just started is the only one, and all was decided."""
        return self.setting.strict and self.alone

    def look_decided(self, name: str, server: ModelServer) -> None:
        """Visible only if decided; never both decided and aborted."""
        for part in server.just_shown:
            if part not in self.store.decided[name]:
                raise Violation(f"{name}: visible and not decided: {part}")
        for part in server.just_aborted:
            where = (name, part.epoch)
            if part in self.store.newest.get(where, ()) and where not in self.store.given_up:
                raise Violation(f"{name}: decided, then aborted: {part}")
        for decision in self.store.decisions[self.looked :]:
            if gone := self.store.newest.get((name, decision.epoch), set()) & server.aborted:
                raise Violation(f"{name}: aborted, then decided: {gone}")
        server.just_shown.clear()
        server.just_aborted.clear()

    def rows(self, epoch: int, name: str = "") -> list[str]:
        """Return the rows that an epoch must show in a sink, stateful or not."""
        total = sum(sum(range(*self.planned[before])) for before in range(epoch))
        rows = [self.row(number, total) for number in range(*self.planned[epoch])]
        if self.owner and name in (self.owner, self.dead_letter):
            return [row for row in rows if is_refused(row) == (name == self.dead_letter)]
        return rows

    def row(self, number: int, total: int) -> str:
        """Return one row; with state, it tells of the rows of all epochs before."""
        return f"{number}:{total}" if self.setting.stateful else str(number)

    def check_end(self, at_least: bool = False) -> None:
        """Check what must hold when a driver has run to its end and orphans are swept."""
        self.look("end")
        epochs = range(self.setting.epochs)
        if self.committed != set(epochs):
            raise Violation(f"Spark committed {sorted(self.committed)}, not all of {epochs}")
        spans = [self.planned[epoch] for epoch in epochs]
        if any(one[1] != other[0] for one, other in itertools.pairwise(spans)):
            raise Violation(f"the source was read with a gap: {spans}")
        for name, server in self.servers.items():
            self.check_rows(name, server, at_least)

    def check_rows(self, name: str, server: ModelServer, at_least: bool) -> None:
        """Every row once, or at least once, and nothing in doubt."""
        epochs = sorted(self.committed)
        wanted = Counter(row for epoch in epochs for row in self.rows(epoch, name))
        shown = Counter(server.rows())
        if lost := wanted - shown:
            raise Violation(f"{name}: lost {sorted(lost)}")
        more = shown - wanted
        if more and (not at_least or more.keys() - wanted.keys()):
            raise Violation(f"{name}: shown twice or never given: {dict(more)}")
        if server.prepared:
            raise Violation(f"{name}: left in doubt: {[*map(str, server.prepared)]}")
