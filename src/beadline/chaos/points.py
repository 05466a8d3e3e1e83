"""Named crash points: the places where a process may die, each reached by a real kill in tests.

The protocol and the sinks call ``reach(name)`` between any two acts of which a crash could
separate one from the other. In production that is one dictionary look-up. The environment makes
a process kill itself with SIGKILL at one of them::

    BEADLINE_CRASH="decide.before#2"        the second time this process comes by
    BEADLINE_CRASH_MARK=/some/file          made at the kill; while it is there, no second kill
    BEADLINE_CRASH_SCOPE=group              the whole process group, as when a machine dies
    BEADLINE_CRASH_SCOPE=pause              stopped (SIGSTOP) instead, until somebody continues it

A model test sets a hook instead, so that every order of crashes can be tried in one process.
"""

from __future__ import annotations

import os
import signal
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager

POINTS: dict[str, str] = {
    "claim.before": "the query is checked; its claim is not in the log",
    "claim.after": "the claim holds a slot; nothing is finished or swept",
    "recover.before": "orphans are swept; about to finish the newest decision",
    "recover.after": "the newest decision is finished",
    "start.after": "everything is settled; Spark has not started",
    "append.written": "a record is durable under a temporary name",
    "append.linked": "a record has its final name; the folder is not yet synced",
    "epoch.begin": "Spark has planned the epoch and called back",
    "epoch.again": "Spark gave a decided epoch again; it is finished, its state has not moved",
    "prepare.before": "nothing of the epoch is written",
    "prepare.part": "in a Python worker, before the sink is given the part",
    "prepare.acked": "in a Python worker, the part is prepared, its ack not sent",
    "prepare.between": "one sink has every ack, the next has none",
    "prepare.after": "every sink has every ack",
    "decide.before": "about to append the decision",
    "decide.after": "the epoch is decided, nothing is visible",
    "commit.between": "one sink shows the epoch, another may not",
    "commit.after": "every sink shows the epoch",
    "epoch.return": "about to tell Spark that the epoch is done",
    "staging.written": "a staged part is written but has no final name",
    "files.renaming": "some files of the epoch are finished, others pending",
    "files.renamed": "all files of the epoch are finished; the marker is not written",
    "ledger.before": "rows and ledger row are in an open transaction",
    "ledger.after": "rows and ledger row are committed; staged parts are still there",
}

Hook = Callable[[str], None]

_hook: Hook | None = None
_armed: tuple[str, int] | None = None
_passed: Counter[str] = Counter()


def _arm() -> None:
    """Read the environment once; an unknown name is a mistake worth stopping for."""
    global _armed
    text = os.environ.get("BEADLINE_CRASH")
    if not text:
        return
    name, _, count = text.partition("#")
    if name not in POINTS:
        raise ValueError(f"BEADLINE_CRASH names no crash point: {name!r}; known: {sorted(POINTS)}")
    _armed = (name, int(count or 1))


def reach(name: str) -> None:
    """Come by a crash point."""
    if _hook is not None:
        _hook(name)
    elif _armed is not None and _armed[0] == name:
        _passed[name] += 1
        if _passed[name] >= _armed[1] and _take_mark():
            die()


def die() -> None:
    """End this process, or its whole group, as a power cut would; or put it to sleep."""
    scope = os.environ.get("BEADLINE_CRASH_SCOPE")
    if scope == "pause":
        os.kill(os.getpid(), signal.SIGSTOP)
        return
    if scope == "group":
        os.killpg(os.getpgid(0), signal.SIGKILL)
    os.kill(os.getpid(), signal.SIGKILL)


def _take_mark() -> bool:
    """Only one process of a run dies: a Python worker forked again must not die again."""
    mark = os.environ.get("BEADLINE_CRASH_MARK")
    if mark is None:
        return True
    try:
        os.close(os.open(mark, os.O_CREAT | os.O_EXCL))
    except FileExistsError:
        return False
    return True


@contextmanager
def hooked(hook: Hook) -> Iterator[None]:
    """Call ``hook`` at every crash point, for tests in one process."""
    global _hook
    before, _hook = _hook, hook
    try:
        yield
    finally:
        _hook = before


_arm()
