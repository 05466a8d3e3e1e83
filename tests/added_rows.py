"""Rows for the conformance suite of a sink that adds numbers to what is there under a key."""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import Any

import pyarrow as pa

from beadline.sink import AnySink
from beadline.testing.suite import Row, SinkHarness


class AddedRows(SinkHarness):
    """Two columns of a key, and one that is added up; no odd row shares its key with another."""

    schema = pa.schema([("id", pa.int64()), ("word", pa.string()), ("n", pa.int32())])

    def row(self, number: int, version: int = 0) -> Row:
        return {"id": number, "word": "w", "n": 10**version}

    def expected(self, rows: list[Row]) -> list[Row]:
        totals: dict[tuple[Any, ...], Row] = {}
        for row in rows:
            before = totals.get((row["id"], row["word"]))
            totals[row["id"], row["word"]] = (
                row if before is None else {**row, "n": before["n"] + row["n"]}
            )
        return list(totals.values())

    def alter(self, sink: AnySink) -> AbstractContextManager[None] | None:
        return None  # its rows have no such column

    def odd_rows(self) -> tuple[pa.Schema, list[Row]]:
        schema = pa.schema(
            [("id", pa.int64()), ("word", pa.string()), (self.odd_column, pa.float64())]
        )
        odd = super().odd_rows()[1]
        words = [row[self.odd_column] or "-" for row in odd]
        return schema, [
            {"id": row["id"], "word": word, self.odd_column: row["amount"]}
            for row, word in zip(odd, words, strict=True)
        ]
