"""A real MariaDB on the loopback interface, with a user that needs a password.

::

    with mariadb() as server:
        pymysql.connect(**server.login)

MariaDB speaks MySQL's protocol and SQL, and Debian has a package of it. Settings are MariaDB's own
but for `local_infile`, which some distributions turn off, and for what keeps it small.
"""

from __future__ import annotations

import os
import secrets
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

from beadline.testing.servers.base import ServerFailed
from beadline.testing.servers.debian import program
from beadline.testing.servers.ports import LOOPBACK, free_ports
from beadline.testing.servers.process import ServerProcess, run_to_end, wait_until
from beadline.testing.servers.running import need_client, work_folder

_PACKAGE = "mariadb-server"
_START_TIMEOUT_S = 60.0
_STARTS_MAX = 5


class MariaDbServer:
    """A running MariaDB; a fault test may `kill` and `restart` it: port and data stay."""

    host = LOOPBACK
    user = "beadline"
    database = "shop"

    def __init__(self, folder: Path, settings: Mapping[str, str]) -> None:
        """Lay out the folder; `start` starts. `settings` are options of the server."""
        (self.port,) = free_ports(1)
        self.password = secrets.token_hex(12)
        self._folder = folder
        self._data = folder / "data"
        defaults = {
            "bind-address": LOOPBACK,
            "port": str(self.port),
            "socket": str(folder / "server.sock"),
            "pid-file": str(folder / "server.pid"),
            "local-infile": "1",
            "innodb-buffer-pool-size": "128M",
            "performance-schema": "OFF",
        }
        options = [f"--{name}={value}" for name, value in {**defaults, **settings}.items()]
        command = [
            str(program("mariadbd", _PACKAGE)),
            *self._own_options(),
            f"--init-file={folder / 'first.sql'}",
            *options,
        ]
        self._process = ServerProcess("mariadb", command, folder, ports=(self.port,))

    @property
    def dsn(self) -> str:
        """Address of the database, with its password."""
        return self.dsn_of()

    def dsn_of(
        self, database: str | None = None, user: str | None = None, password: str | None = None
    ) -> str:
        """The same server by another database, user or password."""
        word = self.password if password is None else password
        place = f"{self.host}:{self.port}/{database or self.database}"
        return f"mysql://{user or self.user}:{word}@{place}"

    @property
    def login(self) -> dict[str, Any]:
        """What a client library wants to know."""
        return {
            "host": self.host,
            "port": self.port,
            "user": self.user,
            "password": self.password,
            "database": self.database,
        }

    def connect(self) -> Any:
        """A pymysql connection of the tests' own, in which every statement is a transaction."""
        import pymysql

        return pymysql.connect(**self.login, autocommit=True, connect_timeout=5, read_timeout=60)

    def start(self) -> None:
        """Make the database if it is new, start the server, and wait until it answers."""
        need_client("mysql")
        if not self._data.exists():
            install = program("mariadb-install-db", _PACKAGE)
            options = ("--auth-root-authentication-method=normal", "--skip-test-db")
            command = [str(install), *self._own_options(), *options, "--skip-name-resolve"]
            run_to_end("install", command, self._folder, _START_TIMEOUT_S)
            self._write_first_statements()
        self._process.start()
        self.wait_ready()

    def wait_ready(self, timeout_s: float = _START_TIMEOUT_S) -> None:
        """Return when a statement is answered."""
        wait_until(self._answers, "MariaDB to answer", [self._process], timeout_s)

    def stop(self) -> None:
        """Stop the server; the folder stays."""
        self._process.stop()

    def kill(self) -> None:
        """Kill -9, as a crash would."""
        self._process.kill()

    def restart(self, timeout_s: float = _START_TIMEOUT_S) -> None:
        """Start it again, after a `kill` or instead of a `stop`, and wait until it answers."""
        self.stop()
        self._process.start()
        self.wait_ready(timeout_s)

    def _own_options(self) -> list[str]:
        options = ["--no-defaults", f"--datadir={self._data}"]
        # It refuses to run as root unless it is told that this is meant.
        return [*options, "--user=root"] if os.geteuid() == 0 else options

    def _write_first_statements(self) -> None:
        """What the server runs at each start, before it accepts anybody: a database and a user."""
        user = f"'{self.user}'@'%'"
        statements = (
            f"CREATE DATABASE IF NOT EXISTS {self.database}",
            f"CREATE USER IF NOT EXISTS {user} IDENTIFIED BY '{self.password}'",
            f"GRANT ALL PRIVILEGES ON *.* TO {user} WITH GRANT OPTION",
        )
        path = self._folder / "first.sql"
        path.touch(mode=0o600)
        path.write_text(";\n".join(statements) + ";\n", encoding="utf-8")

    def _answers(self) -> bool:
        import pymysql

        try:
            with closing(self.connect()) as connection, connection.cursor() as cursor:
                cursor.execute("SELECT 1")
        except (pymysql.Error, OSError):
            return False
        return True


@contextmanager
def mariadb(
    folder: Path | None = None, settings: Mapping[str, str] | None = None
) -> Iterator[MariaDbServer]:
    """A MariaDB for the length of a `with`, in a temporary folder unless one is given.

    Raises `ServerUnavailable` where it cannot be had, and `ServerFailed` if it does not come up.
    """
    with work_folder("mariadb", folder) as work:
        server = _started(work, settings or {})
        try:
            yield server
        finally:
            server.stop()


def _started(work: Path, settings: Mapping[str, str]) -> MariaDbServer:
    """Start on another port if the one that was free a moment ago has been taken."""
    for attempt in range(_STARTS_MAX):
        server = MariaDbServer(work / f"start-{attempt}", settings)
        try:
            server.start()
        except ServerFailed as error:
            server.stop()
            if "Address already in use" not in str(error) or attempt == _STARTS_MAX - 1:
                raise
        else:
            return server
    raise AssertionError("unreachable")
