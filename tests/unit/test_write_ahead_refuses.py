"""``WriteAheadSink``: what is refused, when, and in which words."""

from __future__ import annotations

import socket
from collections.abc import Callable
from datetime import date, datetime
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest

from beadline.errors import BadSink, CommitFailed, PrepareFailed, RowsRefused
from beadline.sink import Outcome, Part, Prepared
from beadline.sinks.write_ahead import Delivery, Endpoint, HttpEndpoint, WriteAheadSink
from beadline.testing.suite.target import QUERY, epoch_id, part_id
from tests.unit.write_ahead_endpoints import SCHEMA, commit, prepare, rows

got: list[dict[str, Any]] = []


def keep(delivery: Delivery) -> None:
    got.extend(delivery.rows)


def chatty(delivery: Delivery) -> Any:
    return "I have done it, I think"


async def later(delivery: Delivery) -> None:
    got.extend(delivery.rows)


def even(batch: pa.RecordBatch) -> tuple[Any, str]:
    return pc.equal(pc.bit_wise_and(batch["n"], 1), 0), "odd numbers are not sold here"


def wrong_length(batch: pa.RecordBatch) -> tuple[Any, str]:
    return pa.array([True]), "no"


def wrong_shape(batch: pa.RecordBatch) -> Any:
    return True


def no_reason(batch: pa.RecordBatch) -> tuple[Any, str]:
    return pa.array([True] * batch.num_rows), ""


class Wired(Endpoint):
    """Made with its socket open, as one should not."""

    name = "wired"

    def __init__(self) -> None:
        self.socket = socket.socket()

    def deliver(self, delivery: Delivery) -> None:
        """Never called."""


@pytest.fixture(autouse=True)
def _nothing_yet() -> None:
    got.clear()


def inner() -> Callable[[Delivery], None]:
    def local(delivery: Delivery) -> None:
        """Created again in every run."""

    return local


@pytest.mark.parametrize(
    ("deliver", "words"),
    [
        (lambda delivery: None, "created again in every run"),
        (inner(), "created again in every run"),
        (Wired, r"the class Wired itself; make one: Wired\(\.\.\.\)"),
        ("http://shop/orders", "not 'str'"),
        (None, "not 'NoneType'"),
        (later, "later that is async"),
        (partial(keep), "has no name of its own"),
    ],
)
def test_wrong_endpoints(tmp_path: Path, deliver: Any, words: str) -> None:
    with pytest.raises(BadSink, match=words):
        WriteAheadSink(deliver, tmp_path)


def test_a_name_is_made_fit(tmp_path: Path) -> None:
    assert WriteAheadSink(keep, tmp_path).default_name == "keep"
    assert WriteAheadSink(partial(keep), tmp_path, "my shop").default_name.startswith("my-shop-")


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"folder": "hdfs://namenode/wal"}, "not a local folder"),
        ({"folder": "s3a://bucket/wal"}, "not a local folder"),
        ({"batch_rows": 0}, "batch_rows must be 1 or more"),
        ({"batch_rows": 1.5}, "batch_rows must be 1 or more"),
        ({"parallel": 0}, "parallel must be 1 or more"),
        ({"timeout_s": 0}, "timeout_s must be more than 0"),
        ({"timeout_s": float("nan")}, "timeout_s must be more than 0"),
        ({"accepts": lambda batch: None}, "created again in every run"),
    ],
)
def test_wrong_settings(tmp_path: Path, settings: dict[str, Any], words: str) -> None:
    with pytest.raises(BadSink, match=words):
        WriteAheadSink(keep, **{"folder": tmp_path, **settings})


def test_a_relative_folder_is_resolved_where_the_sink_is_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert WriteAheadSink(keep, "wal").folder == f"file:{tmp_path}/wal"
    assert WriteAheadSink(keep, f"file://{tmp_path}/wal") == WriteAheadSink(keep, "wal")


def test_a_folder_that_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    sink = WriteAheadSink(keep, tmp_path / "file" / "wal")
    with pytest.raises(BadSink, match="Not a directory"):
        sink.check(SCHEMA, QUERY)
    with pytest.raises(BadSink, match=r"Permission denied|Read-only|No such|not permitted"):
        WriteAheadSink(keep, "/proc/wal").check(SCHEMA, QUERY)


def test_an_endpoint_that_cannot_travel(tmp_path: Path) -> None:
    wired = Wired()
    with pytest.raises(BadSink, match=r"endpoint 'wired' cannot be sent .* Endpoint.open\(\)"):
        WriteAheadSink(wired, tmp_path).check(SCHEMA, QUERY)
    wired.socket.close()


def test_two_columns_of_one_name(tmp_path: Path) -> None:
    with pytest.raises(BadSink, match="two columns named 'n'"):
        WriteAheadSink(keep, tmp_path).check(pa.schema([*SCHEMA, SCHEMA.field("n")]), QUERY)


def test_a_return_value_does_not_count_as_accepted(tmp_path: Path) -> None:
    sink = WriteAheadSink(chatty, tmp_path)
    parts = prepare(sink, 0, rows(1))
    with pytest.raises(CommitFailed, match="return nothing if the rows were accepted"):
        commit(sink, 0, parts)
    assert got == []


@pytest.mark.parametrize(
    ("url", "words"),
    [
        ("", "must be like https"),
        ("ftp://shop/orders", "must be like https"),
        ("http:///orders", "must be like https"),
        ("http://shop:99999/", "must be like https"),
        ("http://shop/a b", "must be like https"),
        ("http://shop/\r\nX: y", "must be like https"),
        ("http://häuser.example/", "must be like https"),
        ("http://me:pa55word@shop/orders", "holds no user and password"),
    ],
)
def test_wrong_urls(url: str, words: str) -> None:
    with pytest.raises(BadSink, match=words) as caught:
        HttpEndpoint(url)
    assert "pa55word" not in str(caught.value)


@pytest.mark.parametrize(
    "headers",
    [
        {"Authorization": "s3cret\r\nX: y"},
        {"Auth orization": "s3cret"},
        {"Authorization": "s3cret 🧵"},
        {"Idempotency-Key": "s3cret"},
        {"Content-Length": "s3cret"},
    ],
)
def test_headers_that_cannot_be_sent(headers: dict[str, str]) -> None:
    with pytest.raises(BadSink, match="header") as caught:
        HttpEndpoint("http://shop/", headers)
    assert "s3cret" not in str(caught.value)


def test_other_settings_of_http() -> None:
    with pytest.raises(BadSink, match="'lines' or 'array'"):
        HttpEndpoint("http://shop/", form="xml")  # type: ignore[arg-type]
    with pytest.raises(BadSink, match="timeout_s"):
        HttpEndpoint("http://shop/", timeout_s=0)
    assert HttpEndpoint("http://[::1]:80/", {"a": "b"}).target == "http://[::1]:80"
    assert hash(HttpEndpoint("http://shop/", {"a": "b"}))


def refused_and_taken(
    sink: WriteAheadSink, table: pa.Table
) -> tuple[list[tuple[list[Any], str]], list[Any]]:
    refused: list[tuple[list[Any], str]] = []
    name = table.schema.names[0]

    def refuse(batch: pa.RecordBatch, reason: str) -> None:
        refused.append((batch[name].to_pylist(), reason))

    id_ = part_id(0)
    staged = sink.prepare(iter(table.to_batches(max_chunksize=4)), Part(id_, refuse=refuse))
    if staged is None:
        return refused, []
    kept = [n for batch in sink.staging_area.read(staged) for n in batch[name].to_pylist()]
    return refused, kept


def test_rows_that_are_not_accepted_are_refused_before_anything_is_decided(tmp_path: Path) -> None:
    sink = WriteAheadSink(keep, tmp_path, accepts=even)
    refused, kept = refused_and_taken(sink, pa.table({"n": [1, 2, 3, None, 4, 6]}))
    assert refused == [([1, 3, None], "odd numbers are not sold here")]
    assert kept == [2, 4, 6]
    assert refused_and_taken(sink, pa.table({"n": [1]}))[1] == []
    with pytest.raises(RowsRefused, match="odd numbers"):
        prepare(sink, 1, rows(1))
    (part,) = prepare(sink, 2, rows(2, 4))
    assert commit(sink, 2, [part]) == {Outcome.COMMITTED}
    assert got == rows(2, 4)


@pytest.mark.parametrize("accepts", [wrong_length, wrong_shape, no_reason])
def test_accepts_that_does_not_answer_the_question(tmp_path: Path, accepts: Any) -> None:
    sink = WriteAheadSink(keep, tmp_path, accepts=accepts)
    with pytest.raises(PrepareFailed, match="a boolean for each of 2 rows"):
        prepare(sink, 0, rows(1, 2))


FAR = 200_000 * 366 * 86_400_000_000


def bad_text() -> pa.Array:
    buffers = [None, pa.py_buffer(np.array([0, 1, 2], "i4")), pa.py_buffer(b"a\xff")]
    return pa.Array.from_buffers(pa.string(), 2, buffers)


@pytest.mark.parametrize(
    "column",
    [
        pa.array([0, FAR], pa.timestamp("us", "UTC")),
        pa.array([0, -FAR], pa.timestamp("us")),
        pa.array([0, 5_000_000], pa.date32()),
        pa.array([[0], [FAR]], pa.list_(pa.timestamp("us"))),
        pa.array([{"t": 0}, {"t": FAR}], pa.struct([("t", pa.timestamp("us"))])),
        pa.array([[("a", 0)], [("b", FAR)]], pa.map_(pa.string(), pa.timestamp("us"))),
        bad_text(),
    ],
    ids=str,
)
def test_what_python_cannot_hold_is_refused(tmp_path: Path, column: pa.Array) -> None:
    """At commit it would hold its epoch up for good."""
    sink = WriteAheadSink(keep, tmp_path)
    refused, kept = refused_and_taken(sink, pa.table({"n": [1, 2], "column": column}))
    assert [numbers for numbers, _ in refused] == [[2]]
    assert "cannot be read in Python" in refused[0][1]
    assert kept == [1]


def test_values_just_within_the_limits_are_kept(tmp_path: Path) -> None:
    sink = WriteAheadSink(keep, tmp_path)
    ends = [datetime(1, 1, 1), datetime(9999, 12, 31, 23, 59, 59, 999_999)]
    table = pa.table(
        {
            "n": [1, 2, 3],
            "t": pa.array([*ends, None], pa.timestamp("us")),
            "d": pa.array([date(1, 1, 1), date(9999, 12, 31), None], pa.date32()),
            "l": pa.array([[end] for end in ends] + [None], pa.list_(pa.timestamp("us"))),
        }
    )
    id_ = part_id(0)
    staged = sink.prepare(iter(table.to_batches()), Part(id_))
    assert staged is not None
    sink.commit(epoch_id(0), [Prepared(id_, 3, staged)])
    assert [row["t"] for row in got] == [*ends, None]


def test_nothing_is_needed_of_the_folder_before_the_first_part(tmp_path: Path) -> None:
    sink = WriteAheadSink(keep, tmp_path / "a" / "b" / "c")
    sink.check(SCHEMA, QUERY)
    assert list(tmp_path.iterdir()) == []
    assert sink.last_seen(QUERY, "under-test") is None
    assert list(sink.in_doubt(QUERY, "under-test")) == []
    assert commit(sink, 0, prepare(sink, 0, rows(1))) == {Outcome.COMMITTED}
