"""``MemorySink``: the reference to copy, the smallest sink that keeps every rule.

It is for tests and for reading. A sink of your own answers the same six questions; the comments
say what each must not forget, and ``beadline.testing.suite`` finds out whether it did.

>>> from beadline.sinks import MemorySink
>>> MemorySink.rows("never-written")
[]
"""

from __future__ import annotations

import base64
import threading
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from beadline.sink import (
    Capabilities,
    CommitResult,
    Committable,
    EpochId,
    Guarantee,
    Outcome,
    Part,
    Prepared,
    QueryId,
    Seen,
    Sink,
    holds,
    name_from,
    reach,
    without_unreadable,
)

if TYPE_CHECKING:
    import pyarrow as pa


# The committable is what survives you: it is stored in the decision, as JSON, and must be enough
# to finish the part in a process that was born after you died. Plain values only; never a secret,
# never a live connection. Here it is the rows themselves, which is only fine for small parts.
@dataclass(frozen=True)
class MemoryPart(Committable):
    """The rows of a part: an Arrow stream in base64."""

    arrow_base64: str


# The outside system. A real one is a server; this one is a dictionary behind a lock.
@dataclass
class _Table:
    rows: list[dict[str, Any]] = field(default_factory=list)
    ledger: dict[tuple[str, str], Seen] = field(default_factory=dict)


_tables: dict[str, _Table] = {}
_lock = threading.Lock()


# A frozen dataclass: configuration only, because it is pickled and sent to the executors. The class
# line says what prepare returns.
@dataclass(frozen=True)
class MemorySink(Sink[MemoryPart]):
    """Rows in a table of this process, by name; gone when the process ends."""

    name: str

    # Made from the target, so that two sinks of one query get two names and keep them.
    @property
    def default_name(self) -> str:
        """The table's name, as far as a sink may be called so."""
        return name_from("memory", self.name)

    # Raise BadSink here for everything that can be known before the first row: server down, table
    # missing, column of another type. Leave nothing behind: the start may yet be refused.
    def check(self, schema: pa.Schema, query: QueryId) -> Capabilities:
        """Any schema fits."""
        return Capabilities(
            guarantee=Guarantee.EXACTLY_ONCE,
            sentence="Each row shows once, as long as the driver's process lives.",
            target=f"memory:{self.name}",
            atomic=True,
            remembers=True,
        )

    # On an executor. When this returns, the rows must survive a power cut, and no reader may see
    # them. Several attempts at one part may run at once: whatever you write carries part.id.
    # A row that you could never commit (too large, null where none may be; here one that Python
    # cannot hold) goes to part.refuse(rows, "why") and is left out of what you write: the user's
    # dead letter sink gets it, or the epoch fails. Found at commit, it would block the query for
    # good. A server that is down is no reason to refuse: raise.
    def prepare(self, rows: Iterator[pa.RecordBatch], part: Part) -> MemoryPart | None:
        """Put the rows into the committable: the decision log makes them durable."""
        import pyarrow as pa

        readable = (without_unreadable(batch, part) for batch in rows)
        filled = [batch for batch in readable if batch.num_rows]
        if not filled:
            return None  # nothing to write: the epoch has one part less
        out = pa.BufferOutputStream()
        with pa.ipc.new_stream(out, filled[0].schema) as writer:
            for batch in filled:
                writer.write_batch(batch)
        return MemoryPart(base64.b64encode(out.getvalue()).decode("ascii"))

    # Any process, any number of times, two at once, an hour late. So the question "is it there
    # already?" and the write are ONE atomic act: here under a lock, in a database one transaction
    # with a ledger row. holds() has the question whole: is the ledger at this epoch, or past it (a
    # late commit changes nothing)? Is it another query's? Is it behind what it has acknowledged
    # before, so that it was restored from an older copy (that is why check says `remembers`)?
    # reach() names a crash point: wherever a crash could fall between two acts of yours, put one,
    # and the suite dies there and lets another process go on. It does nothing in production.
    def commit(self, epoch: EpochId, parts: Sequence[Prepared[MemoryPart]]) -> CommitResult:
        """Append the rows of all parts, once."""
        if not parts:
            return CommitResult({})
        found = [row for part in _in_order(parts) for row in _decode(part.committable)]
        key = (epoch.query.name, parts[0].id.sink)
        reach("ledger.before")
        with _lock:
            table = _tables.setdefault(self.name, _Table())
            seen = table.ledger.get(key)
            if holds(seen, epoch, f"memory table {self.name!r}"):
                return CommitResult.all(parts, Outcome.ALREADY_COMMITTED)
            table.rows.extend(found)
            table.ledger[key] = Seen(epoch.query.incarnation, epoch.number, epoch.nonce)
        reach("ledger.after")
        return CommitResult.all(parts, Outcome.COMMITTED)

    # Delete what prepare left outside; no error if it is gone already. Here it left nothing: a
    # committable that no decision holds is nowhere.
    def abort(self, parts: Sequence[Prepared[MemoryPart]]) -> None:
        """Nothing was left outside the committables."""

    # Everything that prepare left outside under this query's name and incarnation, found without
    # any memory of your own: list it in the outside system, PartId.parse each name, skip the rest.
    def in_doubt(self, query: QueryId, name: str) -> Iterable[Prepared[MemoryPart]]:
        """Nothing was left outside the committables."""
        return ()

    # Asked at start: does the target know this name from another life? That is how a deleted or
    # copied checkpoint is noticed before it doubles every row.
    def last_seen(self, query: QueryId, name: str) -> Seen | None:
        """The newest epoch of this sink; that of another incarnation, of any sink, first."""
        with _lock:
            ledger = dict(_tables[self.name].ledger) if self.name in _tables else {}
        of_query = {sink: seen for (owner, sink), seen in ledger.items() if owner == query.name}
        others = [seen for seen in of_query.values() if seen.incarnation != query.incarnation]
        return next(iter(others), of_query.get(name))

    # The reader's side; not part of the interface.
    @staticmethod
    def rows(name: str) -> list[dict[str, Any]]:
        """Return the visible rows of a table, in the order of their epochs."""
        with _lock:
            return list(_tables[name].rows) if name in _tables else []

    @staticmethod
    def clear(name: str) -> None:
        """Forget a table, its ledger too."""
        with _lock:
            _tables.pop(name, None)


def _in_order(parts: Sequence[Prepared[MemoryPart]]) -> list[Prepared[MemoryPart]]:
    return sorted(parts, key=lambda part: part.id.partition)


def _decode(part: MemoryPart) -> list[dict[str, Any]]:
    import pyarrow as pa

    with pa.ipc.open_stream(base64.b64decode(part.arrow_base64)) as reader:
        rows: list[dict[str, Any]] = reader.read_all().to_pylist()
    return rows
