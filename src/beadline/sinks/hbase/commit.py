"""One commit: look at the ledger, write what is staged, and say in the ledger that it is there."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from beadline.errors import CommitFailed
from beadline.ids import EpochId
from beadline.points import reach
from beadline.sink import CommitResult, Outcome, PartsDamaged, Prepared, StagedPart, Staging, holds
from beadline.sinks.hbase.changes import last_words
from beadline.sinks.hbase.client import Address, Client, Refused, Unreachable, connected
from beadline.sinks.hbase.columns import Cells
from beadline.sinks.hbase.encode import encode
from beadline.sinks.hbase.ledger import Ledger
from beadline.sinks.hbase.settings import changed
from beadline.sinks.hbase.write import RowRefused, Writer

if TYPE_CHECKING:
    import pyarrow as pa

_KEY_SHOWN = 100


@dataclass(frozen=True)
class Commit:
    """The parts of one decided epoch, and where they go; ``cells`` says it of column names."""

    epoch: EpochId
    parts: Sequence[Prepared[StagedPart]]
    staging: Staging
    address: Address
    table: str
    cells: Callable[[list[str]], Cells]
    connections: int
    where: str

    def run(self) -> CommitResult:
        """Write the last word of the epoch on each key, and then its ledger row."""
        try:
            with connected(self.address) as client:
                return self._write(client)
        except Unreachable as problem:
            unknown = self._all(Outcome.UNKNOWN).outcomes
            return CommitResult(unknown, f"{self.where} does not answer: {problem}")
        except RowRefused as refused:
            key = refused.key.decode(errors="backslashreplace")
            shown = key if len(key) <= _KEY_SHOWN else key[:_KEY_SHOWN] + "…"
            what = f"the row of key {shown!r}{self._part_with(refused.key)}"
            raise self._refused(what, refused) from refused
        except Refused as refused:
            raise self._refused("it", refused) from refused

    def _write(self, client: Client) -> CommitResult:
        ledger, epoch = Ledger(self.table), self.epoch

        def is_there() -> bool:
            seen = ledger.seen(client, epoch.query, self._sink)
            if seen is None and (others := ledger.seen(client, epoch.query)) is not None:
                # A sink that has written nothing under its name may have been called otherwise;
                # of this epoch, the rows of others say nothing.
                seen = replace(others, epoch=min(others.epoch, epoch.number - 1))
            return holds(seen, epoch, self.where)

        if is_there():
            return self._all(Outcome.ALREADY_COMMITTED)
        batches, damage = self._staged()
        if damage:
            # Another may have finished the epoch, and thrown the files away, since the look.
            if is_there():
                return self._all(Outcome.ALREADY_COMMITTED)
            # One part's last word may be in another, so none is written without all.
            return CommitResult(self._all(Outcome.LOST).outcomes, damage)
        cells = self._staged_cells(batches)
        families = list(client.families(self.table))
        writer = Writer(
            self.address, ledger, cells, families, self.epoch, self._sink, self.connections
        )
        if not writer.write(client, last_words(batches, cells)):
            return self._all(Outcome.ALREADY_COMMITTED)
        reach("ledger.before")
        ledger.write(client, self.epoch, self._sink, sum(part.rows for part in self.parts))
        reach("ledger.after")
        return self._all(Outcome.COMMITTED)

    def _staged(self) -> tuple[list[pa.RecordBatch], str]:
        """Return all rows in their order, mapped from the files; or what is wrong with those."""
        damage = self.staging.damage(self.parts)
        if damage:
            return [], "; ".join(damage.values())
        try:
            return [batch for p in self._ordered for batch in self.staging.read(p.committable)], ""
        except PartsDamaged as error:
            return [], str(error)

    def _staged_cells(self, batches: Sequence[pa.RecordBatch]) -> Cells:
        """Return where the staged columns go; raise if they were staged under other settings."""
        schemas = [batch.schema for batch in batches]
        difference = next(filter(None, (changed(s, self.cells(s.names)) for s in schemas)), "")
        if difference:
            raise CommitFailed(
                f"{self._what}: {self.where}: the epoch was decided under other settings: "
                f"{difference}. Its rows would become something else, so nothing was written. "
                "Start once with the settings of before; that finishes the epoch."
            )
        return self.cells(schemas[0].names)

    def _refused(self, what: str, refused: Refused) -> CommitFailed:
        return CommitFailed(
            f"{self._what}: {self.where} refuses {what}: {refused}. The epoch is decided, and may "
            "be visible in part. Repair the table; the next start finishes the epoch."
        )

    def _part_with(self, key: bytes) -> str:
        """Say in which part the row is that HBase was sent: the last one that has the key."""
        with suppress(PartsDamaged):
            for part in reversed(self._ordered):
                for batch in self.staging.read(part.committable):
                    cells = self.cells(batch.schema.names)
                    keys = encode(batch.column(cells.row_key), cells.encoding)
                    if key in keys.to_pylist():
                        return f" in part {part.id.partition}"
        return ""

    def _all(self, outcome: Outcome) -> CommitResult:
        return CommitResult.all(self.parts, outcome)

    @property
    def _ordered(self) -> list[Prepared[StagedPart]]:
        return sorted(self.parts, key=lambda part: part.id.partition)

    @property
    def _sink(self) -> str:
        return self.parts[0].id.sink

    @property
    def _what(self) -> str:
        return f"query {self.epoch.query.name!r}, epoch {self.epoch.number}, sink {self._sink!r}"
