"""The driver processes of one job: each in its own session, killed by order or at a random moment.

A kill from outside comes at a random moment: after a number of events plus a fraction of a second,
so that it hits the epochs and not, nearly always, the seconds in which a JVM starts. Now and then
it does hit those.
"""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

from beadline.points import CrashOrder
from beadline.shared.retry import polls
from beadline.verify import processes
from beadline.verify.driver import STANDBY
from beadline.verify.plan import GROUP, WORKER
from beadline.verify.terminal import without_control_codes

CHILD_TIMEOUT_S = 180.0
Line = dict[str, Any]
_COMPLAINT_LINES = 40
_POLL_S = 0.02
_EVENTS_MAX = 10
_START_S = 6.0
_EPOCH_S = 0.5
# Fewer than the attempts of a task (see the driver's master): the query must survive it.
WORKER_KILLS_MAX = 3


class Child:
    """A started driver. Its events arrive on a thread while it runs."""

    def __init__(
        self,
        module: str,
        arguments: Sequence[str],
        log: Path,
        temporary: Path,
        on_event: Callable[[Line], None] = lambda line: None,
        environment: Mapping[str, str] | None = None,
        redact: Callable[[str], str] = str,
    ) -> None:
        """Start a module as a program; ``environment`` says where it must die.

        ``redact`` removes secrets from its output.
        """
        self.events: list[Line] = []
        self.timed_out = False  # ended by its supervisor, not by itself
        self._log = log
        self._marker = f"TMPDIR={temporary}"
        self._on_event = on_event
        self._redact = redact
        self._started_s = self._ended_s = time.monotonic()
        inherited = {k: v for k, v in os.environ.items() if not k.startswith("BEADLINE_CRASH")}
        own = {"TMPDIR": str(temporary), "PYSPARK_PYTHON": sys.executable}
        with self._log.open("wb") as out:
            self._process = subprocess.Popen(
                [sys.executable, "-m", module, *arguments],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=out,
                env={**inherited, **own, **(environment or {})},
                start_new_session=True,
            )
        stdout = self._process.stdout
        assert stdout is not None
        # A daemon: a zombie JVM holds the pipe open, and nothing must wait for its end.
        self._reader = threading.Thread(target=self._read, args=(stdout,), daemon=True)
        self._reader.start()

    def begin(self, due: Path) -> None:
        """Let a process that was started ahead begin its work."""
        self._started_s = time.monotonic()
        due.touch()

    @property
    def pid(self) -> int:
        """The id of the driver process, its group and its session."""
        return self._process.pid

    @property
    def seconds(self) -> float:
        """How long it lived."""
        return self._ended_s - self._started_s

    @property
    def alive(self) -> bool:
        """Whether the driver process still runs."""
        return self._process.poll() is None

    @property
    def asleep(self) -> bool:
        """Whether the driver process has been stopped, by SIGSTOP."""
        return processes.state(self.pid) == processes.ASLEEP

    @property
    def committed(self) -> int:
        """How many epochs it has committed."""
        return sum(line["kind"] == "committed" for line in self.events)

    def wait(self, timeout_s: float = CHILD_TIMEOUT_S) -> int:
        """Wait for the end of the driver process; its JVM may outlive it."""
        try:
            returncode = self._process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            self.timed_out = True
            self.end()
            self._ended_s = time.monotonic()
            last = self._redact(str(self.events[-5:]))
            raise TimeoutError(
                f"a child did not end in {timeout_s} s; its last events: {last}\n{self.complaint()}"
            ) from None
        self._ended_s = time.monotonic()
        self._reader.join(timeout=1.0 if returncode == 0 else 0.2)
        return returncode

    def wait_for_events(self, count: int, timeout_s: float) -> bool:
        """Wait until it has emitted ``count`` events; False if it ended before."""
        return self.wait_until(lambda: len(self.events) >= count, timeout_s)

    def wait_until(self, ready: Callable[[], bool], timeout_s: float = CHILD_TIMEOUT_S) -> bool:
        """Wait until ``ready()``, or until the driver has ended; return the last answer."""
        again = polls(timeout_s, _POLL_S)
        while not ready():
            if not self.alive or not again():
                return ready()
        return True

    def end(self) -> None:
        """End the driver and everything that it left behind."""
        if self._process.poll() is None:
            processes.kill_group(self.pid)
            self._process.wait()
        processes.end_all(self.pid, self._marker)

    def python_workers(self) -> tuple[list[int], list[int]]:
        """The daemons and the workers of its JVM, by their ids."""
        return processes.python_workers(self.pid, self._marker)

    def complaint(self) -> str:
        """The end of its output, for diagnosis."""
        failures = [str(line["message"]) for line in self.events if line["kind"] == "failed"]
        # Cleaned before it is truncated: the last lines of a log may all be progress bars.
        lines = without_control_codes(self._log.read_text("utf-8", "replace")).splitlines()
        return self._redact(without_control_codes("\n".join(failures or lines[-_COMPLAINT_LINES:])))

    def _read(self, stdout: IO[bytes]) -> None:
        for text in stdout:
            try:
                line = json.loads(text)
            except ValueError:
                continue  # the JVM writes to the same pipe
            if isinstance(line, dict) and "kind" in line:
                self.events.append(line)
                self._on_event(line)


@dataclass
class Children:
    """The starts of one job on one checkpoint; leftovers of all of them are ended with it.

    Most of a start is spent on Python's imports and on the JVM. If several are ``expected``, the
    next process is started while the previous one works, and waits with Spark running until it is
    due (``driver.stand_by``); so it takes its orders from a file.
    """

    module: str
    folder: Path  # for their logs, and for the marks of where they died
    temporary: Path  # not in that folder: PySpark's sockets are made there, with short paths
    on_event: Callable[[Line], None] = lambda line: None
    redact: Callable[[str], str] = str
    zombies: int = 1  # how many of the newest keep their processes while the next one runs
    expected: int = 1  # starts in all
    started: list[Child] = field(default_factory=list)
    _waiting: Child | None = None

    def mark(self) -> Path:
        """The file that the next child makes when it dies, or is stopped."""
        return self.folder / f"mark-{len(self.started):03d}"

    def start(
        self,
        *arguments: str,
        order: CrashOrder | None = None,
        environment: Mapping[str, str] | None = None,
    ) -> Child:
        """Start the next one, with the order where to die; it is due now."""
        number = len(self.started)
        if number > self.zombies:
            self.started[number - 1 - self.zombies].end()
        variables = dict(environment or {})
        child, self._waiting = self._waiting, None
        if child is None:
            own = order.environment() if order is not None else {}
            child = self._made(number, arguments, {**variables, **own})
        else:
            if order is not None:
                self._file("order", number).write_text(order.to_text(), "utf-8")
            child.begin(self.due(number))
        if number + 1 < self.expected:
            orders = {"BEADLINE_CRASH_FILE": str(self._file("order", number + 1))}
            due = {STANDBY: str(self.due(number + 1))}
            self._waiting = self._made(number + 1, arguments, {**orders, **due, **variables})
        self.started.append(child)
        return child

    def due(self, number: int) -> Path:
        """The file that tells a child which was started ahead that it is due."""
        return self._file("due", number)

    def _made(self, number: int, arguments: Sequence[str], variables: Mapping[str, str]) -> Child:
        log = self.folder / f"child-{number:03d}.log"
        return Child(
            self.module, arguments, log, self.temporary, self.on_event, variables, self.redact
        )

    def _file(self, kind: str, number: int) -> Path:
        return self.folder / f"{kind}-{number:03d}"

    def end(self) -> None:
        """End every process."""
        for child in (*self.started, *([self._waiting] if self._waiting else [])):
            child.end()


def kill_at_random(
    child: Child, scope: str, rng: random.Random, timeout_s: float = CHILD_TIMEOUT_S
) -> int:
    """Wait for the moment, then kill; return how many kills hit a process."""
    if scope == WORKER:
        return _kill_workers(child, rng, timeout_s)
    events = rng.randint(0, _EVENTS_MAX)
    delay_s = rng.uniform(0, _EPOCH_S if events else _START_S)
    if not child.wait_for_events(events, timeout_s):
        return 0
    time.sleep(delay_s)
    if not child.alive:
        return 0
    return int(processes.kill_group(child.pid) if scope == GROUP else processes.kill(child.pid))


def _kill_workers(child: Child, rng: random.Random, timeout_s: float) -> int:
    """Kill Python workers during an epoch, now and then the daemon that forks them."""
    child.wait_for_events(rng.randint(1, _EVENTS_MAX), timeout_s)
    kills = 0
    for _ in range(rng.randint(1, WORKER_KILLS_MAX)):
        victim = _find_worker(child, rng, timeout_s)
        if victim is None:
            break
        kills += processes.kill(victim)
        time.sleep(rng.uniform(0.05, _EPOCH_S))
    return kills


def _find_worker(child: Child, rng: random.Random, timeout_s: float) -> int | None:
    """One worker of the child's JVM, as soon as there is one."""
    again = polls(timeout_s, _POLL_S / 2)
    while child.alive:
        daemons, workers = child.python_workers()
        if workers:
            return rng.choice(daemons if daemons and rng.random() < 0.2 else workers)
        if not again():
            break
    return None
