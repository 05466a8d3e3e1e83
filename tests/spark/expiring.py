"""A sink whose prepared parts can expire, as a broker's transactions do; files play the broker."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import pyarrow as pa

from beadline.committable import Committable
from beadline.ids import EpochId, PartId, QueryId
from beadline.sink import Capabilities, CommitResult, Guarantee, Outcome, Part, Prepared, Seen, Sink


@dataclass(frozen=True)
class Held(Committable):
    """The name of the transaction."""

    name: str


@dataclass(frozen=True)
class ExpiringSink(Sink[Held]):
    """Open transactions in ``open/``, visible ones in ``visible/``, below one folder."""

    folder: str

    committable: ClassVar[type[Committable]] = Held

    @property
    def default_name(self) -> str:
        """There is one of them."""
        return "expiring"

    def check(self, schema: pa.Schema, query: QueryId) -> Capabilities:
        """Make the broker's folders."""
        for name in ("open", "visible"):
            (Path(self.folder) / name).mkdir(parents=True, exist_ok=True)
        sentence = "Each row shows once; what expires is replayed."
        return Capabilities(Guarantee.EXACTLY_ONCE, sentence, self.folder, expires=True)

    def prepare(self, rows: Iterator[pa.RecordBatch], part: Part) -> Held | None:
        """Open a transaction with the rows in it."""
        found = [row for batch in rows for row in batch.to_pylist()]
        if not found:
            return None
        (Path(self.folder) / "open" / str(part.id)).write_text(json.dumps(found))
        return Held(str(part.id))

    def commit(self, epoch: EpochId, parts: Sequence[Prepared[Held]]) -> CommitResult:
        """A transaction that is neither open nor visible has expired."""
        outcomes = {}
        for part in parts:
            source = Path(self.folder) / "open" / part.committable.name
            target = Path(self.folder) / "visible" / part.committable.name
            if target.exists():
                outcomes[part.id] = Outcome.ALREADY_COMMITTED
            elif source.exists():
                source.rename(target)
                outcomes[part.id] = Outcome.COMMITTED
            else:
                outcomes[part.id] = Outcome.LOST
        return CommitResult(outcomes)

    def abort(self, parts: Sequence[Prepared[Held]]) -> None:
        """Close the transactions."""
        for part in parts:
            (Path(self.folder) / "open" / part.committable.name).unlink(missing_ok=True)

    def in_doubt(self, query: QueryId, name: str) -> Iterable[Prepared[Held]]:
        """Every open transaction of the query."""
        for name in self.open_names():
            id_ = PartId.parse(name)
            if id_ is not None and id_.belongs_to(query):
                yield Prepared(id_, 0, Held(name))

    def last_seen(self, query: QueryId, name: str) -> Seen | None:
        """The broker forgets."""
        return None

    def open_names(self) -> list[str]:
        """The names of open transactions."""
        return sorted(path.name for path in (Path(self.folder) / "open").iterdir())

    def visible(self) -> list[dict[str, Any]]:
        """What a reader sees."""
        files = (Path(self.folder) / "visible").iterdir()
        return [row for path in files for row in json.loads(path.read_text())]

    def expire(self, count: int) -> None:
        """The broker lets this number of transactions time out."""
        for name in self.open_names()[:count]:
            (Path(self.folder) / "open" / name).unlink()
