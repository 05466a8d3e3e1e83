"""Dead-letter records without Spark: rows as JSON, columns, what a part may refuse, SQLite."""

from __future__ import annotations

import datetime as dt
import json
import sqlite3
from contextlib import closing
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from beadline import exactly_once
from beadline.dead_letter import RefusedRow, checksum, schema, table
from beadline.errors import BadQuery, BadSink, RowsRefused
from beadline.shared.row_json import row_texts
from beadline.sink import DEAD_LETTER_COLUMNS, Part
from beadline.sinks import ConsoleSink, MemorySink, SqliteSink
from beadline.sinks.sqlite import refused as _sqlite_refused
from beadline.spark import refusals
from beadline.spark.refusals import Refusals, RefusedAgain, keeping, parse
from beadline.testing.suite.target import QUERY, part_id

BERLIN = pa.timestamp("us", "Europe/Berlin")
ZONE = dt.timezone(dt.timedelta(hours=2))
NOON = dt.datetime(2024, 7, 1, 12, 0, 0, 5, tzinfo=ZONE)
NESTED = pa.struct([("list", pa.list_(BERLIN)), ("map", pa.map_(pa.int32(), pa.float32()))])
FAR = 10**18  # microseconds: a year that neither Python nor Arrow can write


def json_of(value: Any, kind: pa.DataType) -> Any:
    (text,) = row_texts(pa.record_batch([pa.array([value], kind)], names=["x"]))
    return json.loads(text, parse_constant=pytest.fail)["x"]


@pytest.mark.parametrize(
    ("kind", "value", "expected"),
    [
        (pa.int64(), 2**63 - 1, 2**63 - 1),
        (pa.bool_(), True, True),
        (pa.float64(), float("nan"), "NaN"),
        (pa.float32(), float("-inf"), "-Infinity"),
        (pa.float64(), 0.5, 0.5),
        (pa.string(), "ß 漢\n", "ß 漢\n"),
        (pa.binary(), b"\x00\xff", "AP8="),
        (pa.decimal128(38, 18), Decimal("1e-18"), "0.000000000000000001"),
        (pa.date32(), dt.date(2024, 2, 29), "2024-02-29"),
        (BERLIN, NOON, "2024-07-01T10:00:00.000005Z"),
        (pa.timestamp("us"), dt.datetime(1969, 1, 2, 3), "1969-01-02T03:00:00.000000"),
        (pa.duration("us"), dt.timedelta(hours=1), "1:00:00"),
        (pa.null(), None, None),
        (pa.list_(pa.int64()), [1, None], [1, None]),
        (pa.map_(pa.string(), pa.string()), [("a", "b")], {"a": "b"}),
        (pa.map_(pa.string(), pa.string()), [], {}),
        (
            NESTED,
            {"list": [NOON, None], "map": [(1, float("inf"))]},
            {"list": ["2024-07-01T10:00:00.000005Z", None], "map": {"1": "Infinity"}},
        ),
        (NESTED, None, None),
    ],
    ids=str,
)
def test_a_value_as_json(kind: pa.DataType, value: Any, expected: Any) -> None:
    assert json_of(value, kind) == expected


@pytest.mark.parametrize("kind", [BERLIN, pa.timestamp("us"), pa.date32()], ids=str)
def test_a_date_that_has_no_text_does_not_fail_the_query(kind: pa.DataType) -> None:
    number = pa.array([2**31 - 1], pa.int32()) if kind == pa.date32() else pa.array([FAR])
    (text,) = row_texts(pa.record_batch([number.cast(kind)], names=["x"]))
    assert str(number[0]) in json.loads(text)["x"]
    listed = pa.ListArray.from_arrays(pa.array([0, 1], pa.int32()), number.cast(kind))
    (text,) = row_texts(pa.record_batch([listed], names=["x"]))
    assert str(number[0]) in json.loads(text)["x"][0]


REFUSED = [
    RefusedRow("clean", 3, 'too "large"', '{"id": 1}'),
    RefusedRow("clean", 3, "odd", '{"id": null}'),
]


def test_the_columns_of_dead_letter_records() -> None:
    found = table(REFUSED, QUERY, 7, DEAD_LETTER_COLUMNS)
    assert found.schema.names == ["query", "sink", "epoch", "part", "reason", "row"]
    first = {"query": "suite", "sink": "clean", "epoch": 7, "part": 3}
    assert found.to_pylist()[0] == {**first, "reason": 'too "large"', "row": '{"id": 1}'}
    (value,) = table(REFUSED[:1], QUERY, 7, ("value",)).to_pylist()
    assert json.loads(value["value"]) == {**first, "reason": 'too "large"', "row": {"id": 1}}
    assert schema(("row", "epoch")) == pa.schema([("row", pa.string()), ("epoch", pa.int64())])
    for columns in (("row", "partition"), ()):
        with pytest.raises(BadSink, match="dead_letter_columns names"):
            schema(columns)


def test_the_checksum_is_of_the_rows_in_any_order() -> None:
    assert checksum(REFUSED) == checksum(REFUSED[::-1])
    other = [REFUSED[0], RefusedRow("clean", 3, "other words", '{"id": null}')]
    assert checksum(REFUSED) == checksum(other)
    assert checksum(REFUSED) != checksum([REFUSED[0], REFUSED[0]])
    assert checksum(REFUSED) == checksum(
        [REFUSED[0], RefusedRow("clean", 4, "odd", REFUSED[1].row)]
    )
    assert -(2**63) <= checksum(REFUSED * 999) < 2**63


def test_the_checksum_counts_equal_rows() -> None:
    """Combined by xor, two equal rows would be none, and any other pair the same."""
    one, other = REFUSED[:2]
    assert checksum([one, one]) != checksum([other, other])
    assert checksum([one, one]) != checksum([])
    assert checksum([one, one, other]) != checksum([other])


def batch_of(*texts: str) -> pa.RecordBatch:
    return pa.record_batch([pa.array(texts, pa.string())], names=["x"])


def test_refused_rows_travel_with_the_ack() -> None:
    part, found = keeping(Part(part_id(0)), Refusals)
    part.refuse(batch_of("a", "b"), "why")
    part.refuse(batch_of("c"), "why not")
    assert len(found) == 3
    rows = [(one.reason, json.loads(one.row)["x"]) for one in parse(found.to_text(), "s", 5)]
    assert rows == [("why", "a"), ("why", "b"), ("why not", "c")]
    assert parse(Refusals().to_text(), "s", 5) == []


def test_a_part_may_not_refuse_without_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(refusals, "REFUSED_BYTES_MAX", 1 << 20)
    part, _ = keeping(Part(part_id(0)), Refusals)
    with pytest.raises(RowsRefused, match=r"more than 1 MB of one part.*too wide"):
        part.refuse(batch_of("x" * (1 << 20)), "too wide")
    many = batch_of(*["x"] * 50_000)
    part.refuse(many, "many")
    with pytest.raises(RowsRefused, match="more than 1 MB"):
        part.refuse(many, "many")


def test_without_a_dead_letter_sink_and_in_one_a_refusal_stops() -> None:
    part, _ = keeping(Part(part_id(0)), None)
    with pytest.raises(RowsRefused, match=r"2 row.* why.*dead_letter=sink"):
        part.refuse(batch_of("a", "b"), "why")
    part, _ = keeping(Part(part_id(0)), RefusedAgain)
    with pytest.raises(RowsRefused, match=r"cannot take 2 refused.* either: why"):
        part.refuse(batch_of("a", "b"), "why")


def test_arguments_that_cannot_be_right() -> None:
    stream = exactly_once("frame", "job")  # type: ignore[arg-type]
    with pytest.raises(BadQuery, match=r"dead_letter= takes another beadline.sink.Sink, not str"):
        stream.to(MemorySink("a"), dead_letter="files")  # type: ignore[arg-type]
    with pytest.raises(BadQuery, match="not the same sink"):
        stream.to(MemorySink("a"), dead_letter=MemorySink("a"))
    named = stream.to(MemorySink("x"), name="a-dead-letter")
    with pytest.raises(BadQuery, match="two sinks named 'a-dead-letter'"):
        named.to(MemorySink("m"), name="a", dead_letter=ConsoleSink())


def test_names_do_not_hang_on_the_order_of_sinks() -> None:
    stream = exactly_once("frame", "job")  # type: ignore[arg-type]
    letters = MemorySink("letters")

    def names(*sinks: str) -> set[str]:
        found = stream
        for name in sinks:
            found = found.to(MemorySink(name), name=name, dead_letter=letters)
        return {output.name for output in found.outputs if output.sink == letters}

    assert names("a", "b") == names("b", "a") == {"a-dead-letter", "b-dead-letter"}
    (long,) = names("x" * 60)
    assert len(long) == 60


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "shop.db"
    with closing(sqlite3.connect(path)) as database:
        database.execute(
            "CREATE TABLE t (id INTEGER, Word TEXT NOT NULL, x REAL NOT NULL, at TEXT)"
        )
    return path


SCHEMA = pa.schema(
    [("id", pa.int64()), ("word", pa.string()), ("x", pa.float64()), ("at", pa.timestamp("us"))]
)
LAST = 253_402_300_799_999_999  # the last microsecond of the year 9999


def refused_by_sqlite(sink: SqliteSink, *rows: tuple[Any, ...]) -> tuple[int, dict[Any, str]]:
    """Prepare the rows; return how many were staged, and by their id why others were not."""
    found: dict[Any, str] = {}

    def refuse(batch: pa.RecordBatch, reason: str) -> None:
        for row in batch.column("id").to_pylist():
            assert row not in found, "refused twice"
            found[row] = reason

    columns = [pa.array(values) for values in zip(*rows, strict=True)]
    columns = [column.cast(kind) for column, kind in zip(columns, SCHEMA.types, strict=True)]
    batch = pa.record_batch(columns, schema=SCHEMA)
    staged = sink.prepare(iter([batch, batch.slice(0, 0)]), Part(part_id(0), refuse=refuse))
    return (0 if staged is None else staged.rows), found


def test_sqlite_refuses_what_its_table_will_not_take(path: Path) -> None:
    sink = SqliteSink(path, "t")
    rows = (
        (None, "a", 1.0, None),
        (1, None, 1.0, 0),
        (2, "b", float("nan"), 0),
        (3, None, float("nan"), FAR),
        (4, "c", 1.0, LAST),
        (5, "d", 1.0, LAST + 1),
        (6, "e", 1.0, -719_528 * 86_400_000_000),
        (7, "f", 1.0, -719_528 * 86_400_000_000 - 1),
    )
    staged, found = refused_by_sqlite(sink, *rows)
    assert staged == 3
    word, x = (f"null in column {n!r}, which is part of the key or NOT NULL" for n in ("word", "x"))
    far = "column 'at' is outside the years 0 to 9999, all that ISO text can express"
    assert found == {1: word, 2: x, 3: word, 5: far, 7: far}


def test_sqlite_stages_nothing_if_it_refuses_everything(path: Path) -> None:
    sink = SqliteSink(path, "t")
    assert refused_by_sqlite(sink, (1, None, 1.0, 0))[0] == 0
    assert list(sink.in_doubt(QUERY, "under-test")) == []


def test_sqlite_refuses_a_null_in_the_key_of_a_table_to_come(tmp_path: Path) -> None:
    sink = SqliteSink(tmp_path / "new.db", "t", mode="upsert", key="word")
    staged, found = refused_by_sqlite(sink, (1, None, 1.0, 0), (2, "a", float("nan"), 0))
    assert (staged, list(found)) == (1, [1])


def test_sqlite_refuses_a_row_above_its_limit(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_sqlite_refused, "_ROW_BYTES_MAX", 1000)
    rows = ((1, "x" * 960, 1.0, 0), (2, "x" * 961, 1.0, 0), (3, "x", 1.0, 0))
    staged, found = refused_by_sqlite(SqliteSink(path, "t"), *rows)
    assert (staged, found) == (2, {2: "it is larger than SQLite's limit for a row, 1,000 bytes"})
