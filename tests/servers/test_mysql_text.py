"""Text in ``MySqlSink``: no character is bent, whatever the server's own settings are."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pyarrow as pa
import pytest

from beadline.sink import Part, Prepared
from beadline.sinks.mysql.loading import Loader
from beadline.spark.refusals import Refusals
from beadline.testing.servers import MariaDbServer
from tests.servers.mysql_tables import Table


@pytest.fixture(params=[True, False], ids=["LOAD DATA", "INSERT"])
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> bool:
    monkeypatch.setattr(Loader, "local_allowed", request.param)
    return bool(request.param)


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
