"""Named crash points: the places where a process may die, each tested by a real kill.

The protocol and the sinks call ``reach(name)`` between any two acts of which a crash could
separate one from the other. In production that is one dictionary look-up. The environment makes
a process kill itself with SIGKILL at one of them::

    BEADLINE_CRASH="decide.before#2"        the second time this process is there
    BEADLINE_CRASH_MARK=/some/file          made at the kill; while it is there, no second kill
    BEADLINE_CRASH_SCOPE=group              the whole process group, as when a machine dies
    BEADLINE_CRASH_SCOPE=pause              stopped (SIGSTOP) instead, until it is continued
    BEADLINE_CRASH_FILE=/some/file          the same four as JSON, read at every point: an order
                                            that can be given and changed while processes run
    BEADLINE_POINTS_SEEN=/some/folder       no process dies: an empty file for each point reached

A model test sets a hook instead, to try every order of crashes in one process.
"""

from __future__ import annotations

import json
import os
import signal
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass

# Of the protocol, and of the sinks that need no server.
POINTS: dict[str, str] = {
    "claim.before": "the query is checked; its claim is not in the log",
    "claim.after": "the claim holds a slot; nothing is finished or swept",
    "recover.before": "orphans are swept; about to finish the newest decision",
    "recover.after": "the newest decision is finished",
    "start.after": "recovery is done; Spark has not started",
    "append.written": "a record is durable under a temporary name",
    "append.linked": "a record has its final name; the folder is not yet synced",
    "epoch.begin": "Spark has planned the epoch and called back",
    "epoch.again": "Spark redelivered a decided epoch; it is finished, its state has not moved",
    "prepare.before": "nothing of the epoch is written",
    "prepare.part": "in a Python worker, before the sink gets the part",
    "prepare.acked": "in a Python worker, the part is prepared, its ack not sent",
    "prepare.between": "one sink has every ack, the next has none",
    "prepare.after": "every sink has every ack",
    "decide.before": "about to append the decision",
    "decide.after": "the epoch is decided, nothing is visible",
    "commit.between": "one sink shows the epoch, another may not",
    "commit.after": "every sink shows the epoch",
    "epoch.return": "about to tell Spark that the epoch is done",
    "staging.written": "a staged part is written but has no final name",
    "files.written": "Spark has written the files of the epoch; none is counted or synced",
    "files.begun": "the target's mark says that the epoch is begun; its files are still pending",
    "files.moving": "the pending files may leave their folder; none has left it since",
    "files.renaming": "some files of the epoch are finished, others pending",
    "files.renamed": "all files of the epoch are finished; the mark does not say so",
    "ledger.before": "rows and ledger row are in an open transaction",
    "ledger.after": "rows and ledger row are committed; staged parts are still there",
}
KAFKA_POINTS: dict[str, str] = {
    "kafka.begun": "in a Python worker, a transaction is begun; no record is sent",
    "kafka.sent": "in a Python worker, records have been sent to Kafka; the marker has not",
    "kafka.flushed": "in a Python worker, records and marker are in Kafka; not yet checked",
    "kafka.prepared": "in a Python worker, the transaction is known to be complete, and is open",
    "kafka.commit": "about to end the transactions of a decided epoch",
    "kafka.answered": "the brokers have answered; the answers are not yet read",
    "kafka.end_writer": "a transaction whose answer was lost is ended; its writer may continue",
    "kafka.proof": "a broker refuses to end a transaction; about to look for its marker",
    "kafka.fence": "about to fence writers, which aborts their open transactions",
}
JOURNAL_POINTS: dict[str, str] = {
    "journal.written": "values are in the journal's file; the disk may not have them",
    "journal.synced": "values are durable; neither their sender nor Spark knows",
    "journal.segment": "a new segment exists; its folder is not synced",
    "journal.forget": "an old segment is about to be deleted",
}
EVERY_POINT = {**POINTS, **KAFKA_POINTS, **JOURNAL_POINTS}

Hook = Callable[[str], None]


@dataclass(frozen=True)
class CrashOrder:
    """A process that reaches a point for the n-th time dies there, once; it then makes the mark."""

    point: str
    count: int = 1
    scope: str = "process"
    mark: str | None = None

    def __post_init__(self) -> None:
        """An unknown name is an error: it would never be reached."""
        if self.point not in EVERY_POINT:
            known = sorted(EVERY_POINT)
            raise ValueError(f"BEADLINE_CRASH names no crash point: {self.point!r}; known: {known}")

    def to_text(self) -> str:
        """Return the form of ``BEADLINE_CRASH_FILE``."""
        return json.dumps(asdict(self))

    def environment(self) -> dict[str, str]:
        """Return the environment variables that give a process this order when it starts."""
        mark = {} if self.mark is None else {"BEADLINE_CRASH_MARK": self.mark}
        crash = f"{self.point}#{self.count}"
        return {"BEADLINE_CRASH": crash, "BEADLINE_CRASH_SCOPE": self.scope, **mark}


_hook: Hook | None = None
_armed: CrashOrder | None = None
_passed: Counter[str] = Counter()
_file = os.environ.get("BEADLINE_CRASH_FILE")
_file_text = ""
_seen_folder = os.environ.get("BEADLINE_POINTS_SEEN")
_seen: set[str] = set()


def _arm() -> None:
    """Read the environment, once."""
    global _armed
    text = os.environ.get("BEADLINE_CRASH")
    if not text:
        return
    name, _, count = text.partition("#")
    scope = os.environ.get("BEADLINE_CRASH_SCOPE", "process")
    _armed = CrashOrder(name, int(count or 1), scope, os.environ.get("BEADLINE_CRASH_MARK"))


def _arm_by_file(path: str) -> None:
    """Read the current order; points that were passed under another order do not count."""
    global _armed, _file_text
    try:
        with open(path, encoding="utf-8") as file:
            text = file.read()
    except FileNotFoundError:
        text = ""
    if text != _file_text:
        _file_text = text
        _passed.clear()
        _armed = CrashOrder(**json.loads(text)) if text else None


def reach(name: str) -> None:
    """Mark a crash point; die here if so ordered."""
    if _hook is not None:
        _hook(name)
        return
    if _seen_folder is not None:
        _note(_seen_folder, name)
    if _file is not None:
        _arm_by_file(_file)
    order = _armed
    if order is not None and order.point == name:
        _passed[name] += 1
        if _passed[name] >= order.count and _take_mark(order.mark):
            die(order.scope)


def _note(folder: str, name: str) -> None:
    """Record that a process of this run reached the point."""
    if name not in _seen:
        _seen.add(name)
        os.close(os.open(os.path.join(folder, name), os.O_CREAT))


def die(scope: str = "process") -> None:
    """Kill this process, or its whole group, as a power cut would; or stop it."""
    if scope == "pause":
        # To this thread: if another thread took the signal, this one would continue for a moment.
        signal.pthread_kill(threading.get_ident(), signal.SIGSTOP)
        return
    if scope == "group":
        os.killpg(os.getpgid(0), signal.SIGKILL)
    os.kill(os.getpid(), signal.SIGKILL)


def _take_mark(mark: str | None) -> bool:
    """Only one process of a run dies: a Python worker that is forked again must not die too."""
    if mark is None:
        return True
    try:
        descriptor = os.open(mark, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o644)
    except FileExistsError:
        return False
    os.write(descriptor, str(os.getpid()).encode())
    os.close(descriptor)
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
