"""``PostgresSink``: values arrive as they were sent, and rows that cannot be taken are refused."""

from __future__ import annotations

import datetime
import uuid
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest

from beadline.errors import RowsRefused
from beadline.sink import Part
from beadline.testing.servers import PostgresServer
from tests.servers.postgres_target import Orders, part_id

WAYS = ("prepared", "staged")
UTC = datetime.timezone.utc
ID = uuid.UUID("0f0e0d0c-0b0a-0908-0706-050403020100")
YEAR = datetime.datetime(2024, 1, 1, tzinfo=UTC)
NOON = datetime.datetime(2024, 2, 29, 12, 0, 0, 1)
# Declared type, type of the rows, values, and what is read back if it looks different.
TYPES: list[tuple[str, Any, list[Any], list[Any] | None]] = [
    ("smallint", pa.int8(), [-128, 127], None),
    ("smallint", pa.int64(), [-32768, 32767], None),
    ("integer", pa.int64(), [-(2**31), 2**31 - 1], None),
    ("integer", pa.uint16(), [0, 65535], None),
    ("bigint", pa.int64(), [-(2**63), 2**63 - 1], None),
    ("bigint", pa.uint64(), [0, 2**63 - 1], None),
    ("real", pa.float32(), [0.5, float("inf")], None),
    ("double precision", pa.float64(), [0.1, -1e300], None),
    ("double precision", pa.int32(), [1, -7], [1.0, -7.0]),
    ("numeric", pa.decimal128(38, 18), [Decimal("-1.5"), Decimal("1e-18")], None),
    ("numeric(12, 3)", pa.decimal128(20, 2), [Decimal("123456789.12"), Decimal("-0.01")], None),
    ("numeric(30, 0)", pa.int64(), [2**62, -5], None),
    ("numeric(20, 0)", pa.uint64(), [2**64 - 1], None),
    ("boolean", pa.bool_(), [True, False], None),
    ("text", pa.string(), ["", "ß ö 漢 🧵", "a\tb\n\\N", "%s"], None),
    ("text", pa.large_string(), ["long"], None),
    ("varchar(5)", pa.string(), ["äöüßé", ""], None),
    ("char(3)", pa.string(), ["a"], ["a  "]),
    ("bytea", pa.binary(), [b"\x00\xff", b""], None),
    ("bytea", pa.binary(2), [b"\x00\xff"], None),
    ("date", pa.date32(), [datetime.date(1, 1, 1), datetime.date(9999, 12, 31)], None),
    ("timestamp", pa.timestamp("us"), [NOON, datetime.datetime(1969, 12, 31, 23, 59)], None),
    ("timestamptz", pa.timestamp("us", "UTC"), [NOON.replace(tzinfo=UTC)], None),
    ("timestamptz", pa.timestamp("ms", "Asia/Tokyo"), [YEAR], None),
    ("time", pa.time64("us"), [datetime.time(23, 59, 59, 1)], None),
    ("uuid", pa.string(), [str(ID), str(ID).upper().replace("-", "")], [ID, ID]),
    ("uuid", pa.binary(16), [ID.bytes], [ID]),
    ("json", pa.string(), ['{"a": [1, null]}', '"ü"'], [{"a": [1, None]}, "ü"]),
    ("jsonb", pa.string(), ['{"a": [1, null]}', '"ü"'], [{"a": [1, None]}, "ü"]),
    ("integer[]", pa.list_(pa.int32()), [[1, None], []], None),
    ("text[]", pa.list_(pa.string()), [["a", ""], [None]], None),
    ("text", pa.null(), [None], None),
]  # fmt: skip


@pytest.mark.parametrize("way", WAYS)
def test_values_arrive_as_they_were_sent(postgres_server: PostgresServer, way: str) -> None:
    """One table with all of them; every column also holds a null."""
    columns = ", ".join(f'"c {n}" {declared}' for n, (declared, *_) in enumerate(TYPES))
    orders = Orders(postgres_server, f"n integer, {columns}", how=way)
    count = max(len(values) for _, _, values, _ in TYPES) + 1
    arrays = {"n": pa.array(range(count), pa.int32())}
    wanted: list[list[Any]] = []
    for number, (_, type_, values, read) in enumerate(TYPES):
        missing: list[Any] = [None] * (count - len(values))
        arrays[f"c {number}"] = pa.array([*values, *missing], type_)
        wanted.append([*(values if read is None else read), *missing])
    rows = pa.table(arrays)
    orders.start(rows)
    orders.epoch(0, rows)
    found = orders.run(f'TABLE "{orders.schema}".orders ORDER BY n')
    for number, (declared, type_, *_) in enumerate(TYPES):
        assert [row[number + 1] for row in found] == wanted[number], f"{declared} from {type_}"
    assert orders.refused.rows == []


def test_enumerations_domains_and_collations(postgres_server: PostgresServer) -> None:
    orders = Orders(postgres_server, "")
    place = f'"{orders.schema}"'
    orders.run(f"CREATE TYPE {place}.mood AS ENUM ('good', 'it''s bad')")
    orders.run(f"CREATE DOMAIN {place}.code AS varchar(3) CHECK (VALUE ~ '^[a-z]+$')")
    orders.run(
        f"CREATE TABLE {place}.orders (mood {place}.mood, code {place}.code, "
        'name text COLLATE "POSIX" PRIMARY KEY)'
    )
    rows = pa.table(
        {
            "mood": ["good", "it's bad", "ugly", None],
            "code": ["abc", None, "abc", "abcd"],
            "name": ["a", "b", "c", "d"],
        }
    )
    orders.start(rows)
    orders.epoch(0, rows)
    assert orders.rows("name, mood, code") == [("a", "good", "abc"), ("b", "it's bad", None)]
    assert [row["name"] for row in orders.refused.rows] == ["c", "d"]
    odd = pa.table({"mood": ["good"], "code": ["A"], "name": ["e"]})
    assert orders.try_prepare(odd, part_id(1)) is None
    assert "'code': value for domain" in orders.refused.reasons[-1]
    assert orders.leftovers() == []


# Declared type, type of the rows, a value that fits, one that does not, and a word of the reason.
MISFITS: list[tuple[str, Any, Any, Any, str]] = [
    ("integer", pa.int64(), 2**31 - 1, 2**31, "integer"),
    ("smallint", pa.int32(), -5, -40_000, "smallint"),
    ("bigint", pa.uint64(), 5, 2**63, "bigint"),
    ("text", pa.string(), "a", "a\0b", "NUL"),
    ("varchar(3)", pa.string(), "äöü", "äöüß", "character varying"),
    ("jsonb", pa.string(), "1", '"\0"', "NUL"),
    ("numeric(5, 2)", pa.decimal128(12, 2), Decimal("999.99"), Decimal("-1000.00"), "digits"),
    ("numeric(5, 2)", pa.int64(), 999, 1000, "digits"),
    ("uuid", pa.string(), str(ID), "not-a-uuid", "UUID"),
    ("bigint NOT NULL", pa.int64(), 1, None, "NOT NULL"),
    ("date", pa.date32(), 0, -3_000_000, "date"),
    ("timestamp", pa.timestamp("us"), 0, -(2**62), "4714 BC"),
    ("timestamptz", pa.timestamp("s", "UTC"), 0, 2**50, "294276 AD"),
]


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("misfit", MISFITS, ids=lambda misfit: misfit[0])
def test_what_does_not_fit_is_refused(
    postgres_server: PostgresServer, misfit: tuple[str, Any, Any, Any, str], way: str
) -> None:
    declared, type_, good, bad, reason = misfit
    orders = Orders(postgres_server, f"id bigint, v {declared}", how=way)
    rows = pa.table({"id": range(5), "v": pa.array([good, bad, good, bad, good], type_)})
    orders.start(rows)
    orders.epoch(0, rows)
    assert [row[0] for row in orders.rows("id")] == [0, 2, 4]
    assert [row["id"] for row in _ids(orders)] == [1, 3]
    assert "'v'" in orders.refused.reasons[0]
    assert reason in orders.refused.reasons[0]
    with pytest.raises(RowsRefused, match="dead_letter"):
        orders.sink.prepare(iter(rows.to_batches()), Part(part_id(1)))
    assert orders.leftovers() == []


def _ids(orders: Orders) -> list[dict[str, Any]]:
    return orders.refused.rows


def test_a_part_of_refused_rows_only_is_none(postgres_server: PostgresServer) -> None:
    for way in WAYS:
        orders = Orders(postgres_server, "id smallint", how=way)
        rows = pa.table({"id": [10**6] * 7})
        orders.start(rows)
        assert orders.try_prepare(rows, part_id(0)) is None
        assert len(orders.refused.rows) == 7
        assert orders.leftovers() == []


def test_null_in_a_key_is_refused(postgres_server: PostgresServer) -> None:
    for mode in ("upsert", "add"):
        orders = Orders(postgres_server, "id bigint UNIQUE, n bigint", mode=mode, key="id")
        rows = pa.table({"id": [1, None], "n": [1, 2]})
        orders.start(rows)
        orders.epoch(0, rows)
        assert orders.rows() == [(1, 1)]
        assert orders.refused.rows == [{"id": None, "n": 2}]
