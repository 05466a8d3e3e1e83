"""The journal's writer, killed at each of its points: what was acknowledged is there, in order.

Values that were on their way when it died are sent again, as every sender does who got no answer:
those, and no others, may be there twice. That is the one window that a journal leaves.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from beadline.points import JOURNAL_POINTS
from beadline.sources.journal.log import Journal, read, segments
from tests.kill.journal_writer import AT_ONCE

VALUES = 40
LIVES_MAX = 20


def live(folder: Path, first: int, crash: str | None) -> tuple[int, int]:
    """Let a writer live until it dies or is done; return its exit code, and the newest answer."""
    environment = {**os.environ, **({"BEADLINE_CRASH": crash} if crash else {})}
    done = subprocess.run(
        [sys.executable, "-m", "tests.kill.journal_writer", str(folder), str(first), str(VALUES)],
        env=environment,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode in (0, -signal.SIGKILL), done.stderr
    answers = done.stdout.split()
    return done.returncode, int(answers[-1]) if answers else first - 1


@pytest.mark.parametrize("count", [1, 2, 3])
@pytest.mark.parametrize("point", JOURNAL_POINTS)
def test_what_was_acknowledged_is_there_in_order(tmp_path: Path, point: str, count: int) -> None:
    acknowledged, killed = -1, 0
    again: set[int] = set()
    for _ in range(LIVES_MAX):
        crash = f"{point}#{count}" if killed < 3 else None
        code, newest = live(tmp_path, acknowledged + 1, crash)
        if code == 0:
            break
        killed += 1
        acknowledged = max(acknowledged, newest)
        again.update(range(acknowledged + 1, acknowledged + 1 + AT_ONCE))
    assert code == 0
    assert killed, f"nobody came by {point}#{count}"
    left = segments(tmp_path)
    found = [int(record.value) for record in read(tmp_path, left[0].first, left[-1].end)]
    expected = set(range(found[0], VALUES))  # the oldest segments were given up
    assert found[0] <= VALUES // 2 + AT_ONCE
    assert set(found) == expected
    assert {value for value, times in Counter(found).items() if times > 1} <= again
    assert list(dict.fromkeys(found)) == sorted(expected)


def test_a_journal_that_was_killed_can_be_opened_again(tmp_path: Path) -> None:
    """Even where it dies before its first segment is durable."""
    code, _ = live(tmp_path, 0, "journal.segment")
    assert code == -signal.SIGKILL
    journal = Journal(tmp_path)
    journal.append(b"x")
    end = journal.sync()
    journal.close()
    assert [record.value for record in read(tmp_path, 0, end)] == [b"x"]
