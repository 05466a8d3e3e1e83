"""The workload of the kill tests and the demo: seeded input files, and what must come of them.

Each input file is one epoch: JSON lines with a few bad ones among them, and a few good ones that
are there twice on purpose, so that a job which drops repeated rows is found out too. What must come
out is worked out from the input files alone, without Spark and without any memory of the run::

    <folder>/input/00000.json …      what went in
    <folder>/clean/…parquet          the good rows (FileSink)
    <folder>/totals.db               rows and amount per key, added up epoch by epoch (SqliteSink)
    <folder>/checkpoint/             Spark's progress and the decision log
    <folder>/scratch/                what the children said, and marks of where they died
"""

from __future__ import annotations

import json
import random
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

NAME = "demo"
CLEAN = "clean"
TOTALS = "totals"
SCHEMA = "id long, key string, amount long"
_KEYS = ("ash", "birch", "cedar", "elm", "fir", "hazel", "oak", "pine")
_ID_STEP = 1_000_000  # ids of one file; so an id tells which file it came from
_BAD = 0.04
_TWICE = 0.02


class DemoRow(NamedTuple):
    """One good row."""

    id: int
    key: str
    amount: int


class Total(NamedTuple):
    """What one key adds up to. Both must fit: a lost row can hide a doubled one in one of them."""

    rows: int
    amount: int


@dataclass(frozen=True)
class Expected:
    """What must come out, by input file and in all."""

    files: dict[str, Counter[DemoRow]]
    rows: Counter[DemoRow]
    bad: int

    @property
    def totals(self) -> dict[str, Total]:
        """Rows and amount per key."""
        return totals_of(self.rows)


@dataclass(frozen=True)
class RunFolder:
    """One folder with everything of a run that is not input."""

    folder: Path

    @property
    def database(self) -> Path:
        """The target of the totals per key."""
        return self.folder / f"{TOTALS}.db"

    @property
    def checkpoint(self) -> Path:
        """Spark's progress and the decision log."""
        return self.folder / "checkpoint"

    @property
    def scratch(self) -> Path:
        """What the children said, and marks of where they died."""
        return self.folder / "scratch"


@dataclass(frozen=True)
class Workload(RunFolder):
    """The input too, and the files that come of it."""

    seed: int = 0
    rows_per_file: int = 200

    @property
    def input(self) -> Path:
        """Where input files appear, each whole."""
        return self.folder / "input"

    @property
    def clean(self) -> Path:
        """The target of the good rows."""
        return self.folder / CLEAN

    def make(self) -> Workload:
        """Make the folders that must be there before the first start."""
        for folder in (self.input, self.scratch):
            folder.mkdir(parents=True, exist_ok=True)
        return self

    def files(self) -> list[Path]:
        """The input files, oldest first."""
        return sorted(self.input.glob("*.json"))

    def add(self, count: int) -> None:
        """Write the next input files, each under its final name only when it is whole."""
        first = len(self.files())
        for number in range(first, first + count):
            path = self.input / f"{number:05d}.json"
            hidden = path.with_name(f".{path.name}")
            hidden.write_text("".join(f"{line}\n" for line in self.lines(number)), "utf-8")
            hidden.rename(path)

    def lines(self, number: int) -> Iterator[str]:
        """The lines of one input file: the same for the same seed and number."""
        rng = random.Random(f"{self.seed} {number}")
        for index in range(self.rows_per_file):
            row = DemoRow(number * _ID_STEP + index, rng.choice(_KEYS), rng.randint(1, 1_000_000))
            if rng.random() < _BAD:
                yield _spoilt(row, rng)
                continue
            line = json.dumps(row._asdict())
            yield line
            if rng.random() < _TWICE:
                yield line

    def expected(self) -> Expected:
        """Read the input back and work out what must come of it."""
        files: dict[str, Counter[DemoRow]] = {}
        rows: Counter[DemoRow] = Counter()
        bad = 0
        for path in self.files():
            found = [good_row(line) for line in path.read_text("utf-8").splitlines()]
            good = Counter(row for row in found if row is not None)
            files[path.name] = good
            rows.update(good)
            bad += found.count(None)
        return Expected(files, rows, bad)


def good_row(line: str) -> DemoRow | None:
    """The row of a line, or None if the job must drop it."""
    try:
        fields = json.loads(line)
    except ValueError:
        return None
    id_, key, amount = (fields.get(name) for name in DemoRow._fields)
    if id_ is None or key is None or amount is None or amount <= 0:
        return None
    return DemoRow(id_, key, amount)


def totals_of(rows: Counter[DemoRow]) -> dict[str, Total]:
    """Add rows up by key."""
    totals: dict[str, Total] = {}
    for row, count in rows.items():
        before = totals.get(row.key, Total(0, 0))
        totals[row.key] = Total(before.rows + count, before.amount + count * row.amount)
    return totals


def _spoilt(row: DemoRow, rng: random.Random) -> str:
    """A line that must not come out: cut off, without a key, or without a usable amount."""
    whole = json.dumps(row._asdict())
    return rng.choice(
        (
            whole[: whole.index('"amount"')],
            json.dumps({"id": row.id, "amount": row.amount}),
            json.dumps({**row._asdict(), "amount": None}),
            json.dumps({**row._asdict(), "amount": -row.amount}),
        )
    )
