"""``MemorySink``: the reference implementation, the smallest sink that keeps every rule.

It is for tests, and a model to copy. A sink of your own implements the same methods; the comments
say what each of them must not forget, and ``beadline.testing.suite`` tests it.

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
    LedgerRows,
    Outcome,
    Part,
    Prepared,
    QueryId,
    Seen,
    Sink,
    name_from,
    reach,
    without_unreadable,
)

if TYPE_CHECKING:
    import pyarrow as pa


# The committable is what survives this process: it is stored in the decision, as JSON, and must be
# enough to finish the part in a process started after this one died. Plain values only; never a
# secret, never a live connection. Here it is the rows themselves, which is fine for small parts
# only.
@dataclass(frozen=True)
class MemoryPart(Committable):
    """The rows of a part: an Arrow stream in base64."""

    arrow_base64: str


# The outside system. A real one is a server; this one is a dictionary behind a lock.
@dataclass
class _Table:
    rows: list[dict[str, Any]] = field(default_factory=list)
    ledger: dict[tuple[str, str], Seen] = field(default_factory=dict)

    def rows_of(self, query: QueryId) -> LedgerRows:
        """Return what is remembered of a query, of each of its sinks."""
        rows = [(sink, seen) for (of, sink), seen in self.ledger.items() if of == query.name]
        return LedgerRows(query, rows)


_tables: dict[str, _Table] = {}
_lock = threading.Lock()


# A frozen dataclass: configuration only, because it is pickled and sent to the executors. The type
# in brackets is what prepare returns.
@dataclass(frozen=True)
class MemorySink(Sink[MemoryPart]):
    """Rows in a named table in the memory of this process; gone when the process ends."""

    name: str

    # Derived from the target, so that two sinks of one query get different names and keep them.
    @property
    def default_name(self) -> str:
        """Derived from the table's name."""
        return name_from("memory", self.name)

    # Raise BadSink here for everything that can be known before the first row: server down, table
    # missing, column of another type. Leave nothing behind: the start may still be refused.
    def check(self, schema: pa.Schema, query: QueryId) -> Capabilities:
        """Accept any schema."""
        return Capabilities(
            guarantee=Guarantee.EXACTLY_ONCE,
            sentence="Each row appears exactly once, as long as the driver's process lives.",
            target=f"memory:{self.name}",
            atomic=True,
            remembers=True,
        )

    # Runs on an executor. When this returns, the rows must survive a power cut, and no reader may
    # see them. Several attempts at one part may run at once: whatever you write must carry part.id.
    # A row that can never be committed (too large, or null where no null is allowed; here one that
    # Python cannot hold) goes to part.refuse(rows, "why") and is not written: the user's
    # dead-letter sink receives it, or the epoch fails. Found only at commit, it would block the
    # query for good. A server that is down is no reason to refuse rows: raise instead.
    def prepare(self, rows: Iterator[pa.RecordBatch], part: Part) -> MemoryPart | None:
        """Put the rows into the committable: the decision log makes them durable."""
        import pyarrow as pa

        readable = (without_unreadable(batch, part) for batch in rows)
        filled = [batch for batch in readable if batch.num_rows]
        if not filled:
            return None  # nothing to write: the epoch has one part fewer
        out = pa.BufferOutputStream()
        with pa.ipc.new_stream(out, filled[0].schema) as writer:
            for batch in filled:
                writer.write_batch(batch)
        return MemoryPart(base64.b64encode(out.getvalue()).decode("ascii"))

    # Called in any process, any number of times, by two at once, an hour late. So the question "is
    # it already there?" and the write must be ONE atomic operation: here under a lock, in a
    # database one transaction with a ledger row. LedgerRows answers the whole question: is the
    # ledger at this epoch, or past it (a late commit changes nothing)? Is it another query's? Is it
    # behind what it has acknowledged before, so that it was restored from an older backup (that is
    # why check sets `remembers`)? reach() names a crash point: place one wherever a crash could
    # separate two operations, and the suite crashes there and lets another process continue. It
    # does nothing in production.
    def commit(self, epoch: EpochId, parts: Sequence[Prepared[MemoryPart]]) -> CommitResult:
        """Append the rows of all parts, once."""
        if not parts:
            return CommitResult({})
        found = [row for part in _in_order(parts) for row in _decode(part.committable)]
        query, sink = epoch.query, parts[0].id.sink
        reach("ledger.before")
        with _lock:
            table = _tables.setdefault(self.name, _Table())
            if table.rows_of(query).hold(epoch, f"memory table {self.name!r}", sink):
                return CommitResult.all(parts, Outcome.ALREADY_COMMITTED)
            table.rows.extend(found)
            table.ledger[query.name, sink] = Seen(query.incarnation, epoch.number, epoch.nonce)
        reach("ledger.after")
        return CommitResult.all(parts, Outcome.COMMITTED)

    # Delete what prepare left outside; no error if it is already gone. Here it left nothing: a
    # committable that no decision holds exists nowhere.
    def abort(self, parts: Sequence[Prepared[MemoryPart]]) -> None:
        """Do nothing: prepare left nothing outside the committables."""

    # Return everything that prepare left outside under this query's name and incarnation, without
    # relying on any memory: list the outside system, PartId.parse each name, skip the rest.
    def in_doubt(self, query: QueryId, name: str) -> Iterable[Prepared[MemoryPart]]:
        """Return nothing: prepare left nothing outside the committables."""
        return ()

    # Called at the start: does the target know this query's name from another incarnation? That is
    # how a deleted or copied checkpoint is noticed before it duplicates every row.
    def last_seen(self, query: QueryId, name: str) -> Seen | None:
        """Return the newest epoch here; another incarnation's, of any sink, comes first."""
        with _lock:
            return _tables.get(self.name, _Table()).rows_of(query).last_seen(name)

    # For readers; not part of the interface.
    @staticmethod
    def rows(name: str) -> list[dict[str, Any]]:
        """Return the visible rows of a table, in the order of their epochs."""
        with _lock:
            return list(_tables[name].rows) if name in _tables else []

    @staticmethod
    def clear(name: str) -> None:
        """Delete a table and its ledger."""
        with _lock:
            _tables.pop(name, None)


def _in_order(parts: Sequence[Prepared[MemoryPart]]) -> list[Prepared[MemoryPart]]:
    return sorted(parts, key=lambda part: part.id.partition)


def _decode(part: MemoryPart) -> list[dict[str, Any]]:
    import pyarrow as pa

    with pa.ipc.open_stream(base64.b64decode(part.arrow_base64)) as reader:
        rows: list[dict[str, Any]] = reader.read_all().to_pylist()
    return rows
