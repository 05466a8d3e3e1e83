"""Refusals: what ``part.refuse`` does if there is a dead-letter sink.

The refused rows of a part wait in memory and go to the driver with its ack, so only those of the
attempt that counts are ever seen. This is meant for the occasional row, not for the bulk of a
stream: a part may refuse only a limited number of megabytes.
"""

from __future__ import annotations

import json
from dataclasses import replace
from typing import TYPE_CHECKING

from beadline.dead_letter import RefusedRow
from beadline.errors import RowsRefused
from beadline.shared.row_json import row_texts
from beadline.sink import Part, shown

if TYPE_CHECKING:
    import pyarrow as pa

REFUSED_BYTES_MAX = 16 << 20


class Refusals:
    """The refused rows of one part, for the dead-letter sink."""

    def __init__(self) -> None:
        self._found: list[tuple[str, str]] = []
        self._size_bytes = 0

    def __len__(self) -> int:
        """How many rows were refused."""
        return len(self._found)

    def refuse(self, rows: pa.RecordBatch, reason: str) -> None:
        """Keep the rows."""
        # Checked before they are serialized: a batch that is far too large must not fill the
        # memory.
        self._check(rows.nbytes, reason)
        for text in row_texts(rows):
            self._size_bytes += len(text.encode()) + len(reason.encode())
            self._check(0, reason)
            self._found.append((reason, text))

    def _check(self, more_bytes: int, reason: str) -> None:
        if self._size_bytes + more_bytes > REFUSED_BYTES_MAX:
            raise RowsRefused(
                f"more than {REFUSED_BYTES_MAX >> 20} MB of one part are refused, most recently: "
                f"{shown(reason)}. That is more than a dead-letter sink is meant for, so nothing "
                "of the epoch was written. Filter such rows in rows=, and give them their own sink"
            )

    def to_text(self) -> str | None:
        """Return the form that travels with the ack; None if there are none."""
        return json.dumps(self._found, ensure_ascii=False) if self._found else None


class RefusedAgain(Refusals):
    """For the dead-letter sink itself: its rows have nowhere else to go."""

    def refuse(self, rows: pa.RecordBatch, reason: str) -> None:
        """Raise: a row that goes nowhere would be lost."""
        raise RowsRefused(
            f"the dead-letter sink cannot take {rows.num_rows} refused row(s) either: "
            f"{shown(reason)}. Nothing of the epoch was written. Give dead_letter= a sink that "
            "takes any text, files for example"
        )


Refusing = type[Refusals] | None


def keeping(part: Part, refusing: Refusing) -> tuple[Part, Refusals]:
    """Return the part for the sink, and the collector for the rows that it refuses.

    Without a dead-letter sink ``refusing`` is None, and a refusal stops the epoch.
    """
    if refusing is None:
        return part, Refusals()
    refusals = refusing()
    return replace(part, refuse=refusals.refuse), refusals


def parse(text: str | None, sink: str, part: int) -> list[RefusedRow]:
    """Read the form in which refused rows travelled."""
    if text is None:
        return []
    return [RefusedRow(sink, part, reason, row) for reason, row in json.loads(text)]
