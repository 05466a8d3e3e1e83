"""``PostgresSink``: rows that only the server can judge are found by halving, and refused."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pyarrow as pa
import pytest

from beadline.errors import PrepareFailed, RowsRefused
from beadline.sink import Outcome, Part
from beadline.sinks.shared.sql import rows as kept_rows
from beadline.sinks.shared.sql.plan import TablePlan
from beadline.spark.refusals import Refusals
from beadline.testing.servers import PostgresServer
from tests.servers.postgres_target import Orders, database, part_id

UUID = "0f0e0d0c-0b0a-0908-0706-050403020100"
WAYS = ("prepared", "staged")
# Declared type, a value that the server takes, one that it does not, and a word of the reason.
JUDGED: list[tuple[str, Any, Any, str]] = [
    ("jsonb", "{}", "{oops", "json"),
    ("json", "[]", "[", "json"),
    ("jsonb", '"a"', '"\\u0000"', "Unicode"),
    ("text CHECK (v <> 'b')", "a", "b", 'relation "orders" violates check constraint'),
]


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("judged", JUDGED, ids=lambda judged: str(judged[0]))
def test_a_bad_row_is_refused_and_the_others_go_in(
    postgres_server: PostgresServer, way: str, judged: tuple[str, Any, Any, str]
) -> None:
    declared, good, bad, reason = judged
    orders = Orders(postgres_server, f"id bigint, v {declared}", how=way)
    values = [bad if number in (0, 7, 8, 19) else good for number in range(20)]
    rows = pa.table({"id": range(20), "v": values})
    orders.start(rows)
    orders.epoch(0, rows)
    assert sorted(row[0] for row in orders.rows("id")) == [
        number for number in range(20) if values[number] == good
    ]
    # As they came, not in the form in which they are sent.
    assert orders.refused.rows == [{"id": n, "v": bad} for n in (0, 7, 8, 19)]
    assert all(reason in word and "_beadline" not in word for word in orders.refused.reasons)
    assert orders.leftovers() == []


@pytest.mark.parametrize("way", WAYS)
def test_without_a_dead_letter_sink_the_epoch_fails(
    postgres_server: PostgresServer, way: str
) -> None:
    orders = Orders(postgres_server, "id bigint, v jsonb", how=way)
    rows = pa.table({"id": [1, 2], "v": ["{}", "{"]})
    orders.start(rows)
    with pytest.raises(RowsRefused, match=r"1 row\(s\).*'v': invalid input syntax.*dead_letter"):
        orders.sink.prepare(iter(rows.to_batches()), Part(part_id(0)))
    assert orders.leftovers() == []


def test_no_value_of_a_refused_row_is_in_the_error(postgres_server: PostgresServer) -> None:
    orders = Orders(postgres_server, "id bigint, v text CHECK (v::int > 0)", how="prepared")
    rows = pa.table({"id": [1], "v": ["card-4111"]})
    orders.start(rows)
    with pytest.raises(RowsRefused, match=r"invalid input syntax.*: \(not shown\)") as caught:
        orders.sink.prepare(iter(rows.to_batches()), Part(part_id(0)))
    assert "4111" not in str(caught.value)
    assert orders.try_prepare(rows, part_id(0)) is None
    assert "card-4111" in orders.refused.reasons[0]


def test_a_part_of_bad_rows_only_is_none(postgres_server: PostgresServer) -> None:
    for way in WAYS:
        orders = Orders(postgres_server, "id bigint, v jsonb", how=way)
        rows = pa.table({"id": [1, 2, 3], "v": ["{"] * 3})
        orders.start(rows)
        assert orders.try_prepare(rows, part_id(0)) is None
        assert len(orders.refused.rows) == 3
        assert orders.leftovers() == []


def test_rows_that_are_too_many_to_keep(
    postgres_server: PostgresServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A bad row is found only while what was sent before it can be sent again."""
    monkeypatch.setattr(kept_rows, "KEPT_BYTES_MAX", 100)
    orders = Orders(postgres_server, "id bigint, v jsonb", how="staged")
    rows = pa.table({"id": range(50), "v": ["{}"] * 49 + ["{"]})
    orders.start(rows)
    with pytest.raises(PrepareFailed, match=r"epoch 0, part 0.*json.*smaller parts"):
        orders.prepare(rows, part_id(0))
    early = pa.table({"id": range(50), "v": ["{", *["{}"] * 49]})
    batches = early.to_batches(max_chunksize=2)
    part = orders.sink.prepare(iter(batches[:1]), Part(part_id(0), refuse=orders.refused))
    assert part is not None
    assert [row["id"] for row in orders.refused.rows] == [0]
    orders.sweep()
    assert orders.leftovers() == []


def test_the_connection_is_lost_while_bad_rows_are_looked_for(
    postgres_server: PostgresServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The part is sent again from the start, and no row is refused twice."""
    orders = Orders(postgres_server, "id bigint, v jsonb", how="staged")
    rows = pa.table({"id": range(12), "v": ["{}", "{"] * 6})
    orders.start(rows)
    made = TablePlan.sent
    sent = 0

    def cut(plan: TablePlan[Any], batch: pa.RecordBatch) -> pa.RecordBatch:
        """The four batches are sent in one go, which fails; then each by itself, and its halves."""
        nonlocal sent
        sent += 1
        if sent == 4 + 10:
            orders.run(
                "SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
                "WHERE application_name = 'beadline' AND state = 'idle in transaction'"
            )
        return made(plan, batch)

    monkeypatch.setattr(TablePlan, "sent", cut)
    part = orders.prepare(rows, part_id(0))
    assert [row["id"] for row in orders.refused.rows] == [1, 3, 5, 7, 9, 11]
    assert orders.commit(0, [part]) == {Outcome.COMMITTED}
    assert sorted(row[0] for row in orders.rows("id")) == [0, 2, 4, 6, 8, 10]
    assert orders.leftovers() == []


@pytest.mark.parametrize("way", WAYS)
def test_text_in_a_database_of_another_encoding(postgres_server: PostgresServer, way: str) -> None:
    """Whatever the database, the address or the environment prefer, UTF-8 is what is sent."""
    name = database(
        postgres_server,
        f"latin_{way}",
        "ENCODING 'LATIN1' TEMPLATE template0 LC_COLLATE 'C' LC_CTYPE 'C'",
    )
    for asked in ("", "?client_encoding=LATIN1", "?options=-c%20client_encoding%3DWIN1252"):
        dsn = f"{postgres_server.dsn_of(name)}{asked}"
        orders = Orders(postgres_server, "id bigint, v text", name, how=way, dsn=dsn)
        rows = pa.table({"id": [1, 2, 3], "v": ["é", "漢", "ü"]})
        orders.start(rows)
        orders.epoch(0, rows)
        assert orders.rows() == [(1, "é"), (3, "ü")]
        assert orders.refused.rows == [{"id": 2, "v": "漢"}]
        assert "LATIN1" in orders.refused.reasons[0]


def test_the_environment_does_not_choose_the_encoding(
    postgres_server: PostgresServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PGCLIENTENCODING", "LATIN1")
    for way in WAYS:
        orders = Orders(postgres_server, "id bigint, v text", how=way)
        rows = pa.table({"id": [1], "v": ["é"]})
        orders.start(rows)
        orders.epoch(0, rows)
        assert orders.rows() == [(1, "é")]


def test_domains_of_domains(postgres_server: PostgresServer) -> None:
    orders = Orders(postgres_server, "")
    place = f'"{orders.schema}"'
    orders.run(f"CREATE DOMAIN {place}.short AS varchar(3) NOT NULL")
    orders.run(f"CREATE DOMAIN {place}.code AS {place}.short CHECK (VALUE ~ '^[a-z]+$')")
    orders.run(f"CREATE TABLE {place}.orders (id bigint, v {place}.code)")
    rows = pa.table({"id": range(4), "v": ["abc", "abcd", None, "A"]})
    orders.start(rows)
    orders.epoch(0, rows)
    assert orders.rows() == [(0, "abc")]
    assert [row["id"] for row in orders.refused.rows] == [2, 1, 3]
    assert "NOT NULL" in orders.refused.reasons[0]
    assert "longer than" in orders.refused.reasons[1]


def test_a_row_that_deletes_is_judged_by_its_key_only(postgres_server: PostgresServer) -> None:
    orders = Orders(
        postgres_server,
        "id integer PRIMARY KEY, n smallint NOT NULL CHECK (n > 0), v jsonb",
        mode="upsert",
        key="id",
        deleted="gone",
    )
    rows = pa.table({"id": [1, 2, 3], "n": [1, 2, 3], "v": ["{}"] * 3, "gone": [False] * 3})
    orders.start(rows)
    orders.epoch(0, rows)
    orders.epoch(
        1,
        pa.table(
            {
                "id": [1, 2, 3, 4, 10**12],
                "n": [10**6, -1, -1, 10**6, 1],
                "v": ["{", None, "{}", "{}", "{}"],
                "gone": [True, True, False, None, True],
            }
        ),
    )
    assert orders.rows("id, n") == [(3, 3)]
    assert [(row["id"], row["n"]) for row in orders.refused.rows] == [
        (10**12, 1),
        (4, 10**6),
        (3, -1),
    ]


def test_keys_that_only_the_server_finds_equal(postgres_server: PostgresServer) -> None:
    """Where equal is more than the same bytes, the server is asked."""
    orders = Orders(postgres_server, "")
    place = f'"{orders.schema}"'
    orders.run(
        f"CREATE COLLATION {place}.loose (provider = icu, locale = 'und-u-ks-level2', "
        "deterministic = false)"
    )
    loose = f"text COLLATE {place}.loose"
    kinds = {loose: ("a", "A"), "char(3)": ("a", "a "), "uuid": (UUID, UUID.upper())}
    for number, (declared, values) in enumerate(kinds.items()):
        name = f"t{number}"
        orders.run(f"CREATE TABLE {place}.{name} (id {declared} PRIMARY KEY, n bigint)")
        rows = pa.table({"id": values, "n": [1, 2]})
        orders.sink = replace(orders.sink, table=name, mode="upsert", key=("id",))
        orders.start(rows)
        with pytest.raises(PrepareFailed, match="twice in one epoch"):
            orders.prepare(rows, part_id(0))
        ranked = replace(orders.sink, order_by="n")
        assert ranked.prepare(iter(rows.to_batches()), Part(part_id(0))) is not None
    orders.sweep()


def test_text_that_is_not_utf8(postgres_server: PostgresServer) -> None:
    """Spark can hold it, by a cast from binary; PostgreSQL cannot."""
    ends, text = pa.array([0, 1, 3, 4], pa.int32()), pa.py_buffer(b"a\xc3\x28b")
    values = pa.Array.from_buffers(pa.string(), 3, [None, ends.buffers()[1], text])
    rows = pa.table({"id": [1, 2, 3], "v": values})
    for way in WAYS:
        orders = Orders(postgres_server, "id bigint, v text", how=way)
        orders.start(rows)
        refused = Refusals()
        part = orders.sink.prepare(iter(rows.to_batches()), Part(part_id(0), refuse=refused.refuse))
        assert part is not None
        assert len(refused) == 1
        assert "invalid byte sequence" in (refused.to_text() or "")
        orders.sweep()
