"""A refused row whose text is no UTF-8 still reaches the dead-letter sink."""

from __future__ import annotations

import json
from typing import Any

import pyarrow as pa
import pytest

from beadline.shared.row_json import row_texts

BAD = b"a\xff\xe2(\x80"
SHOWN = "a\ufffd\ufffd(\ufffd"


def unchecked(values: list[bytes | None], kind: pa.DataType) -> pa.Array:
    """As Arrow gets them from Spark: text that nobody has looked at."""
    narrow = kind == pa.string()
    held = pa.array(values, pa.binary() if narrow else pa.large_binary())
    return pa.Array.from_buffers(kind, len(held), held.buffers())


@pytest.mark.parametrize("kind", [pa.string(), pa.large_string()], ids=str)
def test_bytes_that_are_no_utf8_are_replaced(kind: pa.DataType) -> None:
    words = unchecked([b"fine", BAD, None, "ö🧵".encode()], kind)
    raw = pa.array([BAD] * 4, pa.binary())
    rows = pa.record_batch([pa.array(range(4)), words, raw], names=["id", "word", "raw"])
    found = [json.loads(text) for text in row_texts(rows)]
    assert [row["word"] for row in found] == ["fine", SHOWN, None, "ö🧵"]
    assert [row["id"] for row in found] == [0, 1, 2, 3]
    assert {row["raw"] for row in found} == {"Yf/iKIA="}, "bytes stay what they are"


def nested() -> list[tuple[pa.Array, Any]]:
    words = unchecked([BAD, b"b"], pa.string())
    numbers = pa.array([1, 2])
    structs = pa.StructArray.from_arrays([words, numbers], ["w", "n"])
    return [
        (pa.ListArray.from_arrays([0, 2], words), [SHOWN, "b"]),
        (pa.MapArray.from_arrays([0, 2], words, numbers), {SHOWN: 1, "b": 2}),
        (structs.slice(0, 1), {"w": SHOWN, "n": 1}),
        (
            pa.ListArray.from_arrays([0, 2], structs),
            [{"w": SHOWN, "n": 1}, {"w": "b", "n": 2}],
        ),
    ]


@pytest.mark.parametrize(("array", "shown"), nested())
def test_inside_other_values_too(array: pa.Array, shown: Any) -> None:
    (text,) = row_texts(pa.record_batch([array], names=["x"]))
    assert json.loads(text) == {"x": shown}


def test_beside_dates_that_python_has_not() -> None:
    struct = pa.StructArray.from_arrays(
        [unchecked([BAD], pa.string()), pa.array([2**58], pa.timestamp("us", "UTC"))], ["w", "at"]
    )
    (text,) = row_texts(pa.record_batch([struct], names=["x"]))
    assert json.loads(text)["x"]["w"] == SHOWN
    assert json.loads(text)["x"]["at"] == "11103-08-29T17:22:31.711744Z"
