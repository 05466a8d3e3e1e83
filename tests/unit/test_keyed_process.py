"""``KeyedProcess`` in memory: the code that runs on Spark, on a state that is a dict."""

from __future__ import annotations

import copy
import math
from collections import defaultdict
from collections.abc import Iterator
from datetime import date, datetime, timedelta, timezone
from decimal import Decimal
from typing import Any
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    BooleanType,
    DateType,
    DecimalType,
    DoubleType,
    LongType,
    MapType,
    Row,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from beadline.errors import BadQuery, BadSetting
from beadline.event_time import KeyedContext, KeyedProcess
from beadline.event_time.keyed_state import KeyedColumns, names_of
from beadline.testing.keyed import KeyedRun

NOON = datetime(2026, 1, 1, 12, tzinfo=timezone.utc)
FIVE = timedelta(minutes=5)


def at(minutes: float) -> datetime:
    return NOON + timedelta(minutes=minutes)


def struct(**types: Any) -> StructType:
    return StructType([StructField(name, one) for name, one in types.items()])


class Silence(KeyedProcess):
    """An alert when nothing came from a user for five minutes."""

    def open(self, state: Any) -> None:
        self.due = state.value("due", TimestampType())

    def process(self, row: Row, ctx: KeyedContext) -> None:
        old, new = self.due.get(), row.ts + FIVE
        if old is None or new > old:
            if old is not None:
                ctx.cancel_timer(old)
            ctx.timer(new)
            self.due.update(new)

    def on_timer(self, time: datetime, ctx: KeyedContext) -> None:
        self.due.clear()
        ctx.emit_to("alerts", {"user": ctx.key.user, "since": time - FIVE})


def silence(late: str = "process") -> KeyedRun:
    return KeyedRun(
        Silence(),
        by="user",
        outputs={"alerts": struct(user=StringType(), since=TimestampType())},
        time="ts",
        watermark="2 minutes",
        late=late,
    )


def expected_alerts(epochs: list[list[tuple[str, int]]]) -> list[tuple[str, datetime]]:
    """What ``Silence`` tells, from the whole input and the watermarks of its epochs."""
    due: dict[str, int] = {}
    largest, found = -(10**9), []
    for rows in [*epochs, []]:
        watermark = largest - 2
        for user, minute in rows:
            due[user] = max(due.get(user, minute + 5), minute + 5)
        for user, minute in sorted(due.items()):
            if minute <= watermark:
                found.append((user, at(minute) - FIVE))
                del due[user]
        largest = max([largest, *(minute for _, minute in rows)])
    return sorted(found)


@settings(max_examples=150, deadline=None)
@given(st.lists(st.lists(st.tuples(st.sampled_from("abc"), st.integers(0, 40)), max_size=6)))
def test_alerts_are_those_of_a_plain_simulation(epochs: list[list[tuple[str, int]]]) -> None:
    run, found = silence(), []
    for rows in [*epochs, []]:
        out = run.epoch([{"user": user, "ts": at(minute)} for user, minute in rows])
        found += [(row["user"], row["since"]) for row in out["alerts"]]
    assert sorted(found) == expected_alerts(epochs)


class Everything(KeyedProcess):
    """Keeps all that came in a value, a list and a map, which must agree."""

    def open(self, state: Any) -> None:
        self.total = state.value("total", struct(n=LongType(), sum=LongType()))
        self.all = state.list("all", LongType())
        self.by_x = state.map("by_x", LongType(), LongType())

    def process(self, row: Row, ctx: KeyedContext) -> Iterator[Any]:
        n, total = self.total.get() or (0, 0)
        if row.x is None:  # forget
            self.total.clear()
            self.all.clear()
            self.by_x.clear()
            return
        self.total.update({"n": n + 1, "sum": total + row.x})
        self.all.add(row.x)
        self.by_x.put(row.x, self.by_x.get(row.x, 0) + 1)
        if row.x == 0:
            self.by_x.remove(0)
            self.all.update([x for x in self.all.get() if x != 0])
        yield (
            row.k,
            list(self.total.get()),
            self.all.get(),
            dict(self.by_x.items()),
            1 in self.by_x,
        )


EVERYTHING = struct(
    k=StringType(),
    total=ArrayType(LongType()),
    all=ArrayType(LongType()),
    by_x=MapType(LongType(), LongType()),
    has_one=BooleanType(),
)


@settings(max_examples=150, deadline=None)
@given(
    st.lists(
        st.lists(st.tuples(st.sampled_from(["a", "b", None]), st.none() | st.integers(0, 3))),
        max_size=6,
    )
)
def test_states_hold_what_was_put_into_them(epochs: list[list[tuple[Any, Any]]]) -> None:
    run = KeyedRun(
        Everything(),
        by="k",
        outputs=EVERYTHING,
        clock="processing",
        order="i",
    )
    kept: dict[Any, list[int]] = defaultdict(list)
    counted: dict[Any, list[int]] = defaultdict(lambda: [0, 0])
    ones: dict[Any, dict[int, int]] = defaultdict(dict)
    for rows in epochs:
        out = run.epoch([{"k": k, "x": x, "i": i} for i, (k, x) in enumerate(rows)])
        expected = []
        for k, x in rows:
            if x is None:
                kept[k], counted[k], ones[k] = [], [0, 0], {}
                continue
            counted[k] = [counted[k][0] + 1, counted[k][1] + x]
            kept[k] = [*kept[k], x] if x else [one for one in kept[k] if one]
            if x:
                ones[k] = {**ones[k], x: ones[k].get(x, 0) + 1}
            expected.append((k, [*counted[k]], [*kept[k]], {**ones[k]}, 1 in ones[k]))
        seen = [tuple(row.values()) for row in out["main"]]
        assert sorted(seen, key=repr) == sorted(expected, key=repr)


class Chain(KeyedProcess):
    """Timers that set and cancel others."""

    def process(self, row: Row, ctx: KeyedContext) -> None:
        for minute in row.timers:
            ctx.timer(at(minute))

    def on_timer(self, time: datetime, ctx: KeyedContext) -> Iterator[Any]:
        yield {"k": ctx.key.k, "minute": (time - NOON) // timedelta(minutes=1)}
        if time == at(1):
            ctx.timer(at(3))
            ctx.timer(at(30))
            ctx.cancel_timer(at(2))


def chain(process: KeyedProcess | None = None) -> KeyedRun:
    return KeyedRun(
        process or Chain(), by=["k"], outputs="k string, minute int", time="ts", watermark="0 s"
    )


def test_timers_fire_in_order_and_hear_each_other() -> None:
    run = chain()
    run.epoch([{"k": "a", "ts": at(0), "timers": [1, 2, 4, 1]}])
    run.epoch([{"k": "b", "ts": at(10), "timers": [9, 50]}])
    assert run.epoch()["main"] == [
        {"k": "a", "minute": 1},
        {"k": "a", "minute": 3},
        {"k": "a", "minute": 4},
        {"k": "b", "minute": 9},
    ]
    assert run.epoch()["main"] == []
    run.epoch([{"k": "c", "ts": at(60), "timers": []}])
    assert run.epoch()["main"] == [{"k": "a", "minute": 30}, {"k": "b", "minute": 50}]


def test_a_timer_that_is_due_fires_in_its_epoch() -> None:
    run = chain()
    run.epoch([{"k": "a", "ts": at(10), "timers": []}])
    assert run.epoch([{"k": "a", "ts": at(5), "timers": [5]}])["main"] == [{"k": "a", "minute": 5}]


def test_a_timer_of_before_1970_waits_for_a_watermark() -> None:
    """Without one, the watermark is 0, which is after it."""

    class Once(KeyedProcess):
        def process(self, row: Row, ctx: KeyedContext) -> None:
            ctx.timer(row.ts + timedelta(minutes=5))
            ctx.timer(row.ts + timedelta(minutes=6))
            ctx.cancel_timer(row.ts + timedelta(minutes=6))
            ctx.timer(row.ts + timedelta(minutes=7))

        def on_timer(self, time: datetime, ctx: KeyedContext) -> Iterator[Any]:
            yield {"k": ctx.key.k, "minute": 0}

    run = chain(Once())
    assert run.epoch([{"k": "a", "ts": datetime(1960, 1, 1, tzinfo=timezone.utc)}])["main"] == []
    assert run.epoch()["main"] == []
    run.epoch([{"k": "b", "ts": NOON}])
    assert run.epoch()["main"] == [{"k": "a", "minute": 0}]


def test_a_timer_at_its_own_time_is_refused() -> None:
    class Again(Chain):
        def on_timer(self, time: datetime, ctx: KeyedContext) -> Any:
            ctx.timer(time)

    run = chain(Again())
    run.epoch([{"k": "a", "ts": at(9), "timers": [1]}])
    with pytest.raises(ValueError, match="would fire again forever"):
        run.epoch()


def test_timers_by_processing_time() -> None:
    class Later(KeyedProcess):
        def process(self, row: Row, ctx: KeyedContext) -> None:
            assert ctx.watermark is None
            assert ctx.now is not None
            ctx.timer(ctx.now + timedelta(minutes=1))

        def on_timer(self, time: datetime, ctx: KeyedContext) -> Iterator[Any]:
            yield ctx.key.k, time

    run = KeyedRun(Later(), by="k", outputs="k string, at timestamp", clock="processing", order=())
    assert run.epoch([{"k": "a"}], now=at(0))["main"] == []
    assert run.epoch(now=at(0.5))["main"] == []
    assert run.epoch(now=at(7))["main"] == [{"k": "a", "at": at(1)}]


def test_state_expires_by_processing_time() -> None:
    class Expiring(KeyedProcess):
        def open(self, state: Any) -> None:
            self.last = state.value("last", "int", ttl="1 minute")
            self.all = state.list("all", "int", ttl="1 minute")

        def process(self, row: Row, ctx: KeyedContext) -> Iterator[Any]:
            yield self.last.get(), self.all.get()
            self.last.update(row.x)
            self.all.add(row.x)

    run = KeyedRun(
        Expiring(), by="k", outputs="last int, all array<int>", clock="processing", order=()
    )
    seen = [
        run.epoch([{"k": "a", "x": x}], now=at(minute))["main"][0]
        for x, minute in enumerate([0, 0.5, 1.2, 9])
    ]
    assert [tuple(one.values()) for one in seen] == [(None, []), (0, [0]), (1, [1]), (None, [])]


class Seen(KeyedProcess):
    """Yields what it gets."""

    def process_rows(self, rows: list[Row], ctx: KeyedContext) -> list[Any]:
        return [(ctx.key.k, [row.x for row in rows], str(ctx.watermark))]


@pytest.mark.parametrize(
    ("late", "main", "side", "dropped"),
    [
        ("process", [1, 2, 3, None], [], 0),
        ("side", [2, 3, None], [1], 0),
        ("drop", [2, 3, None], [], 1),
    ],
)
def test_late_rows(late: str, main: list[int], side: list[int], dropped: int) -> None:
    run = KeyedRun(
        Seen(),
        by="k",
        outputs="k string, xs array<int>, w string",
        time="ts",
        watermark="2 minutes",
        late=late,
    )
    assert run.watermark is None
    run.epoch([{"k": "a", "ts": at(10), "x": 0}])
    assert run.watermark == at(8)
    rows = [(at(9), 3), (at(7.9), 1), (at(8), 2)]
    out = run.epoch(
        [{"k": "a", "ts": ts, "x": x} for ts, x in rows] + [{"k": "a", "ts": None, "x": None}]
    )
    in_order = sorted(main, key=lambda x: (x is not None, x))
    assert out["main"] == [{"k": "a", "xs": in_order, "w": "2026-01-01 12:08:00+00:00"}]
    assert [row["x"] for row in out.get("late", [])] == side
    assert run.dropped == dropped


def test_rows_come_in_an_order_of_their_own() -> None:
    rows = [{"k": "a", "ts": at(1), "x": x} for x in "bca"] + [{"k": "a", "ts": at(0), "x": "d"}]
    seen = set()
    for shift in range(4):
        run = KeyedRun(
            Seen(), by="k", outputs="k string, xs string, w string", time="ts", watermark="0 s"
        )
        out = run.epoch(rows[shift:] + rows[:shift])
        seen.add(str(out["main"]))
    assert len(seen) == 1
    assert "['d'," in seen.pop()


def test_what_a_process_changes_in_place_is_not_kept() -> None:
    class Mutating(KeyedProcess):
        def open(self, state: Any) -> None:
            self.xs = state.value("xs", ArrayType(LongType()))

        def process(self, row: Row, ctx: KeyedContext) -> Iterator[Any]:
            xs = self.xs.get()
            yield (str(xs),)
            if xs is None:
                self.xs.update([1])
            else:
                xs.append(2)

    run = KeyedRun(Mutating(), by="k", outputs="xs string", clock="processing", order=())
    rows = [{"k": "a"}] * 3
    assert [row["xs"] for row in run.epoch(rows)["main"]] == ["None", "[1]", "[1]"]


def test_a_map_has_one_zero_and_one_nan() -> None:
    """Spark compares the bytes of keys: across epochs, -0.0 would be another key than 0.0."""

    class Numbers(KeyedProcess):
        def open(self, state: Any) -> None:
            self.seen = state.map("seen", DoubleType(), LongType())

        def process(self, row: Row, ctx: KeyedContext) -> Iterator[Any]:
            for key in (-0.0, float("nan"), 0.0, float("nan")):
                self.seen.put(key, (self.seen.get(key) or 0) + 1)
            assert self.seen.get(math.nan)
            yield (repr(self.seen.items()),)

    run = KeyedRun(Numbers(), by="k", outputs="seen string", clock="processing", order=())
    assert run.epoch([{"k": "a"}])["main"] == [{"seen": "[(0.0, 2), (nan, 2)]"}]
    assert run.epoch([{"k": "a"}])["main"] == [{"seen": "[(0.0, 4), (nan, 4)]"}]


# -- mistakes


class Emitting(KeyedProcess):
    """Emits what a row says."""

    def process(self, row: Row, ctx: KeyedContext) -> Any:
        ctx.emit_to(row.to, row.what)


OUT = struct(
    user=StringType(),
    n=LongType(),
    at=TimestampType(),
    tags=ArrayType(StringType()),
    pairs=MapType(StringType(), LongType()),
    inner=struct(a=DoubleType()),
)
FINE = {
    "user": None,
    "n": 1,
    "at": NOON.astimezone(ZoneInfo("Europe/Berlin")),
    "tags": ["x"],
    "pairs": {"a": 1},
    "inner": Row(a=1),
}


def emit(what: Any, to: str = "main") -> list[dict[str, Any]]:
    run = KeyedRun(Emitting(), by="k", outputs={"main": OUT}, clock="processing", order=())
    return run.epoch([{"k": "a", "to": to, "what": what}])["main"]


def test_rows_that_fit() -> None:
    assert emit(FINE) == emit(Row(**FINE)) == emit(tuple(FINE.values())) == [FINE]
    assert emit(dict.fromkeys(FINE)) == [dict.fromkeys(FINE)]


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"n": "secret"}, "column 'n' (bigint): a value of type str does not fit"),
        ({"n": 2.5}, "column 'n' (bigint): a value of type float does not fit"),
        ({"n": 2**70}, "column 'n' (bigint): a value of type int does not fit"),
        ({"user": 5}, "column 'user' (string): a value of type int does not fit"),
        ({"at": datetime(2026, 1, 1)}, "column 'at' (timestamp): a datetime without a time zone"),
        ({"tags": [5]}, "column 'tags' (array<string>): a value of type list does not fit"),
        ({"pairs": {"a": 2.5}}, "column 'pairs' (map<string,bigint>): a value of type dict"),
        ({"inner": {"a": "secret"}}, "column 'inner' (struct<a:double>): a value of type dict"),
        ({"typo": 1}, "with 'typo', which it does not have"),
    ],
)
def test_the_error_of_a_row_that_does_not_fit_names_the_column_and_not_the_value(
    change: dict[str, Any], said: str
) -> None:
    with pytest.raises(TypeError) as raised:
        emit({**FINE, **change})
    assert "output 'main' of Emitting" in str(raised.value)
    assert said in str(raised.value)
    assert "secret" not in str(raised.value)
    assert raised.value.__suppress_context__ or raised.value.__context__ is None


def test_other_rows_that_do_not_fit() -> None:
    less = {name: value for name, value in FINE.items() if name != "n"}
    with pytest.raises(TypeError, match="without its column 'n'"):
        emit(less)
    with pytest.raises(TypeError, match=r"has 6 columns .* but the row has 1 values"):
        emit((1,))
    with pytest.raises(TypeError, match="takes a row: a dict, a Row or a tuple of user, n"):
        emit(5)
    with pytest.raises(KeyError, match=r"there is no output 'alert'; .* declares 'main'"):
        emit(FINE, to="alert")


@pytest.mark.parametrize("returned", [Row(n=1), {"n": 1}, (1,), "x", 5])
def test_one_row_is_not_rows(returned: Any) -> None:
    class One(KeyedProcess):
        def process(self, row: Row, ctx: KeyedContext) -> Any:
            return returned

    run = KeyedRun(One(), by="k", outputs="n int", clock="processing", order=())
    with pytest.raises(TypeError, match=r"process\(\) returned a single .*it must yield rows"):
        run.epoch([{"k": "a"}])


class Stateful(KeyedProcess):
    """Does with its states what a test says."""

    def __init__(self, declare: Any, do: Any = None) -> None:
        self.declare = declare
        self.do = do

    def open(self, state: Any) -> None:
        self.s = self.declare(state)

    def process(self, row: Row, ctx: KeyedContext) -> Any:
        return self.do(self, ctx)


def stateful(declare: Any, do: Any = None, **more: Any) -> Any:
    given = {"outputs": "n int", "clock": "processing", "order": (), "by": "k", **more}
    return KeyedRun(Stateful(declare, do), **given).epoch([{"k": "a", "ts": NOON}])["main"]


EVENT = {"clock": "event", "time": "ts", "watermark": "1 s"}


@pytest.mark.parametrize(
    ("declare", "more", "said"),
    [
        (lambda s: s.value("a b", "int"), {}, "a state's name consists of letters"),
        (lambda s: [s.value("a", "int"), s.list("a", "int")], {}, "already a state of this name"),
        (lambda s: s.value("a", 5), {}, r"state.value\('a'\) of Stateful takes columns as DDL"),
        (lambda s: s.value("a", "int", ttl="1 hour"), EVENT, "ttl= works in processing time"),
        (lambda s: s.value("a", StructType([])), {}, "has no columns"),
    ],
)
def test_states_that_are_refused(declare: Any, more: dict[str, Any], said: str) -> None:
    with pytest.raises(BadQuery, match=said):
        stateful(declare, **more)


def test_an_odd_duration_is_refused() -> None:
    with pytest.raises(BadSetting, match="ttl='soon' is not a duration"):
        stateful(lambda s: s.value("a", "int", ttl="soon"))
    with pytest.raises(BadSetting, match="watermark='soon' is not a duration"):
        stateful(lambda s: None, **{**EVENT, "watermark": "soon"})


@pytest.mark.parametrize(
    ("do", "error", "said"),
    [
        (lambda p, ctx: p.t.get(), AttributeError, r"declare it in open\(\): self.t = state.value"),
        (lambda p, ctx: p.s.update("secret"), TypeError, r"state 'a' \(bigint\): a value of type"),
        (lambda p, ctx: ctx.timer(NOON), RuntimeError, r"the process has no on_timer\(\)"),
        (lambda p, ctx: ctx.cancel_timer(5), TypeError, "takes a datetime .* not int"),
        (lambda p, ctx: ctx.cancel_timer(datetime.min), TypeError, "not one without"),
    ],
)
def test_mistakes_at_run_time(do: Any, error: type[Exception], said: str) -> None:
    with pytest.raises(error, match=said) as raised:
        stateful(lambda s: s.value("a", LongType()), do)
    assert "secret" not in str(raised.value)


def test_a_state_belongs_to_a_key() -> None:
    with pytest.raises(RuntimeError, match=r"state 'a' belongs to a key"):
        stateful(lambda s: s.value("a", "int").get())


def test_open_must_declare_the_same_each_time() -> None:
    names = iter("ab")
    with pytest.raises(RuntimeError, match="declares state 'b' differently than when the query"):
        stateful(lambda s: s.value(next(names), "int"))


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ({"clock": "both"}, "all timers of an operator use one clock"),
        ({"clock": "event"}, "needs time="),
        ({"late": "keep"}, "'process', 'side' or 'drop'"),
        ({"late": "side"}, "no row is late"),
        ({"order": None}, "needs order="),
        ({"time": "ts"}, "time= belongs to clock='event'"),
        ({"watermark": "1 s"}, "watermark= belongs to clock='event'"),
        ({"outputs": {}}, "outputs= takes the columns of each output"),
        ({"outputs": {"a b": "n int"}}, "an output's name consists of letters"),
        ({"outputs": {"main": "int"}}, "names no column"),
        ({"outputs": {"late": "n int"}, "late": "side", **EVENT}, "to which late='side' sends"),
    ],
)
def test_arguments_that_say_nothing_together(more: dict[str, Any], said: str) -> None:
    with pytest.raises(BadQuery, match=said):
        stateful(lambda s: None, **more)


def test_what_is_no_process_is_refused() -> None:
    given: dict[str, Any] = {"by": "k", "outputs": "n int", "clock": "processing", "order": ()}
    with pytest.raises(BadQuery, match=r"pass an instance, not the class: Silence\(\)"):
        KeyedRun(Silence, **given)  # type: ignore[arg-type]
    with pytest.raises(BadQuery, match="object is not one"):
        KeyedRun(object(), **given)  # type: ignore[arg-type]
    with pytest.raises(BadQuery, match="has neither process"):
        KeyedRun(KeyedProcess(), **given)


def test_a_process_can_be_copied() -> None:
    assert isinstance(copy.deepcopy(copy.copy(Silence())), Silence)


@pytest.mark.parametrize(
    ("ddl", "names", "plain"),
    [
        ("bigint", ("value",), True),
        ("decimal(10, 2)", ("value",), True),
        ("map<string, array<int>>", ("value",), True),
        ("n bigint", ("n",), False),
        ("n: bigint, `a b` decimal(10, 2)", ("n", "a b"), False),
        ("m map<string, int>, d date", ("m", "d"), False),
    ],
)
def test_names_of_columns_without_spark(ddl: str, names: tuple[str, ...], plain: bool) -> None:
    assert names_of(ddl) == KeyedColumns(names, plain=plain)


def test_values_of_many_types_come_back_as_they_were() -> None:
    values = {
        "double": 1,
        "decimal(10,2)": Decimal("1.50"),
        "date": date(2026, 1, 1),
        "binary": b"\0\1",
        "boolean": True,
    }
    types = [DoubleType(), DecimalType(10, 2), DateType(), BinaryType(), BooleanType()]
    for value, type_ in zip(values.values(), types, strict=True):
        codec = KeyedColumns.of("a", type_).codec("a")
        assert codec.decode(codec.encode(value)) == value
        assert codec.decode(codec.encode(None)) is None
    assert isinstance(KeyedColumns.of("a", DoubleType()).codec("a").encode(1)[0], float)
