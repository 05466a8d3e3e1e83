"""Windows in memory, in cases that random rows do not find."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest

from beadline.errors import BadQuery
from beadline.event_time import CustomAggregate, count
from beadline.event_time.asof import AsOf
from beadline.event_time.codec import state_name
from beadline.event_time.counted import CountedWindows
from beadline.event_time.operator import Operator
from beadline.event_time.sessions import Sessions
from beadline.event_time.sides import Sides
from beadline.event_time.windows import Windowed, WindowShape
from tests.unit.event_time_state import EpochRunner, MemoryHandle, MemoryMap

SECOND = 1_000_000
SCHEMA = pa.schema(
    [
        ("k", pa.string()),
        ("j", pa.string()),
        *((ts, pa.timestamp("us", "UTC")) for ts in ("ts", "at")),
    ]
)
WINDOWS: dict[str, Any] = {
    "time": "ts", "by": ("k",), "aggregates": {"rows": count()}, "schema": SCHEMA,
}  # fmt: skip
TEN = WindowShape(10 * SECOND, 10 * SECOND)


def test_decimal_keys_that_differ_in_their_last_of_38_digits_are_two() -> None:
    schema = pa.schema([("k", pa.decimal128(38, 0)), ("ts", pa.timestamp("us", tz="UTC"))])
    operator = Windowed(**{**WINDOWS, "schema": schema}, shape=TEN, lateness_us=SECOND)
    keys = [Decimal(10**37 + last) for last in range(2)]
    runner = EpochRunner(operator, schema, time="ts")
    for key in keys:
        runner.epoch([{"k": key, "ts": SECOND}])
    told = runner.advance(20_000)["main"]
    assert sorted((row["k"], row["rows"]) for row in told) == [(key, 1) for key in keys]


def declared(operator: Operator) -> dict[str, list[str]]:
    """The names of the columns of each map's keys."""
    handle = MemoryHandle()
    operator.open(handle)  # type: ignore[arg-type]
    states = handle.states.items()
    return {name: one.keys_of.schema.names for name, one in states if isinstance(one, MemoryMap)}


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (Windowed(**WINDOWS, shape=TEN), {"shape": WindowShape(20 * SECOND, 20 * SECOND)}),
        (Windowed(**WINDOWS, shape=TEN), {"shape": WindowShape(10 * SECOND, 5 * SECOND)}),
        (Windowed(**WINDOWS, shape=TEN), {"shape": WindowShape(10 * SECOND, 10 * SECOND, 1)}),
        (Windowed(**WINDOWS, shape=TEN), {"time": "at"}),
        (Windowed(**WINDOWS, shape=TEN), {"by": ("j",)}),
        (Sessions(**WINDOWS, gap_us=SECOND), {"gap_us": 2 * SECOND}),
        (CountedWindows(**WINDOWS, every_rows=100), {"every_rows": 50}),
    ],
)
def test_windows_that_are_divided_otherwise_have_other_names_in_the_state(
    before: Any, after: dict[str, Any]
) -> None:
    names = declared(before)
    changed = declared(replace(before, **after))
    assert names
    assert names.keys() == changed.keys()
    assert all(names[name] != changed[name] for name in names)
    assert declared(replace(before, aggregates={"n": count()}, keeps_late=True)) == names


@pytest.mark.parametrize("change", ["on", "left_time", "columns"])
def test_an_as_of_join_of_other_columns_has_other_names_in_the_state(change: str) -> None:
    sides = Sides(("k",), {"j": "j", "ts": "ts"}, {"at": "at"})
    join = AsOf(sides, "ts", "at", SCHEMA, SCHEMA)
    other = {
        "on": AsOf(replace(sides, keys=("j",)), "ts", "at", SCHEMA, SCHEMA),
        "left_time": replace(join, left_time="at"),
        "columns": replace(join, left=pa.schema([SCHEMA.field(at) for at in (1, 0, 2, 3)])),
    }[change]
    assert declared(join)["waiting"] != declared(other)["waiting"]


def test_a_column_with_any_name_is_aggregated() -> None:
    """Spark takes letters, digits and _ in the names of its state, and refuses the rest."""
    names = {state_name(text) for text in ("total_sum_a value_0", "total_sum_a-value_0")}
    assert len(names) == 2
    assert all(re.fullmatch(r"[A-Za-z_]\w*", name, re.ASCII) for name in names)
    assert state_name("total_sum_value_0") == "total_sum_value_0"


@pytest.mark.parametrize("kind", ["windows", "sessions"])
def test_a_clock_that_goes_back_opens_no_window_again(kind: str) -> None:
    settings: dict[str, Any] = {**WINDOWS, "time": None, "processing_time": True}
    operator: Operator = Windowed(**settings, shape=TEN)
    if kind == "sessions":
        operator = Sessions(**settings, gap_us=10 * SECOND)
    runner = EpochRunner(operator, SCHEMA)
    runner.processing_time = True
    told = []
    for now_ms, rows in ((10_000, 3), (20_000, 0), (19_000, 1), (20_500, 0), (30_000, 0)):
        runner.now_ms = now_ms
        told += runner.epoch([{"k": "a"}] * rows)["main"]
    assert [(row["window_start"] // SECOND, row["rows"]) for row in told] == [(10, 3), (20, 1)]
    assert [row["revision"] for row in told] == [0, 0]


def test_a_clock_that_goes_back_does_not_hold_up_early_results() -> None:
    runner = EpochRunner(Windowed(**WINDOWS, shape=TEN, early_ms=1_000), SCHEMA, time="ts")
    early = []
    for now_ms in (100_000, 101_000, 5_000, 6_000):
        runner.now_ms = now_ms
        early += runner.epoch([{"k": "a", "ts": SECOND}])["main"]
    assert [row["rows"] for row in early] == [2, 3, 4]


@pytest.mark.parametrize("kind", ["windows", "sessions"])
@pytest.mark.parametrize("before_s", [0, 10])
def test_a_longer_lateness_begins_no_window_again_that_is_gone(kind: str, before_s: int) -> None:
    """It would replace the complete result, of three rows, by that of the late one."""
    operator: Any = Windowed(**WINDOWS, shape=TEN, lateness_us=before_s * SECOND)
    if kind == "sessions":
        operator = Sessions(**WINDOWS, gap_us=10 * SECOND, lateness_us=before_s * SECOND)
    runner = EpochRunner(operator, SCHEMA, time="ts")
    told = [*runner.epoch([{"k": "a", "ts": SECOND}] * 3, more=True)["main"]]
    told += runner.epoch([{"k": "b", "ts": 100 * SECOND}])["main"]
    assert [(row["k"], row["rows"], row["revision"]) for row in told] == [("a", 3, 0)]
    runner.operator = replace(operator, lateness_us=1000 * SECOND)
    found = runner.epoch([{"k": "a", "ts": SECOND}], more=True)
    assert found["main"] == []
    assert found["dropped"] == [{"dropped": 1}]
    told = runner.epoch([{"k": "b", "ts": 101 * SECOND}, {"k": "b", "ts": 300 * SECOND}])["main"]
    told += runner.epoch([{"k": "b", "ts": 102 * SECOND}])["main"]
    assert [(row["rows"], row["revision"]) for row in told] == [(2, 0), (3, 1)]


class Largest(CustomAggregate):
    """An aggregate whose values only integers can hold."""

    state_type = (pa.int64(),)
    returns = pa.int64()

    def add(self, rows: Any) -> tuple[Any]:
        return (rows["id"].max(),)

    def merge(self, one: tuple[Any, ...], other: tuple[Any, ...]) -> tuple[Any]:
        return (max((value for value in (one[0], other[0]) if value is not None), default=None),)


def test_a_null_of_another_key_changes_no_integer_of_a_custom_aggregate() -> None:
    schema = pa.schema([("k", pa.string()), ("id", pa.int64()), ("ts", pa.timestamp("us", "UTC"))])
    settings = {**WINDOWS, "schema": schema, "aggregates": {"largest": Largest()}}
    runner = EpochRunner(Windowed(**settings, shape=TEN), schema, time="ts")
    large = 2**53 + 1
    rows = [("a", large), ("b", None)]
    runner.epoch([{"k": key, "id": id_, "ts": SECOND} for key, id_ in rows])
    told = runner.advance(20_000)["main"]
    assert sorted((row["k"], row["largest"]) for row in told) == [("a", large), ("b", None)]


def test_a_custom_aggregate_of_another_version_has_another_name_in_the_state() -> None:
    class Newer(Largest):
        version = 2

    Newer.__name__ = "Largest"
    assert Newer().kind != Largest().kind
    assert Largest().kind == "largest"


@dataclass(frozen=True)
class Configured(Largest):
    """An aggregate with a setting."""

    setting: Any


def test_a_setting_that_is_written_otherwise_in_each_process_names_no_state() -> None:
    """With such a name, the state would be refused by every restart."""
    orders = ["ab", "ba"]
    names = {Configured(_Ordered(order)).kind for order in orders}
    assert len(names) == 1
    with pytest.raises(BadQuery, match=r"Configured\.setting is a function whose repr\(\)"):
        Windowed(**{**WINDOWS, "aggregates": {"n": Configured(lambda: None)}}, shape=TEN)


class _Ordered(frozenset[str]):
    """A set that is written in an order of its own, as sets of strings are in each process."""

    def __new__(cls, order: str) -> _Ordered:
        made = super().__new__(cls, order)
        made.order = order
        return made

    order: str

    def __repr__(self) -> str:
        return self.order
