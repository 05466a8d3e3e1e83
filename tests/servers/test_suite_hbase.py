"""The conformance suite on ``HBaseSink``, with values as text and as bytes."""

from __future__ import annotations

import itertools
import struct
from collections.abc import Collection
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pytest

from beadline.sink import AnySink
from beadline.sinks import HBaseSink
from beadline.sinks.hbase.encode import Encoding
from beadline.testing.servers import HBaseServer
from beadline.testing.suite import *  # noqa: F403
from beadline.testing.suite import Row, SinkHarness

# Each case with one of the two harnesses, chosen by the seed; with BEADLINE_LONG=1 all of them.
pytestmark = pytest.mark.sampled(1)

_numbers = itertools.count()
STRANGER = "somebody-elses-file"


class HBaseHarness(SinkHarness):
    def __init__(self, server: HBaseServer, folder: Path, encoding: Encoding) -> None:
        self.server = server
        self.folder = folder
        self.encoding = encoding

    def fresh(self, schema: pa.Schema) -> AnySink:
        number = next(_numbers)
        table = f"suite_{number}"
        self.server.create_table(table, "f")
        # The key is stored as well: HBase has no row that is all nulls.
        return HBaseSink(
            self.server.host,
            port=self.server.port,
            table=table,
            row_key="id",
            columns={name: f"f:{name}" for name in schema.names},
            staging=self.folder / str(number),
            encoding=self.encoding,
            timeout_s=20,
        )

    def visible(self, sink: AnySink) -> list[Row]:
        assert isinstance(sink, HBaseSink)
        assert sink.columns is not None
        found = self.server.rows(sink.table)
        for key, cells in found.items():
            assert cells["f:id"] == key
        return [
            {name: self.read(name, cells.get(cell)) for name, cell in sink.columns.items()}
            for cells in found.values()
        ]

    def read(self, column: str, value: bytes | None) -> object:
        """Read a value as any program would that knows the encoding."""
        if value is None:
            return None
        if column not in ("id", "amount"):
            return value.decode(errors="surrogateescape")
        if self.encoding == "text":
            return int(value) if column == "id" else float(value)
        return struct.unpack(">q" if column == "id" else ">d", value)[0]

    def leftovers(self, sink: AnySink) -> Collection[str]:
        assert isinstance(sink, HBaseSink)
        return [path.name for path in Path(sink.staging).rglob("*") if path.is_file()]

    def plant_stranger(self, sink: AnySink) -> str | None:
        assert isinstance(sink, HBaseSink)
        folder = Path(sink.staging_area.folder.removeprefix("file:"))
        folder.mkdir(parents=True)
        (folder / STRANGER).write_bytes(b"mine")
        return STRANGER

    def unreachable(self, sink: AnySink) -> AbstractContextManager[AnySink]:
        assert isinstance(sink, HBaseSink)
        return nullcontext(replace(sink, port=1, timeout_s=2))

    def expected(self, rows: list[Row]) -> list[Row]:
        """Rows of one key replace one another."""
        return list({row["id"]: row for row in rows}.values())


@pytest.fixture(params=["text", "bytes"])
def harness(
    request: pytest.FixtureRequest, hbase_server: HBaseServer, tmp_path: Path
) -> SinkHarness:
    return HBaseHarness(hbase_server, tmp_path, request.param)
