"""Values in ``MySqlSink``: what arrives is what was sent, and what cannot is refused by row."""

from __future__ import annotations

import datetime as dt
import json
from collections.abc import Iterator
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest

from beadline.errors import RowsRefused
from beadline.sink import Part, Prepared
from beadline.sinks.mysql.loading import Loader
from beadline.spark.refusals import Refusals
from beadline.testing.servers import MariaDbServer
from tests.servers.mysql_tables import Table

ODD = [
    "", " ", "NULL", "\\N", "\\", "'", '"', "`", "%s", "%", "a\tb", "a\nb", "\r\n", "\0", "\x1a",
    "\\t", "\\0", "a\\'b", "--", "ß ö 漢 🧵", "\b", "trailing\\",
]  # fmt: skip


@pytest.fixture(params=[True, False], ids=["LOAD DATA", "INSERT"])
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> bool:
    monkeypatch.setattr(Loader, "local_allowed", request.param)
    return bool(request.param)


def test_every_odd_value_arrives(mariadb_server: MariaDbServer, way: bool) -> None:
    table = Table(
        mariadb_server, "id INT, w LONGTEXT CHARACTER SET utf8mb4, b LONGBLOB, v VARBINARY(99)"
    )
    binary = [bytes(range(256)), b"", b"\\", b"'", b"\t\n\0", b"\xff\xfe", None]
    rows: list[tuple[Any, ...]] = [
        (i, word, binary[i % len(binary)], b"\x00\x01") for i, word in enumerate(ODD)
    ]
    rows.append((99, None, None, None))
    given = pa.table(
        {
            "id": pa.array([row[0] for row in rows], pa.int32()),
            "w": pa.array([row[1] for row in rows]),
            "b": pa.array([row[2] for row in rows], pa.binary()),
            "v": pa.array([row[3] for row in rows], pa.large_binary()),
        }
    )
    table.write(given.slice(0, 5), given.slice(5))  # sliced arrays begin in mid-buffer
    assert table.rows() == sorted(rows, key=repr)


def test_every_type_arrives(mariadb_server: MariaDbServer, way: bool) -> None:
    table = Table(
        mariadb_server,
        "i8 TINYINT, u32 INT UNSIGNED, i64 BIGINT, f32 FLOAT, f32d DOUBLE, f64 DOUBLE,"
        " flag BOOLEAN, d DECIMAL(38,18), tiny DECIMAL(20,12), day DATE, at DATETIME(6),"
        " ts TIMESTAMP(6) NULL, wall DATETIME(6), ms DATETIME(3), raw BINARY(3),"
        " nothing VARCHAR(9)",
    )
    at = dt.datetime(2024, 2, 29, 23, 59, 59, 999999)
    utc = at.replace(tzinfo=dt.timezone.utc)
    second = {"at": dt.datetime(1, 1, 1), "day": dt.date(9999, 12, 31)}
    values: dict[str, tuple[Any, Any]] = {
        "i8": (pa.int8(), [-128, 127]),
        "u32": (pa.uint32(), [2**32 - 1, 0]),
        "i64": (pa.int64(), [-(2**63), 2**63 - 1]),
        "f32": (pa.float32(), [0.5, -1.25]),
        "f32d": (pa.float32(), [0.5, 0.10000000149011612]),
        "f64": (pa.float64(), [5e-324, -1.7976931348623157e308]),
        "flag": (pa.bool_(), [True, False]),
        "d": (pa.decimal128(38, 18), [Decimal("-1.000000000000000001"), Decimal(10) ** 19]),
        "tiny": (pa.decimal128(20, 12), [Decimal("0.000000000001"), Decimal("-12.5")]),
        "day": (pa.date32(), [dt.date(1, 1, 1), second["day"]]),
        "at": (pa.timestamp("us", tz="Europe/Berlin"), [utc, second["at"]]),
        "ts": (pa.timestamp("us", tz="UTC"), [utc, dt.datetime(1970, 1, 1, 0, 0, 1)]),
        "wall": (pa.timestamp("us"), [at, None]),
        "ms": (pa.timestamp("ns"), [dt.datetime(2024, 1, 1, 0, 0, 0, 123000), None]),
        "raw": (pa.binary(3), [b"\0ab", b"abc"]),
        "nothing": (pa.null(), [None, None]),
    }
    arrays = {name: pa.array(found, type_) for name, (type_, found) in values.items()}
    table.write(pa.table(arrays))
    plain = [
        tuple(v.replace(tzinfo=None) if isinstance(v, dt.datetime) else v for v in row)
        for row in zip(*(found for _, found in values.values()), strict=True)
    ]
    assert table.rows(", ".join(values)) == sorted(plain, key=repr)


def test_the_ends_of_a_float(mariadb_server: MariaDbServer, way: bool) -> None:
    """In its shortest text, 3.4028235e38, the largest is beyond what FLOAT takes."""
    largest, smallest = (2 - 2**-23) * 2.0**127, 2.0**-149
    values = [largest, -largest, smallest, 0.10000000149011612, 16777215.0]
    table = Table(mariadb_server, "id INT, f FLOAT")
    ids = pa.array(range(len(values)), pa.int32())
    table.write(pa.table({"id": ids, "f": pa.array(values, pa.float32())}))
    assert table.rows("id, CAST(f AS DOUBLE)") == list(enumerate(values))


def test_no_digit_of_a_decimal_is_lost(mariadb_server: MariaDbServer, way: bool) -> None:
    """Arrow writes a small one as 1.2E-10, which is a float where it is not text."""
    digits = "0.000000001234567890123456789012"
    values = [
        Decimal(sign + text)
        for text in (digits, "0." + "0" * 29 + "1", "12345678.123456789012345678901234567891")
        for sign in ("", "-")
    ]
    table = Table(mariadb_server, "id INT, d DECIMAL(38,30)")
    ids = pa.array(range(len(values)), pa.int32())
    table.write(pa.table({"id": ids, "d": pa.array(values, pa.decimal128(38, 30))}))
    assert table.rows() == list(enumerate(values))


MISFITS: list[tuple[str, Any, list[Any], str]] = [
    ("TINYINT", pa.int64(), [128, -129], "out of the range of tinyint"),
    ("INT UNSIGNED", pa.int64(), [-1, 2**32], "out of the range"),
    ("BIGINT", pa.uint64(), [2**63], "out of the range"),
    ("DECIMAL(5,2)", pa.int64(), [1000, -1000], "out of the range"),
    ("DECIMAL(5,2)", pa.decimal128(10, 2), [Decimal(1000)], "out of the range"),
    ("DECIMAL(5,2) UNSIGNED", pa.decimal128(5, 2), [Decimal(-1)], "out of the range"),
    ("DOUBLE", pa.float64(), [float("nan"), float("inf"), float("-inf")], "NaN or infinite"),
    ("VARCHAR(3) CHARACTER SET utf8mb4", pa.string(), ["abcd", "🧵🧵🧵🧵"], "longer than 3 char"),
    ("CHAR(3)", pa.string(), ["ab "], "ends with a space"),
    ("TINYTEXT CHARACTER SET utf8mb4", pa.string(), ["ö" * 128], "longer than 255 bytes"),
    ("VARCHAR(9) CHARACTER SET utf8mb3", pa.string(), ["🧵"], "beyond utf8mb3"),
    ("VARCHAR(9) CHARACTER SET latin1", pa.string(), ["漢"], "does not take it: Incorrect string"),
    ("ENUM('a','b')", pa.string(), ["c", "1", ""], "not one of enum"),
    ("JSON", pa.string(), ["{", "x"], "CONSTRAINT `v` failed"),
    ("VARBINARY(2)", pa.binary(), [b"abc"], "longer than 2 bytes"),
    ("BINARY(2)", pa.binary(), [b"a"], "not 2 bytes long"),
    ("DATE", pa.date32(), [-719_163, 2_932_897], "outside the years 1 to 9999"),
    ("DATETIME(6)", pa.timestamp("us"), [-719_163 * 86_400_000_000], "outside the years 1 to 9999"),
    ("DATETIME", pa.timestamp("us"), [1], "finer than datetime"),
    ("TIMESTAMP(6) NULL", pa.timestamp("us", "UTC"), [0, 2**31 * 10**6], "outside 1970 to 2038"),
    ("INT NOT NULL", pa.int32(), [None], "null"),
]


@pytest.mark.parametrize(("declared", "type_", "bad", "reason"), MISFITS)
def test_what_does_not_fit_is_refused_and_the_rest_goes_on(
    mariadb_server: MariaDbServer, declared: str, type_: Any, bad: list[Any], reason: str
) -> None:
    table = Table(mariadb_server, f"id INT, v {declared}")
    good = {"INT NOT NULL": 7, "ENUM('a','b')": "a", "BINARY(2)": b"ok"}.get(declared)
    rows = pa.table(
        {
            "id": pa.array(range(len(bad) + 2), pa.int32()),
            "v": pa.concat_arrays([pa.array(some, type_) for some in ([good], bad, [good])]),
        }
    )
    sink = table.opened(rows.schema)
    part = table.prepare(sink, rows, dead_letters=True)
    assert sorted(first for first, _ in table.refused) == list(range(1, len(bad) + 1))
    assert all(reason in why for _, why in table.refused), table.refused
    assert all("'v'" in why or "`v`" in why for _, why in table.refused), "the column has a name"
    assert table.commit(sink, [part])
    assert table.rows() == [(0, good), (len(bad) + 1, good)]
    assert not any("_beadline" in why for _, why in table.refused), "a replay must say the same"
    with pytest.raises(RowsRefused, match="Nothing of the epoch was written"):
        table.prepare(sink, rows, epoch=1)
    assert table.stages() == []


def test_a_part_of_which_all_is_refused_leaves_nothing(mariadb_server: MariaDbServer) -> None:
    table = Table(mariadb_server, "v ENUM('a')")
    rows = pa.table({"v": ["x", "y"]})
    sink = table.opened(rows.schema)
    assert table.prepare(sink, rows, dead_letters=True) is None
    assert len(table.refused) == 2
    assert table.stages() == []


def test_a_row_above_the_packet_is_refused(mariadb_server: MariaDbServer, way: bool) -> None:
    table = Table(mariadb_server, "id INT, w LONGTEXT")
    rows = pa.table({"id": pa.array([1, 2, 3], pa.int32()), "w": ["a", "x" * 17_000_000, "c"]})
    sink = table.opened(rows.schema)
    part = table.prepare(sink, rows, dead_letters=True)
    assert [(first, "max_allowed_packet" in why) for first, why in table.refused] == [(2, True)]
    table.commit(sink, [part])
    assert table.rows() == [(1, "a"), (3, "c")]


def test_many_rows_go_in_several_statements(mariadb_server: MariaDbServer, way: bool) -> None:
    table = Table(mariadb_server, "id INT, w VARCHAR(200)")
    count = 150_000
    rows = pa.table(
        {"id": pa.array(range(count), pa.int32()), "w": ["x" * (i % 150) for i in range(count)]}
    )
    table.write(rows)
    total = sum(i % 150 for i in range(count))
    assert table.run(
        f"SELECT COUNT(*), COUNT(DISTINCT id), SUM(LENGTH(w)) FROM {table.database}.t"
    ) == [(count, count, total)]


def test_zero_stays_zero_in_a_numbered_column(mariadb_server: MariaDbServer) -> None:
    table = Table(mariadb_server, "id INT AUTO_INCREMENT PRIMARY KEY, w INT")
    table.write(pa.table({"id": pa.array([0], pa.int32()), "w": pa.array([1], pa.int32())}))
    assert table.rows() == [(0, 1)]


@pytest.fixture
def lax_server(mariadb_server: MariaDbServer) -> Iterator[MariaDbServer]:
    """A server that stores '?' for what it does not know, and whose clients speak latin1."""
    ours = Table(mariadb_server, "id INT")
    names = ("sql_mode", "character_set_client", "character_set_connection")
    found = [ours.run(f"SELECT @@GLOBAL.{name}")[0][0] for name in names]
    for name, value in zip(names, ("", "latin1", "latin1"), strict=True):
        ours.run(f"SET GLOBAL {name} = '{value}'")
    yield mariadb_server
    for name, value in zip(names, found, strict=True):
        ours.run(f"SET GLOBAL {name} = '{value}'")


@pytest.mark.parametrize("how", ["staged", "xa"])
def test_latin1_holds_what_it_can_and_the_rest_is_refused(
    lax_server: MariaDbServer, way: bool, how: str
) -> None:
    table = Table(lax_server, "id INT", how=how)
    table.run(f"ALTER DATABASE {table.database} CHARACTER SET latin1")
    columns = "id INT, w VARCHAR(9) CHARACTER SET latin1, u VARCHAR(9) CHARACTER SET utf8mb4"
    table.run(f"CREATE OR REPLACE TABLE {table.database}.t ({columns})")
    words = ["é", "漢", "ÿ ß €", "Ā", "fine", "🧵", "long enough"]
    rows = pa.table({"id": pa.array(range(len(words)), pa.int32()), "w": words, "u": ["🧵é"] * 7})
    sink = table.opened(rows.schema)
    part = table.prepare(sink, rows, dead_letters=True)
    assert sorted(first for first, _ in table.refused) == [1, 3, 5, 6]
    assert all("'w'" in why or "`w`" in why for _, why in table.refused), table.refused
    table.commit(sink, [part])
    assert table.rows("id, HEX(w), u") == [
        (0, "E9", "🧵é"),
        (2, "FF20DF2080", "🧵é"),
        (4, "66696E65", "🧵é"),
    ]


@pytest.mark.parametrize("kind", ["VARCHAR(9)", "LONGTEXT", "CHAR(9)", "VARCHAR(9) ... latin1"])
def test_text_that_is_no_utf8_becomes_a_dead_letter(
    mariadb_server: MariaDbServer, way: bool, kind: str
) -> None:
    declared, _, character_set = kind.partition(" ... ")
    declared += f" CHARACTER SET {character_set or 'utf8mb4'}"
    table = Table(mariadb_server, f"id INT, w {declared}, v {declared}")
    bad = [b"\xff", b"cut \xe2\x82", b"\xf0", b"x\xc0\x80", b"\xe2\\'"]
    words = [b"fine", bad[0], "é".encode(), *bad[1:], b"z"]
    held = pa.array(words, pa.binary())
    text = pa.Array.from_buffers(pa.string(), len(words), held.buffers())
    ids = pa.array(range(len(words)), pa.int32())
    rows = pa.table({"id": ids, "w": text, "v": text})
    sink = table.opened(rows.schema)
    refusals = Refusals()
    id_ = table.part_id()
    part = sink.prepare(iter(rows.to_batches()), Part(id_, refuse=refusals.refuse))
    assert part is not None
    table.commit(sink, [Prepared(id_, part.rows, part)])
    assert table.rows("id, CONVERT(w USING utf8mb4), CONVERT(v USING utf8mb4)") == [
        (0, "fine", "fine"),
        (2, "é", "é"),
        (7, "z", "z"),
    ]
    found = [json.loads(row) for _, row in json.loads(refusals.to_text() or "[]")]
    shown = {row["id"]: row["w"] for row in found}
    assert shown == {i: words[i].decode(errors="replace") for i in (1, 3, 4, 5, 6)}


@pytest.mark.parametrize("how", ["staged", "xa"])
def test_no_value_of_a_refused_row_is_in_the_error(mariadb_server: MariaDbServer, how: str) -> None:
    """In the dead-letter record it is; errors end up in logs."""
    table = Table(mariadb_server, "id INT, v VARCHAR(9) CHARACTER SET latin1", how=how)
    rows = pa.table({"id": pa.array([1], pa.int32()), "v": ["4111漢"]})
    sink = table.opened(rows.schema)
    with pytest.raises(RowsRefused, match=r"Incorrect string value: \(not shown\) for") as caught:
        table.prepare(sink, rows)
    assert "4111" not in str(caught.value)
    assert "xE6" not in str(caught.value)
    table.prepare(sink, rows, dead_letters=True)
    assert "xE6" in table.refused[0][1]
