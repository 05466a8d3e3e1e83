"""Keys and times of rows, in the forms in which operators store and compare them."""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Iterable
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from beadline.event_time.aggregates import EXACT
from beadline.event_time.groups import Ints


def digest(key: Iterable[Any]) -> bytes:
    """Return a hash of 16 bytes for a key: the same for equal keys."""
    hashed = hashlib.blake2b(digest_size=16)
    for value in key:
        hashed.update(canonical(value))
    return hashed.digest()


def canonical(value: Any) -> bytes:
    """Return bytes that are the same for equal values, and differ for others."""
    if value is None:
        return b"\0"
    if isinstance(value, float):
        text = struct.pack(">d", value + 0.0 if value == value else float("nan"))
    elif isinstance(value, bytes):
        text = value
    elif isinstance(value, Decimal):
        text = str(EXACT.normalize(value)).encode()
    else:
        text = str(value).encode("utf-8", "surrogatepass")
    return b"\1" + struct.pack(">I", len(text)) + text


def microseconds_of(column: pa.ChunkedArray) -> Ints:
    """Return the times of a column; 0 for null."""
    times = pc.cast(column, pa.timestamp("us", tz=column.type.tz)).cast(pa.int64())
    return np.asarray(pc.fill_null(times, 0).to_numpy(), dtype=np.int64)
