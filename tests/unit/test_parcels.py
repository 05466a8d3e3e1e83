"""Parcels: an epoch's rows of a bucket, in the same order however the shuffle brings them."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import permutations
from typing import Any

import pandas as pd
import pyarrow as pa
import pytest
from pyspark.sql.streaming.stateful_processor import TimerValues

from beadline.event_time import operator
from beadline.event_time.operator import (
    BUCKET,
    PARCEL,
    Clock,
    Operator,
    _pack,
    _parcels_of,
    _Processor,
    read_parcel,
)

SCHEMA = pa.schema([pa.field("n", pa.int64()), pa.field("ts", pa.timestamp("us", "UTC"))])


class Same(Operator):
    """Its rows, as they come."""

    def open(self, handle: Any) -> None:
        """No state."""

    def process(self, rows: pa.Table, clock: Clock) -> Iterator[pa.Table]:
        yield rows


def test_the_order_of_a_shuffle_does_not_matter() -> None:
    parcels = []
    for part, sent in ((0, 0), (0, 1), (2, 0), (300, 0)):
        first = 10_000 * part + 100 * sent
        rows = pa.table(
            {
                "n": [first, first + 1, first + 2],
                "ts": pa.array([0, None, 1], SCHEMA.field("ts").type),
                BUCKET: pa.array([7, 8, 7], pa.int32()),
            }
        )
        packed = _parcels_of(rows, part, sent).to_pydict()
        assert packed[BUCKET] == [7, 8]
        parcels.append(packed[PARCEL][0])
    for given in permutations(parcels):
        processor = _Processor(Same(), SCHEMA)
        frames = iter([pd.DataFrame({PARCEL: list(given[:2])}), pd.DataFrame({PARCEL: given[2:]})])
        (told,) = processor.handleInputRows((7,), frames, TimerValues(1, 0))
        found = read_parcel(told[PARCEL][0])["n"].to_pylist()
        assert found == [0, 2, 100, 102, 20_000, 20_002, 3_000_000, 3_000_002]


def test_large_rows_are_in_several_parcels(monkeypatch: pytest.MonkeyPatch) -> None:
    """In one parcel there is room for 2 GB."""
    monkeypatch.setattr(operator, "PARCEL_BYTES_MAX", 1000)
    rows = pa.RecordBatch.from_pydict({"n": ["x" * 100] * 6, BUCKET: pa.array([7] * 6, pa.int32())})
    sent = list(_pack(iter([rows.slice(at, 2) for at in (0, 2, 4)] * 10)))
    assert len(sent) > 3
    assert sum(read_parcel(one.as_py()).num_rows for batch in sent for one in batch[PARCEL]) == 60
