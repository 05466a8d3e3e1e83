"""``ConsoleSink``: rows on the driver's terminal, for people to watch.

A terminal cannot be asked what it has printed, so an epoch that is committed again after a crash is
printed again. The sink is therefore at-least-once, and needs ``allow="at-least-once"`` in an
exactly-once query. Only the rows that will be printed are sent to the driver, already as text.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING, Any, Literal

from beadline.sink import (
    BadSink,
    Capabilities,
    CommitResult,
    Committable,
    EpochId,
    Guarantee,
    Outcome,
    Part,
    Prepared,
    QueryId,
    Seen,
    Sink,
)

if TYPE_CHECKING:
    import pyarrow as pa


@dataclass(frozen=True)
class ConsolePart(Committable):
    """The first rows of a part as text, and how many rows the part has."""

    columns: tuple[str, ...]
    lines: tuple[tuple[str, ...], ...]
    rows: int


@dataclass(frozen=True)
class ConsoleSink(Sink[ConsolePart]):
    """Print up to ``rows`` rows of every epoch, each value cut to ``width`` characters."""

    rows: int = 20
    width: int = 40
    to: Literal["stdout", "stderr"] = "stdout"

    def __post_init__(self) -> None:
        """Refuse settings that make no sense."""
        if self.rows < 0 or self.width < 1 or self.to not in ("stdout", "stderr"):
            raise BadSink(
                f"{self!r}: rows must be 0 or more, width 1 or more, and to 'stdout' or 'stderr'. "
                "Nothing was written."
            )

    @property
    def default_name(self) -> str:
        """Always ``console``: there is one terminal."""
        return "console"

    def check(self, schema: pa.Schema, query: QueryId) -> Capabilities:
        """Accept any schema: everything can be printed."""
        return Capabilities(
            guarantee=Guarantee.AT_LEAST_ONCE,
            sentence="Each epoch is printed; one finished after a crash may be printed twice.",
            target=f"console:{self.to}",
            raised_by="Use a target that knows what it holds: files or a table.",
        )

    def prepare(self, rows: Iterator[pa.RecordBatch], part: Part) -> ConsolePart | None:
        """Keep the first rows as text, and count all of them."""
        columns: tuple[str, ...] = ()
        lines: list[tuple[str, ...]] = []
        count = 0
        for batch in rows:
            columns = columns or tuple(map(str, batch.schema.names))
            head = batch.slice(0, self.rows - len(lines))
            values = zip(*(column.to_pylist() for column in head.columns), strict=True)
            lines += [tuple(_text(value, self.width) for value in row) for row in values]
            count += batch.num_rows
        return ConsolePart(columns, tuple(lines), count) if count else None

    def commit(self, epoch: EpochId, parts: Sequence[Prepared[ConsolePart]]) -> CommitResult:
        """Print the epoch."""
        if parts:
            found = sorted(parts, key=lambda part: part.id.partition)
            text = _table([part.committable for part in found], self.rows)
            where = f"{epoch.query.name} → {found[0].id.sink}, epoch {epoch.number}"
            stream = sys.stdout if self.to == "stdout" else sys.stderr
            print(f"── {where} ──\n{text}", file=stream, flush=True)
        return CommitResult.all(parts, Outcome.COMMITTED)

    def abort(self, parts: Sequence[Prepared[ConsolePart]]) -> None:
        """Do nothing: nothing was printed."""

    def in_doubt(self, query: QueryId, name: str) -> Iterable[Prepared[ConsolePart]]:
        """Return nothing: nothing is kept."""
        return ()

    def last_seen(self, query: QueryId, name: str) -> Seen | None:
        """Return None: a terminal remembers nothing."""
        return None


def _text(value: Any, width: int) -> str:
    text = "" if value is None else value if isinstance(value, str) else repr(value)
    text = text.encode("unicode_escape").decode() if not text.isprintable() else text
    return text if len(text) <= width else text[: width - 1] + "…"


def _table(parts: Sequence[ConsolePart], rows: int) -> str:
    """Format the rows in columns, with the number of rows left out."""
    total = sum(part.rows for part in parts)
    lines = list(islice((line for part in parts for line in part.lines), rows))
    columns = parts[0].columns
    widths = [
        max(len(name), *(len(line[i]) for line in lines), 0) for i, name in enumerate(columns)
    ]
    drawn = [
        "  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip()
        for line in (columns, *lines)
    ]
    more = [f"… and {total - len(lines)} more rows"] if total > len(lines) else []
    return "\n".join([*drawn, *more])
