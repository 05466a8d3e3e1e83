"""One server process: started, waited for, stopped or killed, and started again on the same data.

Tests of exactly-once kill servers on purpose, so a process here has three ways to end: `stop`
(polite, then not), `kill` (-9, as a crash) and the end of its owner. The last must hold even when
the owner itself is killed and runs no exit handler: a guard, a one-line shell that reads from a
pipe which only the owner holds, sees the pipe close and kills the server. Everything is ended by
its own process group, which the server leads, and never by name. POSIX only.
"""

from __future__ import annotations

import atexit
import os
import signal
import subprocess
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from beadline.shared.retry import polls
from beadline.testing.servers.base import ServerFailed
from beadline.testing.servers.ports import accepts

_POLL_S = 0.1
_GUARD = 'read -r word || kill -s KILL -- "-$1"'


class ServerProcess:
    """A server as a process of its own session, with its own folder and log file.

    Built stopped. `start` may be called again after `stop` or `kill`: same command, same ports,
    same data, and the log continues in the same file.
    """

    def __init__(
        self,
        name: str,
        command: Sequence[str],
        folder: Path,
        *,
        ports: Sequence[int] = (),
        env: Mapping[str, str] | None = None,
    ) -> None:
        self.name = name
        self.ports = tuple(ports)
        self.folder = folder
        self.log = folder / f"{name}.log"
        self._command = list(command)
        self._env = dict(os.environ if env is None else env)
        self._process: subprocess.Popen[bytes] | None = None
        self._guard: subprocess.Popen[bytes] | None = None
        self._owner = 0

    @property
    def pid(self) -> int:
        """The running server's process id; `ServerFailed` if it does not run."""
        if self._process is None or self._process.poll() is not None:
            raise ServerFailed(f"{self.name} is not running")
        return self._process.pid

    @property
    def alive(self) -> bool:
        """Whether the process runs; it may not serve yet."""
        return self._process is not None and self._process.poll() is None

    def start(self) -> None:
        """Start without waiting; see `wait_for_ports` and `wait_until`."""
        if self.alive:
            raise ServerFailed(f"{self.name} is already running, as process {self.pid}")
        self.folder.mkdir(parents=True, exist_ok=True)
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(
                self._command,
                cwd=self.folder,
                env=self._env,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        self._owner = os.getpid()
        _running.add(self)
        self._guard = subprocess.Popen(
            ["/bin/sh", "-c", _GUARD, "beadline-guard", str(self._process.pid)],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )

    def wait_for_ports(self, timeout_s: float = 60) -> None:
        """Return when every port accepts connections."""
        what = f"{self.name} to listen on {', '.join(map(str, self.ports))}"
        wait_until(lambda: all(map(accepts, self.ports)), what, [self], timeout_s)

    def stop(self, grace_s: float = 10) -> None:
        """Ask it to end, and kill it if it has not after `grace_s`. Fine if it does not run."""
        self._end(signal.SIGTERM, grace_s)

    def kill(self) -> None:
        """Kill -9, as a crash would. Fine if it does not run."""
        self._end(signal.SIGKILL, grace_s=10)

    def restart(self, timeout_s: float = 60) -> None:
        """Start it again, after a `kill` or instead of a `stop`, and wait for its ports."""
        self.stop()
        self.start()
        self.wait_for_ports(timeout_s)

    def log_tail(self, lines: int = 30) -> str:
        """The end of what the server printed, over all its starts."""
        try:
            text = self.log.read_text(encoding="utf-8", errors="replace")
        except FileNotFoundError:
            return "(no log)"
        return "\n".join(text.splitlines()[-lines:])

    def _end(self, first: signal.Signals, grace_s: float) -> None:
        process = self._process
        if process is None or self._owner != os.getpid():  # a fork of the owner ends nothing
            return
        if process.poll() is None:
            _signal_group(process.pid, first)
            try:
                process.wait(grace_s)
            except subprocess.TimeoutExpired:
                _signal_group(process.pid, signal.SIGKILL)
                process.wait()
        self._process = None
        self._release_guard()
        _running.discard(self)

    def _release_guard(self) -> None:
        """Tell the guard that there is nothing left to kill."""
        guard, self._guard = self._guard, None
        if guard is None or guard.stdin is None:
            return
        with suppress(BrokenPipeError):
            guard.stdin.write(b"done\n")
            guard.stdin.close()
        guard.wait()


def wait_until(
    ready: Callable[[], bool],
    what: str,
    processes: Sequence[ServerProcess],
    timeout_s: float = 60,
) -> None:
    """Poll until `ready()`; `ServerFailed` with the logs' tails if a process dies or time is up."""
    again = polls(timeout_s, _POLL_S)
    while not ready():
        dead = [process for process in processes if not process.alive]
        if dead:
            reason = f"{', '.join(process.name for process in dead)} died"
        elif again():
            continue
        else:
            reason = f"not there after {timeout_s:g} s"
        tails = [f"--- {each.log}\n{each.log_tail()}" for each in dead or processes]
        raise ServerFailed("\n".join([f"waited for {what}: {reason}", *tails]))


def run_to_end(name: str, command: Sequence[str], folder: Path, timeout_s: float = 60) -> None:
    """Run a command that ends by itself (a `format`, an `initdb`); `ServerFailed` if it fails."""
    step = ServerProcess(name, command, folder)
    step.start()
    try:
        process = step._process
        assert process is not None
        code = process.wait(timeout_s)
    except subprocess.TimeoutExpired:
        code = None
    finally:
        step.kill()
    if code != 0:
        ended = f"did not end in {timeout_s:g} s" if code is None else f"failed with code {code}"
        raise ServerFailed(f"{name} {ended}\n--- {step.log}\n{step.log_tail()}")


def _signal_group(pid: int, number: signal.Signals) -> None:
    with suppress(ProcessLookupError):
        os.killpg(pid, number)


_running: set[ServerProcess] = set()


def _stop_all() -> None:
    for process in list(_running):
        process.stop(grace_s=2)


atexit.register(_stop_all)
