"""Kill -9 of a driver with state: an epoch's plan runs again, and its state must move on once."""

from __future__ import annotations

import json
import os
import random
import signal
import sqlite3
import subprocess
import sys
from collections import Counter, defaultdict
from contextlib import closing
from dataclasses import dataclass, replace
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import is_long
from tests.kill.state_job import BEST, EVERY, FILES, KEYS, NEAR_S, ROWS
from tests.slowness import patient

# In any epoch: before anything is decided, decided and not committed, committed and not returned.
POINTS = ["prepare.after", "decide.before", "decide.after", "commit.after", "epoch.return"]
KILLS, KILLS_LONG = 2, 24
TIMEOUT_S = patient(400)
BASE = datetime(2026, 11, 19, 12, tzinfo=timezone.utc)


END = "end"  # a key of rows that only move the watermark


@dataclass(frozen=True)
class Given:
    """A row; its time in seconds."""

    file: int
    id: int
    k: str
    at: int
    late: bool


def write(folder: Path, rng: random.Random) -> list[Given]:
    """Write files of rows, each 15 s further, with late rows and with copies of rows in time."""
    (folder / "in").mkdir(parents=True)
    rows: list[Given] = []
    for number in range(FILES):
        here = []
        for at in range(ROWS):
            late = at % 4 == 0
            second = number * 15 + (rng.randint(-45, -1) if late else rng.randint(0, 14))
            here.append(Given(number, len(rows) + at, f"k{rng.randrange(KEYS)}", second, late))
        # Also of the file before, as far as the watermark allows.
        some = [one for one in [*rows, *here] if not one.late and one.at > number * 15 - 5]
        here += [replace(one, file=number) for one in rng.sample(some, 8)]
        if number == FILES - 1:
            here += [Given(number, 10_000 + side, END, 1000, late=False) for side in (0, 1)]
        rows += here
        lines = (
            json.dumps(
                {
                    "id": one.id,
                    "k": one.k,
                    "ts": (BASE + timedelta(seconds=one.at)).isoformat(),
                    "v": int(one.late),
                }
            )
            for one in here
        )
        path = folder / "in" / f"{number}.json"
        path.write_text("\n".join(lines) + "\n")
        os.utime(path, (1_700_000_000 + number, 1_700_000_000 + number))
    return rows


def drive(folder: Path, *kill: object) -> int:
    """One driver, to its end; the code that it ends with."""
    command = [sys.executable, "-m", "tests.kill.state_job", str(folder), *map(str, kill)]
    said = folder / "driver.log"
    with said.open("wb") as log:
        # Its JVM may outlive it for a moment, and must not be waited for.
        ended = subprocess.run(command, stdout=log, stderr=log, timeout=TIMEOUT_S, check=False)
    if ended.returncode not in (0, -signal.SIGKILL):
        print(said.read_text(errors="replace")[-20_000:])
    return ended.returncode


def table(folder: Path, columns: str, name: str) -> list[Any]:
    with closing(sqlite3.connect(folder / "out.db")) as database:
        return database.execute(f"SELECT {columns} FROM {name}").fetchall()


def results(folder: Path) -> dict[str, Counter[Any]]:
    """What each operator says in the end, by the newest revision of each result."""
    newest: dict[tuple[Any, ...], tuple[int, int, bool]] = {}
    found: dict[str, Counter[Any]] = defaultdict(Counter)
    columns = "what, k, at, other, value, revision, deleted"
    for what, k, at, other, value, revision, deleted in sorted(
        table(folder, columns, "results"), key=lambda row: row[5]
    ):
        if k == END:
            continue
        if what in ("joined", "once", "as_of"):
            found[what][k, at, other, value] += 1
            continue
        place = (what, k, at, other)
        before = newest[place][0] if place in newest else -1
        # A revision is the window's: a rank may have its first row in a later one.
        follows = revision > before if what == "top" else revision == before + 1
        assert follows, f"{place}: revision {revision} after {before}"
        newest[place] = revision, value, deleted
    for (what, k, at, other), (_, value, deleted) in newest.items():
        if not deleted:
            found[what][k, at, other, value] += 1
    return found


def oracle(rows: list[Given], ties: dict[tuple[int, int], int]) -> dict[str, Counter[Any]]:
    """The same, of all rows at once; ``ties``, by id and time, order the rows of one time."""
    start_s = round(BASE.timestamp())
    found: dict[str, Counter[Any]] = {}
    late_s = late_until(rows)
    rows = [row for row in rows if row.k != END]
    keys = {k: [row for row in rows if row.k == k] for k in {row.k for row in rows}}
    windows = {(k, start) for k in keys for start in {row.at // 10 * 10 for row in keys[k]}}
    inside = {
        (k, start): [row for row in keys[k] if start <= row.at < start + 10] for k, start in windows
    }
    found["windows"] = Counter(
        (k, start_s + start, 0, len(mine)) for (k, start), mine in inside.items()
    )
    slides = {(k, start - back) for k, start in windows for back in (-5, 0, 5)}
    inside_both = {
        (k, start): sum(start <= row.at < start + 10 for row in keys[k]) for k, start in slides
    }
    found["sliding"] = Counter(
        (k, start_s + start, 0, many) for (k, start), many in inside_both.items() if many
    )
    found["top"] = Counter(
        (k, start_s + start, rank, id_)
        for (k, start), mine in inside.items()
        for rank, id_ in enumerate(sorted((row.id for row in mine), reverse=True)[:BEST], 1)
    )
    found["sessions"], found["counted"] = Counter(), Counter()
    for k, mine in keys.items():
        sessions: list[list[int]] = []
        for at in sorted(row.at for row in mine):
            if not sessions or at - sessions[-1][-1] > 2:
                sessions.append([])
            sessions[-1].append(at)
        found["sessions"].update((k, start_s + each[0], 0, len(each)) for each in sessions)
        in_order = sorted(mine, key=lambda row: (row.file, row.at, ties[row.id, start_s + row.at]))
        for number in range(len(in_order) // EVERY):
            full = in_order[number * EVERY : (number + 1) * EVERY]
            found["counted"][k, number, 0, sum(row.id for row in full)] += 1
    in_time = [row for row in rows if not row.late]
    found["once"] = Counter({(row.k, row.id, 0, row.id): 1 for row in in_time})
    found["joined"] = joined(
        [row for row in in_time if row.id % 2 == 0], [row for row in in_time if row.id % 2]
    )
    versions = [row for row in in_time if row.id % 2]
    found["as_of"] = Counter(
        (row.k, row.id, int(row.at <= late_s[row.file]), version_of(row, versions, late_s))
        for row in rows
        if row.id % 2 == 0
    )
    return found


def late_until(rows: list[Given]) -> list[float]:
    """The watermark of each file: the smallest that an input of an operator has reached, less 5."""
    inputs = [[row for row in rows if not row.late and row.id % 2 == side] for side in (0, 1)]
    return [
        min(
            max((row.at - 5 for row in each if row.file < number), default=float("-inf"))
            for each in inputs
        )
        for number in range(FILES)
    ]


def version_of(row: Given, versions: list[Given], late_s: list[float]) -> int | None:
    """The newest version of a row's key at its time, of several the largest; none if it is late."""
    if row.at <= late_s[row.file]:
        return None
    known = [(one.at, one.id) for one in versions if one.k == row.k and one.at <= row.at]
    return max(known)[1] if known else None


def joined(lefts: list[Given], rights: list[Given]) -> Counter[Any]:
    """Try each with each; a row without a partner shows alone."""
    pairs = [
        (one, other)
        for one in lefts
        for other in rights
        if one.k == other.k and abs(one.at - other.at) <= NEAR_S
    ]
    found: Counter[Any] = Counter((one.k, one.id, other.id, 0) for one, other in pairs)
    partners = {(row.id, row.at) for pair in pairs for row in pair}
    found.update((one.k, one.id, None, 0) for one in lefts if (one.id, one.at) not in partners)
    found.update((one.k, None, one.id, 0) for one in rights if (one.id, one.at) not in partners)
    return found


@pytest.mark.timeout(1800)
def test_a_driver_with_state_that_is_killed(tmp_path: Path, rng: random.Random) -> None:
    """A chain of kills over one query with every operator, and over a count in update mode."""
    rows = write(tmp_path, rng)
    killed = 0
    for _ in range(KILLS_LONG if is_long() else KILLS):
        point, times = rng.choice(POINTS), rng.randint(1, 3)
        print(f"kill at {point}, the {times}. time")
        code = drive(tmp_path, point, times)
        assert code in (0, -signal.SIGKILL)
        killed += code != 0
    assert killed
    assert drive(tmp_path) == 0
    assert dict(table(tmp_path, "k, count", "counts")) == Counter(row.k for row in rows)
    said = json.loads((tmp_path / "ties.json").read_text())
    ties = {(id_, at): tie for id_, at, tie in said}
    found, expected = results(tmp_path), oracle(rows, ties)
    assert any(late for _, _, late, _ in expected["as_of"])
    for what in expected:
        assert found[what] == expected[what], what
