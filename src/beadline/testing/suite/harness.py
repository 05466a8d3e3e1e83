"""``SinkHarness``: what the suite must know of a sink, in some twenty lines by its author."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any

import pyarrow as pa

from beadline.sink import AnySink

Row = dict[str, Any]

_SCHEMA = pa.schema([("id", pa.int64()), ("word", pa.string()), ("amount", pa.float64())])


@contextmanager
def unmounted(folder: Path, sink: AnySink) -> Iterator[AnySink]:
    """Take a folder away for a while, as a disk that is not mounted; for ``unreachable``."""
    away = folder.with_name(f"{folder.name}.away")
    folder.rename(away)
    try:
        yield sink
    finally:
        assert not folder.exists(), f"{folder} was recreated on the disk below"
        away.rename(folder)


class SinkHarness(ABC):
    """Makes targets, reads them, and states facts about them; one is made for every case.

    ``other_process`` says whether a process without Spark can reach the target: false for memory.
    ``secrets`` are texts in the sink's settings that must show nowhere. ``spark`` is for a
    ``FrameSink``. ``odd_column`` names a column in an odd way; tame it only for a system
    that cannot have such a name. ``volatile`` are patterns of the names of local files that a power
    cut may take away without harm, such as locks. ``sinks_share`` is false where two sinks of one
    query cannot write to one target.
    """

    schema: pa.Schema = _SCHEMA
    other_process: bool = True
    secrets: Collection[str] = ()
    spark: Any = None
    volatile: Collection[str] = ()
    sinks_share: bool = True
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

        Look for yourself, not through ``in_doubt``. A ledger is not a leftover.
        """

    def plant_stranger(self, sink: AnySink) -> str | None:
        """Put something that is not Beadline's where prepared parts are kept.

        Return its name as ``leftovers`` lists it; None if there is no such place.
        """
        return None

    def unreachable(self, sink: AnySink) -> AbstractContextManager[AnySink] | None:
        """Cut the target off: stop it, unmount it, or return the sink with an address that is dead.

        Inside the ``with``, the sink that it gives cannot reach what the other one can; after it,
        everything is as before. None if there is no such thing, as for memory.
        """
        raise AssertionError(
            f"{type(self).__name__} has no unreachable(sink): what this sink makes of a target "
            "that does not answer was not tried, and to call its parts lost would double or lose "
            "rows. Cut the target off there, or return None if it cannot be cut off"
        )

    def alter(self, sink: AnySink) -> AbstractContextManager[None] | None:
        """Give the target's column ``amount`` a type that does not keep 2.5, such as an integer.

        After the ``with``, it has its own type again, and whole numbers are as they were. None if
        that is not possible, because columns have no types there, or a prepared part locks them.
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
