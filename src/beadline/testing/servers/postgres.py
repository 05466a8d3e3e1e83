"""A real PostgreSQL on the loopback interface, with a password.

::

    with postgres() as server:
        psycopg.connect(server.dsn)

Its programs refuse to run as root, so a root test run (a container) starts them as the user
`postgres`, which the package brings. Settings are PostgreSQL's own but for
`max_prepared_transactions`, which is 0 there, and for what keeps it small and to itself.
"""

from __future__ import annotations

import os
import pwd
import secrets
import shutil
import signal
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from beadline.extras import require
from beadline.testing.servers.base import ServerFailed, ServerUnavailable
from beadline.testing.servers.debian import program
from beadline.testing.servers.ports import LOOPBACK, free_ports
from beadline.testing.servers.process import ServerProcess, run_to_end, wait_until

if TYPE_CHECKING:
    import psycopg

_PACKAGE = "postgresql"
_USER = "postgres"
_START_TIMEOUT_S = 60.0
_STARTS_MAX = 5


class PostgresServer:
    """A running PostgreSQL; a fault test may `kill` and `restart` it: port and data stay."""

    def __init__(self, folder: Path, settings: Mapping[str, str]) -> None:
        """Lay out the folder, which the server's user must own; `start` starts."""
        (self.port,) = free_ports(1)
        self.password = secrets.token_hex(12)
        self._folder = folder
        self._data = folder / "data"
        defaults = {
            "listen_addresses": LOOPBACK,
            "port": str(self.port),
            "unix_socket_directories": "",
            "max_prepared_transactions": "64",
            "shared_buffers": "64MB",
            "log_min_messages": "fatal",
            "log_min_error_statement": "panic",
        }
        self._settings = {**defaults, **settings}

    @property
    def dsn(self) -> str:
        """Address of the database, with its password."""
        return self.dsn_of("postgres")

    def dsn_of(self, database: str, user: str = _USER, password: str | None = None) -> str:
        """The same server by another database, user or password."""
        word = self.password if password is None else password
        return f"postgresql://{user}:{word}@{LOOPBACK}:{self.port}/{database}"

    def connect(self) -> psycopg.Connection[Any]:
        """A connection of the tests' own, in which every statement is a transaction."""
        import psycopg

        return psycopg.connect(self.dsn, autocommit=True, connect_timeout=5)

    def start(self) -> None:
        """Make the database if it is new, start the server, and wait until it answers."""
        require("postgres")
        if not self._data.exists():
            self._initialise()
        arguments = [f"--{name}={value}" for name, value in self._settings.items()]
        command = [str(program("postgres", _PACKAGE)), "-D", str(self._data), *arguments]
        self.process = ServerProcess("postgres", [*_as_user(), *command], self._folder)
        self._start()

    def stop(self) -> None:
        """Stop it, even with clients connected; the folder stays."""
        process = getattr(self, "process", None)
        if process is not None and process.alive:
            # SIGTERM would wait for its clients to leave.
            os.kill(process.pid, signal.SIGINT)
            process.stop()

    def kill(self) -> None:
        """Kill -9, as when the machine dies: its backends too, which lead sessions of their own."""
        backends = _children(self.process.pid)
        self.process.kill()
        for pid in backends:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)

    def restart(self) -> None:
        """Start it again on its data, after a `kill` or instead of a `stop`, and wait for it."""
        self.stop()
        self._start()

    def _start(self) -> None:
        """A backend that has not noticed the death of the last server keeps the next one out."""
        for left in reversed(range(_STARTS_MAX)):
            self.process.start()
            try:
                what = f"PostgreSQL to answer on {self.port}"
                wait_until(self._answers, what, [self.process], _START_TIMEOUT_S)
                return
            except ServerFailed:
                if self.process.alive or not left:
                    raise
                self.process.stop()

    def _answers(self) -> bool:
        import psycopg

        try:
            self.connect().close()
        except psycopg.OperationalError:
            return False
        return True

    def _initialise(self) -> None:
        word = self._folder / "password"
        word.write_text(self.password)
        if os.geteuid() == 0:
            shutil.chown(word, _USER)
        command = [str(program("initdb", _PACKAGE)), "-D", str(self._data), "-U", _USER]
        command += ["--auth=scram-sha-256", f"--pwfile={word}", "--encoding=UTF8", "--locale=C"]
        command += ["--no-sync"]
        run_to_end("initdb", [*_as_user(), *command], self._folder, _START_TIMEOUT_S)
        word.unlink()


@contextmanager
def postgres(**settings: str | int) -> Iterator[PostgresServer]:
    """A PostgreSQL for the length of a `with`; settings as in `postgresql.conf`.

    Raises `ServerUnavailable` where it cannot be had, and `ServerFailed` if it does not come up.
    """
    program("initdb", _PACKAGE)
    work = Path(tempfile.mkdtemp(prefix="beadline-postgres-"))
    try:
        if os.geteuid() == 0:
            _as_user()
            shutil.chown(work, _USER)
        server = PostgresServer(work, {name: str(value) for name, value in settings.items()})
        try:
            server.start()
            yield server
        finally:
            server.stop()
    finally:
        shutil.rmtree(work, ignore_errors=True)


def _as_user() -> list[str]:
    """What a command begins with so that it does not run as root; it stays the same process."""
    if os.geteuid() != 0:
        return []
    try:
        pwd.getpwnam(_USER)
    except KeyError:
        raise ServerUnavailable(f"PostgreSQL needs a user {_USER!r} to run as") from None
    setpriv = program("setpriv", "util-linux")
    return [str(setpriv), f"--reuid={_USER}", f"--regid={_USER}", "--init-groups"]


def _children(pid: int) -> list[int]:
    """The children of a process where /proc tells; elsewhere backends notice by themselves."""
    found = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError, ValueError, IndexError):
            # The name in brackets may hold anything; the parent comes second after it.
            parent = int(stat.read_text().rpartition(")")[2].split()[1])
            found += [int(stat.parent.name)] if parent == pid else []
    return found
