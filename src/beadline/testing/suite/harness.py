"""``SinkHarness``: what the suite must be told of a sink, in some twenty lines by its author."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection
from typing import Any

import pyarrow as pa

from beadline.sink import AnySink

Row = dict[str, Any]

SCHEMA = pa.schema([("id", pa.int64()), ("word", pa.string()), ("amount", pa.float64())])


class SinkHarness(ABC):
    """Makes targets, reads them, and says facts about them; one is made for every case.

    ``other_process`` says whether a process without Spark can reach the target: false for memory.
    ``secrets`` are texts in the sink's settings that must show nowhere. ``spark`` is for a
    ``FrameSink``. ``odd_column`` names a column as no sane person would; tame it only for a system
    that cannot have such a name.
    """

    schema: pa.Schema = SCHEMA
    other_process: bool = True
    secrets: Collection[str] = ()
    spark: Any = None
    odd_column: str = 'it\'s "odd"; --'

    @abstractmethod
    def fresh(self, schema: pa.Schema) -> AnySink:
        """Return a sink on a target that nobody has used; make the table if it needs one."""

    @abstractmethod
    def visible(self, sink: AnySink) -> list[Row]:
        """Return what any reader of the target sees now, in any order."""

    @abstractmethod
    def leftovers(self, sink: AnySink) -> Collection[str]:
        """Return the names of what prepared parts take up outside: files, open transactions.

        Look for yourself, not through ``in_doubt``. A ledger is no leftover.
        """

    def plant_stranger(self, sink: AnySink) -> str | None:
        """Put something that is not Beadline's where prepared parts are kept.

        Return its name as ``leftovers`` lists it; None if there is no such place.
        """
        return None

    def row(self, number: int, version: int = 0) -> Row:
        """Return a row that fits ``schema``; rows of one number share their key, if any."""
        return {"id": number, "word": f"{number}.{version}", "amount": number + version / 2}

    def expected(self, rows: list[Row]) -> list[Row]:
        """Return what shows after these rows took effect in this order: if appended, all."""
        return rows

    def odd_rows(self) -> tuple[pa.Schema, list[Row]]:
        """Return rows of values on which systems stumble."""
        schema = pa.schema(
            [("id", pa.int64()), (self.odd_column, pa.string()), ("amount", pa.float64())]
        )
        words = [
            "",
            " ",
            "NULL",
            "null",
            "\\N",
            "'",
            '"',
            "%s",
            "ß ö 漢 🧵",
            "a\tb\nc",
            "007",
            None,
        ]
        numbers = [0, -1, 2**31, -(2**31), 2**53 + 1, 2**63 - 1, -(2**63)]
        amounts = [0.1, -1e300, 5e-324, None]
        rows = [
            {
                "id": numbers[i % len(numbers)] if i < len(numbers) else i,
                self.odd_column: word,
                "amount": amounts[i % len(amounts)],
            }
            for i, word in enumerate(words)
        ]
        return schema, rows
