"""``HBaseSink``: modes, values and their bytes, large epochs, and a query on Spark."""

from __future__ import annotations

import datetime
import json
import struct
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import DataFrame, SparkSession

from beadline import Stream, exactly_once
from beadline.sink import Outcome, Part, Prepared
from beadline.sinks import FileSink, HBaseSink
from beadline.sinks.hbase.client import put, row_of
from beadline.sinks.hbase.encode import Encoding, encode
from beadline.testing import CRASH, run_epochs
from beadline.testing.epochs import Script
from beadline.testing.servers import HBaseServer
from beadline.testing.suite.target import QUERY, part_id
from tests.servers.hbase_orders import Orders, decided

UTC = datetime.timezone.utc
AT = datetime.datetime(2024, 2, 29, 12, 30, 0, 250_000, tzinfo=UTC)
AT_US = int(AT.timestamp()) * 1_000_000 + 250_000
VALUES: list[tuple[pa.DataType, Any, bytes, bytes]] = [
    (pa.int8(), -2, b"-2", b"\xfe"),
    (pa.int16(), 258, b"258", b"\x01\x02"),
    (pa.int32(), -1, b"-1", b"\xff" * 4),
    (pa.int64(), 2**53 + 1, b"9007199254740993", struct.pack(">q", 2**53 + 1)),
    (pa.uint8(), 255, b"255", b"\xff"),
    (pa.float32(), 0.5, b"0.5", struct.pack(">f", 0.5)),
    (pa.float64(), 0.1, b"0.1", struct.pack(">d", 0.1)),
    (pa.bool_(), True, b"true", b"\xff"),
    (pa.bool_(), False, b"false", b"\x00"),
    (pa.string(), "ß", "ß".encode(), "ß".encode()),
    (pa.large_string(), "", b"", b""),
    (pa.binary(), b"\0\xff", b"\0\xff", b"\0\xff"),
    (pa.binary(2), b"ab", b"ab", b"ab"),
    (pa.date32(), datetime.date(1970, 1, 3), b"1970-01-03", b"\0\0\0\x02"),
    (pa.date64(), datetime.date(1970, 1, 3), b"1970-01-03", b"\0\0\0\x02"),
    (pa.timestamp("us", "UTC"), AT, b"2024-02-29T12:30:00.250000Z", struct.pack(">q", AT_US)),
    (
        pa.timestamp("us", "Asia/Tokyo"),
        AT,
        b"2024-02-29T12:30:00.250000Z",
        struct.pack(">q", AT_US),
    ),
    (
        pa.timestamp("ms"),
        AT.replace(tzinfo=None),
        b"2024-02-29T12:30:00.250",
        struct.pack(">q", AT_US),
    ),
    (pa.decimal128(10, 2), Decimal("-1.28"), b"-1.28", b"\0\0\0\x02\x80"),
    (pa.decimal128(10, 2), Decimal("1.28"), b"1.28", b"\0\0\0\x02\x00\x80"),
    (pa.decimal128(20, 10), Decimal("0E-10"), b"0.0000000000", b"\0\0\0\x0a\x00"),
]


@pytest.mark.parametrize(("type_", "value", "text", "raw"), VALUES)
def test_values_as_text_and_as_bytes(
    type_: pa.DataType, value: Any, text: bytes, raw: bytes
) -> None:
    """Bytes as HBase's ``Bytes.toBytes`` makes them; a null stays one, in any place."""
    forms: list[tuple[Encoding, bytes]] = [("text", text), ("bytes", raw)]
    column = pa.array([None, value, None], type_)
    for encoding, wanted in forms:
        assert encode(column, encoding).to_pylist() == [None, wanted, None]
        assert encode(column.slice(1), encoding).to_pylist() == [wanted, None]
        assert encode(pa.chunked_array([column]), encoding).to_pylist() == [None, wanted, None]


def test_columns_go_where_they_are_sent(hbase_server: HBaseServer, tmp_path: Path) -> None:
    columns = {"a": 'g:it\'s "odd": ß', "id": "f:key"}
    orders = Orders(hbase_server, tmp_path, family=None, columns=columns).opened()
    assert orders.sink.check(orders.schema, QUERY).columns == ("id", "a")
    orders.commit(0, [("x", "1", "not sent"), ("nulls", None, None)])
    assert hbase_server.rows(orders.table) == {
        b"x": {'g:it\'s "odd": ß': b"1", "f:key": b"x"},
        b"nulls": {"f:key": b"nulls"},
    }


def test_a_null_removes_its_cell_and_other_cells_stay(
    hbase_server: HBaseServer, tmp_path: Path
) -> None:
    orders = Orders(hbase_server, tmp_path, family=None, columns={"a": "f:a", "b": "f:b"}).opened()
    orders.commit(0, [("x", "1", "1"), ("all", "1", "1"), ("empty", "", "")])
    with orders.client() as client:
        client.mutate(orders.table, [row_of(b"x", [put(b"g:theirs", b"1")])], 1)
    orders.commit(1, [("x", None, "2"), ("all", None, None), ("empty", None, "")])
    assert orders.shows() == {"x": {"b": "2", "g:theirs": "1"}, "empty": {"b": ""}}


def test_a_deleted_row_goes_with_all_its_families(
    hbase_server: HBaseServer, tmp_path: Path
) -> None:
    orders = Orders(hbase_server, tmp_path, deleted="gone").opened()
    orders.commit(0, [("x", "1", "1", False), ("y", "1", "1", False)])
    with orders.client() as client:
        client.mutate(orders.table, [row_of(b"x", [put(b"g:theirs", b"1")])], 1)
    orders.commit(1, [("x", None, None, True), ("never there", None, None, True)])
    assert orders.shows() == {"y": {"a": "1", "b": "1"}}


def test_a_large_epoch_over_several_connections(hbase_server: HBaseServer, tmp_path: Path) -> None:
    """Keys that come again in other parts are settled in their order, whichever task sends them."""
    orders = Orders(hbase_server, tmp_path, connections=3, deleted="gone").opened()
    rows = [(str(n % 7_000), str(n), None if n % 3 else "b", n % 11 == 0) for n in range(20_000)]
    shares = [rows[begin : begin + 5_000] for begin in range(0, len(rows), 5_000)]
    parts = orders.prepare(0, *shares)
    result = orders.sink.commit(decided(0), parts[::-1])
    assert set(result.outcomes.values()) == {Outcome.COMMITTED}
    last = {key: (a, b, gone) for key, a, b, gone in rows}
    wanted = {
        key: {"a": a, **({"b": b} if b else {})} for key, (a, b, gone) in last.items() if not gone
    }
    assert orders.shows() == wanted


def test_values_larger_than_a_call(hbase_server: HBaseServer, tmp_path: Path) -> None:
    orders = Orders(hbase_server, tmp_path).opened()
    rows = [(str(n), "a" * 700_000, "b" * 900_000) for n in range(6)]
    orders.commit(0, rows)
    assert orders.shows() == {key: {"a": a, "b": b} for key, a, b in rows}


def test_numbers_as_keys(hbase_server: HBaseServer, tmp_path: Path) -> None:
    orders = Orders(hbase_server, tmp_path, encoding="bytes")
    schema = pa.schema([("id", pa.int64()), ("n", pa.int32())])
    orders.sink.check(schema, QUERY)
    orders.sink.open(QUERY, "under-test")
    rows = pa.RecordBatch.from_pylist([{"id": n, "n": -n} for n in (1, 2, 1)], schema=schema)
    part = Part(part_id(0))
    staged = orders.sink.prepare(iter([rows]), part)
    assert staged is not None
    orders.sink.commit(decided(0), [Prepared(part.id, 3, staged)])
    assert hbase_server.rows(orders.table) == {
        struct.pack(">q", n): {"f:n": struct.pack(">i", -n)} for n in (1, 2)
    }


def test_a_query_with_dead_letters_and_deaths(
    spark: SparkSession, hbase_server: HBaseServer, tmp_path: Path
) -> None:
    """The whole way, on Spark: each epoch dies once, and each row takes effect once."""
    orders = Orders(hbase_server, tmp_path, deleted="gone")
    dead_letter = FileSink(str(tmp_path / "dead-letter"))

    def build(frame: DataFrame) -> Stream:
        return exactly_once(frame, "orders").to(orders.sink, dead_letter=dead_letter)

    def row(id_: str | None, a: str, gone: bool = False) -> dict[str, Any]:
        return {"id": id_, "a": a, "b": None, "gone": gone}

    script: Script = [
        CRASH("decide.before"),
        [row("x", "1"), row("y", "1"), row("", "refused")],
        CRASH("ledger.before"),
        [row("x", "2", gone=True), row("y", "2"), row(None, "refused")],
        CRASH("commit.after"),
        [row("x", "3"), row("z", "3")],
    ]
    schema = "id string, a string, b string, gone boolean"
    run_epochs(spark, build, script, tmp_path, schema=schema, parts=2)
    assert orders.shows() == {"x": {"a": "3"}, "y": {"a": "2"}, "z": {"a": "3"}}
    found = [json.loads(r["row"])["a"] for r in spark.read.parquet(dead_letter.path).collect()]
    assert found == ["refused", "refused"]


def test_the_repr_of_the_sink_is_its_name_only() -> None:
    sink = HBaseSink("h", table="shop:orders", row_key="id", family="f", staging="/tmp")
    assert repr(sink) == "HBaseSink(hbase-shop-orders)"
