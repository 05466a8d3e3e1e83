"""What the tests of ``HBaseSink`` drive: a fresh table, and a sink to it with its calls."""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa

from beadline.ids import EpochId, QueryId
from beadline.sink import CommitResult, Outcome, Part, Prepared, Refuse
from beadline.sinks import HBaseSink
from beadline.sinks.hbase.client import connected
from beadline.testing.servers import HBaseServer
from beadline.testing.suite.target import QUERY, part_id

SCHEMA = pa.schema([("id", pa.string()), ("a", pa.string()), ("b", pa.string())])
DELETED = SCHEMA.append(pa.field("gone", pa.bool_()))
NOW_MS = 1_700_000_000_000

RowTuples = Sequence[tuple[Any, ...]]
RefusedRows = list[tuple[list[dict[str, Any]], str]]


class Orders:
    """A table of its own, the sink to it, and the calls that the protocol would make."""

    def __init__(self, server: HBaseServer, folder: Path, **settings: Any) -> None:
        self.server = server
        self.table = f"orders_{uuid.uuid4().hex[:8]}"
        server.create_table(self.table, "f", "g")
        given = {"row_key": "id", "family": "f", "timeout_s": 20.0, **settings}
        self.sink = HBaseSink(
            server.host, port=server.port, table=self.table, staging=folder / "staging", **given
        )
        self.schema = DELETED if self.sink.deleted else SCHEMA

    def opened(self) -> Orders:
        self.sink.check(self.schema, QUERY)
        self.sink.open(QUERY, "under-test")
        return self

    def batch(self, rows: RowTuples) -> pa.RecordBatch:
        named = [dict(zip(self.schema.names, row, strict=True)) for row in rows]
        return pa.RecordBatch.from_pylist(named, schema=self.schema)

    def prepare(
        self, epoch: int, *shares: RowTuples, refuse: Refuse | None = None
    ) -> list[Prepared[Any]]:
        """One part per share."""
        parts = []
        for partition, rows in enumerate(shares):
            part = Part(part_id(epoch, partition))
            part = part if refuse is None else replace(part, refuse=refuse)
            committable = self.sink.prepare(iter([self.batch(rows)]), part)
            if committable is not None:
                parts.append(Prepared(part.id, len(rows), committable))
        return parts

    def try_commit(self, epoch: int, parts: Sequence[Prepared[Any]]) -> CommitResult:
        return self.sink.commit(decided(epoch), parts)

    def commit(self, epoch: int, *shares: RowTuples) -> list[Prepared[Any]]:
        """Prepare and commit; what was prepared, for a commit that comes late."""
        parts = self.prepare(epoch, *shares)
        outcomes = set(self.try_commit(epoch, parts).outcomes.values())
        assert outcomes == {Outcome.COMMITTED}
        return parts

    def shows(self) -> dict[str, dict[str, str]]:
        """The rows by key, as text, cells of family f by their qualifier."""
        return {
            key.decode(): {
                cell.removeprefix("f:"): value.decode(errors="replace")
                for cell, value in cells.items()
            }
            for key, cells in self.server.rows(self.table).items()
        }

    def client(self) -> Any:
        return connected(self.sink._server)


def decided(epoch: int, query: QueryId = QUERY) -> EpochId:
    """As close together as two decisions can be."""
    return EpochId(query, epoch, f"{epoch:032x}", NOW_MS + epoch)
