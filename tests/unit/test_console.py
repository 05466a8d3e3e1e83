"""``ConsoleSink``: prints an epoch at commit, says that it may do so twice, and keeps it short."""

from __future__ import annotations

import json
from typing import Any

import pyarrow as pa
import pytest

from beadline.errors import BadSink
from beadline.ids import EpochId, PartId, QueryId
from beadline.sink import Guarantee, Part, Prepared
from beadline.sinks import ConsoleSink
from beadline.sinks.console import ConsolePart

QUERY = QueryId("orders", "a" * 32, "file:/checkpoint")
EPOCH = EpochId(QUERY, 3, "nonce", 1)


def prepared(sink: ConsoleSink, rows: list[dict[str, Any]], partition: int = 0) -> Any:
    id_ = PartId("orders", "a" * 32, "console", 1, 3, partition, 0)
    made = sink.prepare(iter(pa.Table.from_pylist(rows).to_batches(max_chunksize=2)), Part(id_))
    assert made is not None
    stored = ConsolePart.from_json(json.loads(json.dumps(made.to_json())))
    assert stored == made
    return Prepared(id_, made.rows, stored)


def test_it_declares_what_it_is() -> None:
    capabilities = ConsoleSink().check(pa.schema([("a", pa.int64())]), QUERY)
    assert capabilities.guarantee is Guarantee.AT_LEAST_ONCE
    assert capabilities.raised_by


def test_an_epoch_is_printed_in_the_order_of_its_parts(capsys: pytest.CaptureFixture[str]) -> None:
    sink = ConsoleSink(rows=3)
    parts = [
        prepared(sink, [{"id": 4, "word": "four"}], partition=1),
        prepared(sink, [{"id": i, "word": w} for i, w in enumerate(["one", None, "three"])]),
    ]
    assert capsys.readouterr().out == ""
    sink.commit(EPOCH, parts)
    assert capsys.readouterr().out.splitlines() == [
        "── orders → console, epoch 3 ──",
        "id  word",
        "0   one",
        "1",
        "2   three",
        "… and 1 more rows",
    ]


def test_long_and_unprintable_values_stay_on_their_line(capsys: pytest.CaptureFixture[str]) -> None:
    sink = ConsoleSink(width=6, to="stderr")
    sink.commit(EPOCH, [prepared(sink, [{"a": "x" * 50, "b": "\x1b[31m\n", "c": 1.5}])])
    out, err = capsys.readouterr()
    assert out == ""
    assert err.splitlines()[2] == "xxxxx…  \\x1b[…  1.5"


def test_only_what_is_shown_travels() -> None:
    part = prepared(ConsoleSink(rows=2), [{"n": n} for n in range(1000)])
    assert part.rows == 1000
    assert part.committable.lines == (("0",), ("1",))


def test_columns_of_one_name_are_both_shown(capsys: pytest.CaptureFixture[str]) -> None:
    batch = pa.RecordBatch.from_arrays([pa.array([1]), pa.array([2])], names=["n", "n"])
    id_ = PartId("orders", "a" * 32, "console", 1, 3, 0, 0)
    sink = ConsoleSink()
    made = sink.prepare(iter([batch]), Part(id_))
    assert made is not None
    sink.commit(EPOCH, [Prepared(id_, 1, made)])
    assert capsys.readouterr().out.splitlines()[1:] == ["n  n", "1  2"]


def test_version_1_stays_readable() -> None:
    stored = {"version": 1, "columns": ["a"], "lines": [["1"], ["2"]], "rows": 9}
    assert ConsolePart.from_json(stored) == ConsolePart(("a",), (("1",), ("2",)), 9)


def test_nothing_to_print() -> None:
    sink = ConsoleSink()
    empty = pa.RecordBatch.from_pylist([], schema=pa.schema([("a", pa.int64())]))
    id_ = PartId("orders", "a" * 32, "console", 1, 3, 0, 0)
    assert sink.prepare(iter([empty]), Part(id_)) is None
    assert sink.prepare(iter([]), Part(id_)) is None
    assert list(sink.in_doubt(QUERY, "under-test")) == []
    assert sink.last_seen(QUERY, "console") is None
    sink.abort([])


@pytest.mark.parametrize("settings", [{"rows": -1}, {"width": 0}, {"to": "printer"}])
def test_settings_that_cannot_be_right(settings: dict[str, Any]) -> None:
    with pytest.raises(BadSink, match="Nothing was written"):
        ConsoleSink(**settings)
