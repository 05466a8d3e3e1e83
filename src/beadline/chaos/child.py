"""One child: the driver process in a session of its own, and what it says before it dies."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import IO, Any

from beadline.chaos import processes
from beadline.chaos.readable import readable

CHILD_TIMEOUT_S = 180.0
Line = dict[str, Any]
_COMPLAINT_LINES = 40


class Child:
    """A started driver. Its events arrive on a thread, while it runs."""

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
        """Start a module as a program; ``environment`` says where it is to die.

        ``redact`` takes what is secret out of its complaints.
        """
        self.events: list[Line] = []
        self.timed_out = False  # ended by whoever waited for it, not by itself
        self._log = log
        self._marker = f"TMPDIR={temporary}"
        self._on_event = on_event
        self._redact = redact
        self._news = threading.Condition()
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
        # A daemon: a zombie JVM holds the pipe open, and nobody must wait for its end.
        self._reader = threading.Thread(target=self._read, args=(stdout,), daemon=True)
        self._reader.start()

    @property
    def pid(self) -> int:
        """Of the driver process, of its group and of its session."""
        return self._process.pid

    @property
    def seconds(self) -> float:
        """How long it lived."""
        return self._ended_s - self._started_s

    @property
    def alive(self) -> bool:
        """Whether the driver process still runs."""
        return self._process.poll() is None

    def wait(self, timeout_s: float) -> int:
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
        """Wait until it has told so many events; False if it ended before."""
        deadline = time.monotonic() + timeout_s
        with self._news:
            while len(self.events) < count and self.alive and time.monotonic() < deadline:
                self._news.wait(0.05)
        return len(self.events) >= count

    def end(self) -> None:
        """End the driver and everything that it has left behind."""
        if self._process.poll() is None:
            processes.kill_group(self.pid)
            self._process.wait()
        processes.end_all(self.pid, self._marker)

    def python_workers(self) -> tuple[list[int], list[int]]:
        """The daemons and the workers of its JVM, by their ids."""
        return processes.python_workers(self.pid, self._marker)

    def complaint(self) -> str:
        """What it said at its end, for whoever has to find out why."""
        told = [str(line["message"]) for line in self.events if line["kind"] == "failed"]
        # Cleaned before it is cut: the last lines of a log may be nothing but progress bars.
        lines = readable(self._log.read_text("utf-8", "replace")).splitlines()
        return self._redact(readable("\n".join(told or lines[-_COMPLAINT_LINES:])))

    def _read(self, stdout: IO[bytes]) -> None:
        for text in stdout:
            try:
                line = json.loads(text)
            except ValueError:
                continue  # the JVM writes to the same pipe
            if isinstance(line, dict) and "kind" in line:
                with self._news:
                    self.events.append(line)
                    self._news.notify_all()
                self._on_event(line)
