"""What ``HBaseSink`` refuses: at the start with what to do, rows before anything is decided."""

from __future__ import annotations

import datetime
import re
import time
import uuid
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from beadline.errors import BadSink, RowsRefused
from beadline.sink import Guarantee, Part, Seen
from beadline.sinks import HBaseSink
from beadline.sinks.hbase.ledger import HBaseLedger
from beadline.testing.servers import HBaseServer
from beadline.testing.servers.ports import free_ports
from beadline.testing.suite.target import QUERY, part_id
from tests.servers.hbase_orders import SCHEMA, Orders, RefusedRows

GIVEN: dict[str, Any] = {"table": "t", "row_key": "id", "family": "f", "staging": "/tmp"}


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"table": "a b"}, "cannot name the table"),
        ({"table": "shop:_beadline_ledger"}, "cannot name the table"),
        ({"family": None}, "give family='f'"),
        ({"columns": {"a": "f:a"}}, "and not both"),
        ({"encoding": "json"}, "is not 'text' or 'bytes'"),
        ({"timeout_s": 0}, "must be above 0"),
        ({"connections": 0}, "must be above 0"),
        ({"deleted": "id"}, "cannot mark deletes"),
        ({"staging": "hdfs://there/staging"}, "not a local folder"),
    ],
)
def test_wrong_settings(wrong: dict[str, Any], said: str) -> None:
    with pytest.raises(BadSink, match=re.escape(said)):
        HBaseSink("localhost", **{**GIVEN, **wrong})


def test_no_host() -> None:
    with pytest.raises(BadSink, match="not the name of a Thrift server"):
        HBaseSink("", **GIVEN)


def refusal(orders: Orders, schema: pa.Schema = SCHEMA) -> str:
    with pytest.raises(BadSink) as caught:
        orders.sink.check(schema, QUERY)
    return str(caught.value)


@pytest.mark.parametrize(
    ("settings", "schema", "said"),
    [
        ({"row_key": "nobody"}, SCHEMA, "column 'nobody' is required, but the row has no such"),
        ({"deleted": "a"}, SCHEMA, "deleted='a' is string; it must be boolean"),
        ({"family": "z"}, SCHEMA, "has no column family 'z'; it has f, g"),
        ({"family": None, "columns": {"x": "f:x"}}, SCHEMA, "column 'x' is required"),
        ({"family": None, "columns": {"a": "f"}}, SCHEMA, "not 'family:qualifier'"),
        ({"family": None, "columns": {"a": "f:"}}, SCHEMA, "not 'family:qualifier'"),
        ({"family": None, "columns": {"a": "f:x", "b": "f:x"}}, SCHEMA, "to one cell, f:x"),
        ({}, pa.schema([("id", pa.string())]), "no column besides the row key"),
        ({}, SCHEMA.append(pa.field("l", pa.list_(pa.int32()))), "'l' is list<"),
        ({}, SCHEMA.append(pa.field("a", pa.string())), "has 2 columns of that name"),
    ],
)
def test_columns_that_do_not_fit(
    hbase_server: HBaseServer,
    tmp_path: Path,
    settings: dict[str, Any],
    schema: pa.Schema,
    said: str,
) -> None:
    message = refusal(Orders(hbase_server, tmp_path, **settings), schema)
    assert said in message
    assert "Nothing was written" in message


def test_a_table_that_is_missing_or_disabled(hbase_server: HBaseServer, tmp_path: Path) -> None:
    orders = Orders(hbase_server, tmp_path)
    with closing(hbase_server.connect()) as connection:
        connection.disable_table(orders.table)
        assert f"enable '{orders.table}'" in refusal(orders)
        connection.delete_table(orders.table)
    assert f"create '{orders.table}', 'f'" in refusal(orders)


def test_no_server(tmp_path: Path) -> None:
    settings = {**GIVEN, "staging": tmp_path, "port": free_ports(1)[0], "timeout_s": 2}
    sink = HBaseSink("127.0.0.1", **settings)
    for call in (lambda: sink.check(SCHEMA, QUERY), lambda: sink.open(QUERY, "under-test")):
        with pytest.raises(BadSink, match=r"does not answer.*hbase thrift start"):
            call()
    with pytest.raises(BadSink, match="does not answer"):
        sink.last_seen(QUERY, "under-test")


def test_a_staging_folder_that_cannot_be_written(hbase_server: HBaseServer, tmp_path: Path) -> None:
    (tmp_path / "staging").write_text("a file")
    assert "no files can be made in staging=" in refusal(Orders(hbase_server, tmp_path))


def test_a_ledger_table_of_another_application_is_refused(
    hbase_server: HBaseServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    theirs = f"theirs_{tmp_path.name}"
    hbase_server.create_table(theirs, "x")
    monkeypatch.setattr(HBaseLedger, "table", theirs)
    assert f"'{theirs}' has no column family 'f'" in refusal(Orders(hbase_server, tmp_path))


def test_a_ledger_that_is_disabled(
    hbase_server: HBaseServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At the start, and where it was disabled just after the look."""
    ledger = f"ledger_{uuid.uuid4().hex[:8]}"
    monkeypatch.setattr(HBaseLedger, "table", ledger)
    orders = Orders(hbase_server, tmp_path).opened()
    with closing(hbase_server.connect()) as connection:
        connection.disable_table(ledger)
    message = refusal(orders)
    assert f"enable '{ledger}'" in message
    assert "Nothing was written" in message
    with pytest.raises(BadSink, match=rf"the ledger table '{ledger}' cannot be read.*NotEnabled"):
        orders.sink.last_seen(QUERY, "under-test")


def test_many_queries_that_start_at_once_make_one_ledger(
    hbase_server: HBaseServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """To the others, the table that one of them is making is disabled for a moment."""
    monkeypatch.setattr(HBaseLedger, "table", f"ledger_{uuid.uuid4().hex[:8]}")
    orders = Orders(hbase_server, tmp_path)

    def start(number: int) -> Seen | None:
        time.sleep(number * 0.05)
        query = replace(QUERY, name=f"{QUERY.name}-{number}")
        orders.sink.check(SCHEMA, query)
        seen = orders.sink.last_seen(query, "under-test")
        orders.sink.open(query, "under-test")
        return seen

    with ThreadPoolExecutor(12) as pool:
        assert list(pool.map(start, range(12))) == [None] * 12


def test_what_is_promised(hbase_server: HBaseServer, tmp_path: Path) -> None:
    """Where nothing is ever deleted, nothing can come back."""
    orders = Orders(hbase_server, tmp_path)
    found = orders.sink.check(SCHEMA, QUERY)
    assert found.guarantee is Guarantee.EXACTLY_ONCE
    assert found.shared_disk
    assert not found.atomic
    assert "_beadline_ledger" in found.start_over
    assert str(tmp_path / "staging") in found.start_over
    assert "hbase.wal.hsync" in found.sentence
    assert "purge.deletes" in found.sentence
    assert "new cells beside old ones" in found.sentence
    whole = pa.schema([field.with_nullable(False) for field in SCHEMA])
    without = orders.sink.check(whole, QUERY).sentence
    assert "purge.deletes" not in without
    assert "beside old ones" not in without


def test_rows_that_hbase_cannot_take(hbase_server: HBaseServer, tmp_path: Path) -> None:
    orders = Orders(hbase_server, tmp_path, deleted="gone", cell_bytes_max=100_000).opened()
    refused: RefusedRows = []
    key_max = 32_767 - 16 - len(orders.table)
    large = "x" * 100_000
    rows = [
        ("fine", "1", "1", False),
        (None, "null key", "1", False),
        ("", "empty key", "1", False),
        ("k" * key_max, "longest", "1", False),
        ("k" * (key_max + 1), "too long", "1", False),
        ("m", "1", "null mark", None),
        ("large", "1", large, False),
        ("deleted", "1", large, True),
    ]
    parts = orders.prepare(
        0, rows, refuse=lambda batch, why: refused.append((batch.to_pylist(), why))
    )
    assert [(len(found), why.split(",")[0].split(" (")[0]) for found, why in refused] == [
        (1, "null in column 'gone'"),
        (1, "null in column 'id'"),
        (1, "column 'id' is empty"),
        (1, f"column 'id' makes a row key of more than {key_max // 1000}"),
        (1, "column 'b' makes a cell of more than 100"),
    ]
    orders.try_commit(0, parts)
    assert sorted(orders.shows()) == ["fine", "k" * key_max]


def test_the_largest_cell_is_taken(hbase_server: HBaseServer, tmp_path: Path) -> None:
    """HBase's own limit, as it comes, and ours just below it."""
    orders = Orders(hbase_server, tmp_path).opened()
    largest = "x" * (10 * 1024 * 1024 - 64 - len("k") - len("f:a"))
    orders.commit(0, [("k", largest, None)])
    assert orders.shows() == {"k": {"a": largest}}
    with pytest.raises(RowsRefused, match="column 'a' makes a cell of more than 10,485,760"):
        orders.prepare(1, [("k", largest + "x", None)])


def test_without_a_dead_letter_sink_nothing_is_staged(
    hbase_server: HBaseServer, tmp_path: Path
) -> None:
    orders = Orders(hbase_server, tmp_path).opened()
    with pytest.raises(RowsRefused, match="null in column 'id', which is the row key"):
        orders.prepare(0, [("x", "1", "1"), (None, "1", "1")])
    assert list(orders.sink.in_doubt(QUERY, "under-test")) == []


@pytest.mark.parametrize("encoding", ["text", "bytes"])
def test_dates_that_text_cannot_say(tmp_path: Path, encoding: str) -> None:
    sink = HBaseSink("localhost", **{**GIVEN, "staging": tmp_path, "encoding": encoding})
    schema = pa.schema([("id", pa.int32()), ("day", pa.date32()), ("at", pa.timestamp("us"))])
    fine = datetime.datetime(9999, 12, 31, 23, 59, 59, 999_999)
    rows = pa.RecordBatch.from_arrays(
        [
            pa.array([1, 2, 3, 4], pa.int32()),
            pa.array([0, 2_932_896, 2_932_897, None], pa.int32()).cast(pa.date32()),
            pa.array([None, fine, None, None], pa.timestamp("us")),
        ],
        schema=schema,
    )
    refused: list[int] = []
    part = Part(
        part_id(0), refuse=lambda batch, why: refused.extend(batch.column("id").to_pylist())
    )
    staged = sink.prepare(iter([rows]), part)
    assert staged is not None
    assert refused == ([3] if encoding == "text" else [])
