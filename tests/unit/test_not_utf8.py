"""Text that is not UTF-8: found at prepare, because at commit it would block a decided epoch."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from beadline.errors import RowsRefused
from beadline.sink import Outcome, Part, Prepared, Sink
from beadline.sinks import MemorySink, SqliteSink
from beadline.sinks.hbase.encode import encode
from beadline.sinks.redis.columns import binary
from beadline.testing.suite.target import QUERY, epoch_id, part_id

BYTES = [b"good", b"caf\xe9", None, b"", "é".encode()]


def texts(kind: Any = None) -> Any:
    """Strings as Spark hands them over, one of them cast from bytes without a look."""
    large = kind == pa.large_string()
    return pa.array(BYTES, pa.large_binary() if large else pa.binary()).view(kind or pa.string())


@pytest.mark.parametrize("kind", [pa.string(), pa.large_string()])
@pytest.mark.parametrize("name", ["sqlite", "memory"])
def test_a_byte_that_is_not_utf8_is_refused_at_prepare(
    tmp_path: Path, name: str, kind: Any
) -> None:
    sink: Sink[Any] = SqliteSink(tmp_path / "out.db", "t")
    if name == "memory":
        sink = MemorySink(str(tmp_path))
    batch = pa.record_batch({"id": pa.array(range(5)), "word": texts(kind)})
    sink.check(batch.schema, QUERY)
    with pytest.raises(RowsRefused, match=r"1 row\(s\)"):
        sink.prepare(iter([batch]), Part(part_id(0)))
    refused: list[tuple[list[int], str]] = []
    part = Part(
        part_id(0), refuse=lambda rows, why: refused.append((rows.column("id").to_pylist(), why))
    )
    found = sink.prepare(iter([batch]), part)
    assert [ids for ids, _ in refused] == [[1]]
    assert "UTF-8" in refused[0][1] or "bad text" in refused[0][1]
    assert found is not None
    prepared = Prepared(part.id, 4, found)
    assert set(sink.commit(epoch_id(0), [prepared]).outcomes.values()) == {Outcome.COMMITTED}


def test_dates_that_python_has_not_are_refused_by_the_reference_sink(tmp_path: Path) -> None:
    days = pa.array([0, 99_999_999], pa.int32()).cast(pa.date32())
    batch = pa.record_batch({"day": days})
    with pytest.raises(RowsRefused, match="years 1 to 9999"):
        MemorySink(str(tmp_path)).prepare(iter([batch]), Part(part_id(0)))


def test_redis_and_hbase_keep_the_bytes() -> None:
    """They write bytes, so that nothing has to be decoded at commit."""
    for kind in (pa.string(), pa.large_string()):
        assert binary(texts(kind)).to_pylist() == BYTES
        assert encode(texts(kind), "text").to_pylist() == BYTES
