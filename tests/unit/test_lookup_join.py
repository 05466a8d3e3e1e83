"""What lookup_join() does in a worker: loading, refreshing, failing, matching."""

from __future__ import annotations

import datetime
import logging
import math
from types import SimpleNamespace
from typing import Any

import pandas as pd
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from beadline.event_time import lookup
from beadline.event_time.lookup import Loaded, Lookup, current, matched
from beadline.event_time.sides import Sides
from beadline.guarantee.chance import ByChance
from beadline.spark.python_code import calls_by_chance, can_be_read

SCHEMA = pa.schema([("k", pa.int64()), ("name", pa.string())])
NAMES = Sides(("k",), {"n": "n"}, {"name": "name"})


def made(*, keeps: bool = False, how: str = "inner", schema: pa.Schema = SCHEMA) -> Lookup:
    return Lookup("id", "prices", schema, 60.0, keeps, how)


@pytest.fixture(autouse=True)
def no_tables(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lookup, "_tables", {})


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    now = [100.0]
    monkeypatch.setattr(lookup, "time", SimpleNamespace(monotonic=lambda: now[0]))
    return now


def joined(rows: Any, table: Any, how: str = "inner", names: Sides = NAMES) -> list[Any]:
    one = made(how=how, schema=table.schema)
    lookup._tables.clear()
    loaded = current(lambda: table, one, names.keys)
    return list(matched(rows, loaded, one, names).to_pylist())


def batch(**columns: Any) -> pa.RecordBatch:
    return pa.RecordBatch.from_pydict(columns)


def test_a_row_shows_with_each_that_it_matches_and_null_matches_nothing() -> None:
    rows = batch(k=[1, None, 2, 3], n=[0, 1, 2, 3])
    table = pa.table({"k": [2, 1, 1, None], "name": ["two", "one", "uno", "null"]}, schema=SCHEMA)
    assert joined(rows, table) == [
        {"k": 1, "n": 0, "name": "one"},
        {"k": 1, "n": 0, "name": "uno"},
        {"k": 2, "n": 2, "name": "two"},
    ]
    assert [row for row in joined(rows, table, "left") if row["name"] is None] == [
        {"k": None, "n": 1, "name": None},
        {"k": 3, "n": 3, "name": None},
    ]


KEYS = st.sampled_from([None, 1, 2, 3])
NAMED = st.lists(st.tuples(KEYS, st.sampled_from([None, "a", "b"]), st.integers(0, 9)), max_size=6)


@settings(deadline=None, max_examples=100)
@given(st.lists(st.tuples(KEYS, st.sampled_from([None, "a"])), max_size=8), NAMED, st.booleans())
def test_rows_are_those_of_nested_loops(
    rows: list[tuple[Any, Any]], others: list[tuple[Any, Any, int]], outer: bool
) -> None:
    expected: list[Any] = []
    for n, (k, tag) in enumerate(rows):
        same = [
            price for key, name, price in others if k == key is not None if tag == name is not None
        ]
        expected += [(k, tag, n, price) for price in same]
        if outer and not same:
            expected.append((k, tag, n, None))
    schema = pa.schema([("k", pa.int64()), ("tag", pa.string())])
    given_rows = pa.RecordBatch.from_arrays(
        [
            pa.array([row[0] for row in rows], pa.int64()),
            pa.array([row[1] for row in rows], pa.string()),
            pa.array(range(len(rows)), pa.int64()),
        ],
        schema=schema.append(pa.field("n", pa.int64())),
    )
    table = pa.Table.from_pylist(
        [{"k": k, "tag": tag, "price": price} for k, tag, price in others],
        schema.append(pa.field("price", pa.int64())),
    )
    names = Sides(("k", "tag"), {"n": "n"}, {"price": "price"})
    found = joined(given_rows, table, "left" if outer else "inner", names)
    assert [tuple(row[name] for name in ("k", "tag", "n", "price")) for row in found] == expected


def test_keys_are_equal_as_spark_has_it() -> None:
    assert len(joined(batch(k=[math.nan, -0.0], n=[0, 1]), _table(k=[math.nan, 0.0]))) == 2
    berlin = pa.array([datetime.datetime(2026, 10, 25, 0, 30)], pa.timestamp("us", tz="UTC"))
    here = berlin.cast(pa.timestamp("us", tz="Europe/Berlin"))  # an hour that comes twice
    assert len(joined(batch(k=here, n=[0]), _table(k=berlin))) == 1
    assert len(joined(batch(k=pa.array([1], pa.int32()), n=[0]), _table(k=[1]))) == 1


def _table(k: Any) -> pa.Table:
    return pa.table({"k": k, "name": ["x"] * len(k)})


def test_columns_of_any_type_are_joined() -> None:
    tags = pa.array([[{"a": 1}], None], pa.list_(pa.struct([("a", pa.int64())])))
    names = Sides(("k",), {}, {"tags": "tags"})
    rows = joined(batch(k=["x", "y"]), pa.table({"k": ["x", "y"], "tags": tags}), names=names)
    assert rows == [{"k": "x", "tags": [{"a": 1}]}, {"k": "y", "tags": None}]


def test_a_table_is_loaded_once_until_it_is_too_old(clock: list[float]) -> None:
    calls = []

    def load() -> list[dict[str, Any]]:
        calls.append(clock[0])
        return [{"k": 1, "name": f"at {clock[0]:g}"}]

    seen = []
    for now_s in (100, 159, 160, 161, 221):
        clock[0] = now_s
        seen.append(current(load, made(), ("k",)).table["name"][0].as_py())
    assert calls == [100, 160, 221]
    assert seen == ["at 100", "at 100", "at 160", "at 160", "at 221"]


def test_a_table_that_cannot_be_loaded_fails_the_epoch() -> None:
    def load() -> None:
        raise ConnectionError("no route to host")

    with pytest.raises(RuntimeError) as error:
        current(load, made(keeps=True), ("k",))
    assert "table prices could not be loaded: ConnectionError: no route to host" in str(error.value)
    assert "Nothing of the epoch is visible" in str(error.value)


def test_an_old_table_is_not_used_unasked(clock: list[float]) -> None:
    answers: list[Any] = [[{"k": 1, "name": "old"}], None]
    current(lambda: answers.pop(0), made(), ("k",))
    clock[0] += 90
    with pytest.raises(RuntimeError, match="could not be loaded"):
        current(lambda: answers.pop(0), made(), ("k",))


def test_the_last_table_is_kept_where_that_was_asked_for(
    clock: list[float], caplog: pytest.LogCaptureFixture
) -> None:
    answers: list[Any] = [[{"k": 1, "name": "old"}], OSError("away"), [{"k": 1, "name": "new"}]]

    def load() -> Any:
        answer = answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer

    with caplog.at_level(logging.WARNING):
        assert current(load, made(keeps=True), ("k",)).table["name"].to_pylist() == ["old"]
        clock[0] += 90
        assert current(load, made(keeps=True), ("k",)).table["name"].to_pylist() == ["old"]
        assert current(load, made(keeps=True), ("k",)).table["name"].to_pylist() == ["new"]
    (record,) = caplog.records
    assert "OSError: away" in record.message
    assert "loaded 90 s ago" in record.message


@pytest.mark.parametrize(
    ("table", "words"),
    [
        ([{"k": 1}], "no longer has column 'name'"),
        ([{"k": 1, "name": 5.5}], "could not be loaded"),
        ("text", "a pyarrow Table, a pandas DataFrame or a list of dictionaries, not str"),
    ],
)
def test_a_table_of_other_columns_fails_the_epoch(table: Any, words: str) -> None:
    if words == "could not be loaded":
        table = pa.table({"k": [1], "name": pa.array([[1]])})
    with pytest.raises(RuntimeError, match=words):
        current(lambda: table, made(), ("k",))


@pytest.mark.parametrize(
    "table",
    [
        [{"k": 1, "name": "x"}],
        pd.DataFrame({"k": [1], "name": ["x"]}),
        pa.RecordBatch.from_pydict({"k": [1], "name": ["x"]}),
        pa.table({"k": pa.array([1], pa.int8()), "more": [0], "name": ["x"]}),
    ],
    ids=["dictionaries", "pandas", "batch", "arrow"],
)
def test_tables_of_every_kind(table: Any) -> None:
    loaded = current(lambda: table, made(), ("k",))
    rows = matched(batch(k=[1], n=[0]), loaded, made(), NAMES)
    assert rows.to_pylist() == [{"k": 1, "n": 0, "name": "x"}]


def test_an_empty_table_matches_nothing() -> None:
    loaded = current(lambda: [], made(how="left"), ("k",))
    rows = matched(batch(k=[1], n=[0]), loaded, made(how="left"), NAMES)
    assert rows.to_pylist() == [{"k": 1, "n": 0, "name": None}]


def test_tables_of_queries_that_have_ended_are_not_kept_for_ever() -> None:
    for number in range(lookup.TABLES_MAX + 3):
        one = Lookup(f"{number}", "prices", SCHEMA, 60.0, False, "inner")
        assert isinstance(current(lambda: [{"k": 1, "name": "x"}], one, ("k",)), Loaded)
    assert len(lookup._tables) == lookup.TABLES_MAX
    assert f"{lookup.TABLES_MAX + 2}" in lookup._tables


def test_the_analyzer_sees_a_lookup_that_may_answer_differently() -> None:
    marked = ByChance(lambda: [], "load_prices")
    assert calls_by_chance(marked) == ("load_prices",)
    assert can_be_read(marked)
