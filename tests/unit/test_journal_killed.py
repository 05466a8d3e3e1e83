"""kill -9 while the journal cuts back what a full disk let it write only in part."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import pytest

from beadline.sources.journal.log import Journal
from tests.unit.test_journal import values

# A limit on the size of files stands in for the disk. Whatever was acknowledged is printed.
CHILD = """
import os, resource, signal, sys
from pathlib import Path
from beadline.sources.journal import log as _journal
from beadline.sources.journal.log import JournalProblem

folder, moment, turn = Path(sys.argv[1]), sys.argv[2], int(sys.argv[3])
_journal.BUFFER_BYTES_MAX = int(sys.argv[4])
journal = _journal.Journal(folder)
cuts = 0

def die():
    os.kill(os.getpid(), signal.SIGKILL)

def ftruncate(file, length, cut=os.ftruncate):
    global cuts
    cuts += 1
    if cuts == turn and moment == "before":
        die()
    cut(file, length)
    if cuts == turn and moment == "cut":
        die()

def fsync(file, sync=os.fsync):
    sync(file)
    if cuts == turn and moment == "synced":
        die()

os.ftruncate, os.fsync = ftruncate, fsync
resource.setrlimit(resource.RLIMIT_FSIZE, (200_000, resource.RLIM_INFINITY))
waiting = []
for number in range(120):
    if number == 80:
        resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
    try:
        journal.append(b"%d " % number + b"x" * 9_000)
        waiting.append(number)
        if number % 3 == 2:
            journal.sync()
            print(*waiting, flush=True)
            waiting = []
    except (OSError, JournalProblem):
        waiting = []
"""


@pytest.mark.parametrize("buffer", [1, 16 << 20])
@pytest.mark.parametrize("turn", [1, 2, 3])
@pytest.mark.parametrize("moment", ["before", "cut", "synced"])
def test_killed_in_a_cut_back(tmp_path: Path, moment: str, turn: int, buffer: int) -> None:
    """What was acknowledged is there, once and in order; the rest follows it."""
    command = [sys.executable, "-c", CHILD, str(tmp_path), moment, str(turn), str(buffer)]
    child = subprocess.run(command, capture_output=True, text=True, check=False)
    assert child.returncode == -signal.SIGKILL, "it was not killed: " + child.stderr
    acknowledged = [int(number) for number in child.stdout.split()]
    assert acknowledged
    again = Journal(tmp_path)
    again.append(b"-1")
    found = [int(value.split()[0]) for value in values(tmp_path, 0, again.sync())]
    assert found[-1] == -1
    assert found[: len(acknowledged)] == acknowledged
    # A record that was written whole, but never acknowledged, may follow them.
    rest = found[len(acknowledged) : -1]
    assert rest == sorted(set(rest))
    assert all(number > acknowledged[-1] for number in rest)
