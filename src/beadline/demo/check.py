"""The checker: what came out against what went in, as multisets. It only observes.

It reads the finished files with PyArrow and the totals with SQLite, so that nothing which it
judges has a say in the judgement. The database is copied first, with its journal: to open it in
place would roll an interrupted transaction back, which is the job's to do, not the observer's.
"""

from __future__ import annotations

import shutil
import sqlite3
import tempfile
from collections import Counter
from contextlib import closing
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from beadline.demo.workload import CLEAN, TOTALS, DemoRow, Expected, Total, Workload

_PART_PREFIX = "beadline~"  # how the text form of every part's id begins


@dataclass(frozen=True)
class SinkTally:
    """One sink: rows that show in it, rows missing, rows too many."""

    rows_out: int
    lost: int
    duplicated: int


@dataclass(frozen=True)
class Tally:
    """What a run came to.

    ``torn`` counts input files of which some rows show and others do not, and output files that
    cannot be read. ``leftovers`` are parts that were neither finished nor aborted.
    """

    rows_in: int
    rows_bad: int
    sinks: dict[str, SinkTally]
    torn: int
    totals_right: bool
    leftovers: tuple[str, ...] = ()

    @property
    def lost(self) -> int:
        """Rows missing, over all sinks."""
        return sum(sink.lost for sink in self.sinks.values())

    @property
    def duplicated(self) -> int:
        """Rows too many, over all sinks."""
        return sum(sink.duplicated for sink in self.sinks.values())

    @property
    def exactly_once(self) -> bool:
        """Nothing lost, nothing twice, nothing torn, totals right."""
        return not (self.lost or self.duplicated or self.torn) and self.totals_right

    def as_dict(self) -> dict[str, Any]:
        """The same for JSON, with the sums."""
        return {**asdict(self), "lost": self.lost, "duplicated": self.duplicated}


def check(workload: Workload) -> Tally:
    """Compare a whole run."""
    expected = workload.expected()
    rows, unreadable = finished_rows(workload.clean)
    totals = read_totals(workload.database)
    wanted = expected.totals
    return Tally(
        rows_in=expected.rows.total(),
        rows_bad=expected.bad,
        sinks={CLEAN: compare_rows(expected.rows, rows), TOTALS: compare_totals(wanted, totals)},
        torn=unreadable + torn(expected, rows),
        totals_right=totals == wanted,
        leftovers=tuple(leftovers(workload)),
    )


def finished_rows(folder: Path) -> tuple[Counter[DemoRow], int]:
    """Every row that a reader of the folder sees, and how many files it could not read."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    rows: Counter[DemoRow] = Counter()
    unreadable = 0
    for path in sorted(folder.rglob("*.parquet")):
        if any(part.startswith((".", "_")) for part in path.relative_to(folder).parts):
            continue
        try:
            table = pq.read_table(path, columns=list(DemoRow._fields))
        except (pa.ArrowException, OSError):
            unreadable += 1
            continue
        columns = (table.column(name).to_pylist() for name in DemoRow._fields)
        rows.update(map(DemoRow._make, zip(*columns, strict=True)))
    return rows, unreadable


def read_totals(database: Path) -> dict[str, Total]:
    """The totals per key."""
    found = read_table(database, TOTALS, "key, rows, amount")
    return {key: Total(rows, amount) for key, rows, amount in found}


def read_table(database: Path, table: str, columns: str) -> list[Any]:
    """The rows of a table, as any reader of the database would find them; none without a table."""
    if not database.exists():
        return []
    with tempfile.TemporaryDirectory(prefix="beadline-check-") as folder:
        for suffix in ("", "-journal", "-wal"):
            source = database.with_name(database.name + suffix)
            if source.exists():
                shutil.copy2(source, Path(folder, source.name))
        with closing(sqlite3.connect(Path(folder, database.name))) as copy:
            made = copy.execute("SELECT 1 FROM sqlite_master WHERE name = ?", (table,)).fetchone()
            return copy.execute(f"SELECT {columns} FROM {table}").fetchall() if made else []


def leftovers(workload: Workload) -> list[str]:
    """Parts that are still pending or staged."""
    places = (
        workload.folder / f".{CLEAN}.beadline",
        workload.folder / f".{workload.database.name}.beadline" / TOTALS,
    )
    return sorted(
        str(path.relative_to(workload.folder))
        for place in places
        if place.is_dir()
        for path in place.iterdir()
        if path.name.startswith(_PART_PREFIX)
    )


def compare_rows(wanted: Counter[Any], found: Counter[Any]) -> SinkTally:
    """A row that never went in counts as one too many."""
    return SinkTally(found.total(), (wanted - found).total(), (found - wanted).total())


def compare_totals(wanted: dict[str, Total], found: dict[str, Total]) -> SinkTally:
    """Rows that were added up, missing or too many, over all keys."""
    missing = {key: wanted[key].rows - found.get(key, Total(0, 0)).rows for key in wanted}
    missing |= {key: -total.rows for key, total in found.items() if key not in wanted}
    return SinkTally(
        rows_out=sum(total.rows for total in found.values()),
        lost=sum(count for count in missing.values() if count > 0),
        duplicated=-sum(count for count in missing.values() if count < 0),
    )


def torn(expected: Expected, found: Counter[DemoRow]) -> int:
    """An epoch shows whole or not at all; an input file is an epoch."""
    shown = (
        (rows.total(), sum(min(count, found[row]) for row, count in rows.items()))
        for rows in expected.files.values()
    )
    return sum(1 for total, seen in shown if 0 < seen < total)
