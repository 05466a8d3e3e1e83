"""Kill -9 of a driver with state: an epoch's plan runs again, and its state must move on once."""

from __future__ import annotations

import json
import os
import random
import signal
import sqlite3
import subprocess
import sys
from collections import Counter
from contextlib import closing
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import is_long
from tests.kill.state_job import FILES, KEYS, ROWS

# In any epoch: before anything is decided, decided and not committed, committed and not returned.
POINTS = ["prepare.after", "decide.before", "decide.after", "commit.after", "epoch.return"]
KILLS, KILLS_LONG = 2, 24
TIMEOUT_S = 400
BASE = datetime(2026, 11, 19, 12, tzinfo=timezone.utc)


def write(folder: Path, rng: random.Random) -> list[tuple[str, int]]:
    """Files of rows, each 15 s further, some of them late; return keys and seconds."""
    (folder / "in").mkdir(parents=True)
    rows = []
    for number in range(FILES):
        some = [
            (f"k{rng.randrange(KEYS)}", max(0, number * 15 + rng.randint(-30, 14)))
            for _ in range(ROWS)
        ]
        rows += some
        lines = (
            json.dumps({"k": k, "ts": (BASE + timedelta(seconds=s)).isoformat(), "v": 1})
            for k, s in some
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
        print(said.read_text(errors="replace")[-4000:])
    return ended.returncode


def table(folder: Path, columns: str, name: str) -> dict[Any, int]:
    with closing(sqlite3.connect(folder / "out.db")) as database:
        rows = database.execute(f"SELECT {columns} FROM {name}").fetchall()
    return {row[:-1] if len(row) > 2 else row[0]: row[-1] for row in rows}


@pytest.mark.timeout(1800)
def test_a_driver_with_state_that_is_killed(tmp_path: Path, rng: random.Random) -> None:
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
    assert table(tmp_path, "k, count", "counts") == Counter(k for k, _ in rows)
    newest = (max(s for _, s in rows) - 5) // 10 * 10  # the windows that the watermark has passed
    expected = Counter((k, s // 10 * 10) for k, s in rows if s < newest)
    found = table(tmp_path, "k, window_start, n", "windows")
    assert {
        (k, round((datetime.fromisoformat(start) - BASE).total_seconds())): n
        for (k, start), n in found.items()
    } == expected
