"""The processes of one child, as the operating system shows them; each is ended by its own id.

A child leads a session of its own. Its JVM is in the child's process group; PySpark's daemon and
the workers that it forks make a group of theirs, but stay in the session. So the session identifies
a run's processes, even after their parents are gone. Ids are reused, though, so a process counts as
the child's only if its environment holds the child's marker.
"""

from __future__ import annotations

import os
import signal
from dataclasses import dataclass
from pathlib import Path

from beadline.shared.retry import polls

ASLEEP = "T"
_PROC = Path("/proc")
_DAEMON = b"pyspark.daemon"
_END_TIMEOUT_S = 10.0


@dataclass(frozen=True)
class Process:
    """One living process."""

    pid: int
    parent: int
    is_python_worker: bool  # PySpark's daemon, or a worker that it forked


def of_child(session: int, marker: str) -> list[Process]:
    """Every living process of a child's session; none where there is no ``/proc`` to look at."""
    found = (_read(path, session, marker.encode()) for path in _PROC.glob("[0-9]*"))
    return [process for process in found if process is not None]


def python_workers(session: int, marker: str) -> tuple[list[int], list[int]]:
    """Return the daemons and the workers of a child's JVM.

    A daemon's parent is the JVM. Workers outlive their daemon, as another process's children.
    """
    found = of_child(session, marker)
    here = [process for process in found if process.is_python_worker]
    others = {process.pid for process in found if not process.is_python_worker}
    daemons = [process.pid for process in here if process.parent in others]
    return daemons, [process.pid for process in here if process.parent not in others]


def kill(pid: int) -> bool:
    """Send SIGKILL to one process; whether there was one."""
    try:
        os.kill(pid, signal.SIGKILL)
    except ProcessLookupError:
        return False
    return True


def kill_group(group: int) -> bool:
    """Send SIGKILL to a process group of ours; whether there was one."""
    try:
        os.killpg(group, signal.SIGKILL)
    except ProcessLookupError:
        return False
    return True


def end_all(session: int, marker: str) -> None:
    """End everything that a child left, and wait until it is gone."""
    again = polls(_END_TIMEOUT_S, 0.02)
    while left := of_child(session, marker):
        for process in left:
            kill(process.pid)
        if not again():
            raise TimeoutError(f"processes of session {session} do not end: {left}")


def _read(path: Path, session: int, marker: bytes) -> Process | None:
    """One entry of ``/proc``; None if it is another's, gone, or a zombie."""
    try:
        stat = (path / "stat").read_text("utf-8", "replace")
        # The name, in brackets, may hold anything: state, parent, group and session come after it.
        state, parent, _, its_session = stat.rpartition(")")[2].split()[:4]
        if state in "ZX" or int(its_session) != session:
            return None
        if marker not in (path / "environ").read_bytes():
            return None
        command = (path / "cmdline").read_bytes()
    except OSError:
        return None
    return Process(int(path.name), int(parent), _DAEMON in command)


def state(pid: int) -> str:
    """The kernel's letter for a process's state; empty if there is no such process."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text("utf-8", "replace")
    except (FileNotFoundError, ProcessLookupError):
        return ""
    return text.rpartition(")")[2].split()[0]
